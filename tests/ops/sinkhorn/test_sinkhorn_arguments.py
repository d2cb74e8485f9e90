"""Sinkhorn operators reject arguments of the wrong type and accept NumPy integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import (
    block_attention,
    block_scores,
    gumbel_noise,
    gumbel_sinkhorn,
    pool_blocks,
    sinkhorn,
    sinkhorn_attention,
    sort_blocks,
    sorted_padding_mask,
    top_k_blocks,
)

Q = torch.randn(2, 2, 8, 3)
BLOCKS = Q.unflatten(2, (2, 4))
SORT = torch.rand(2, 2, 2, 2)
SCORES = torch.randn(2, 4, 4)


def attention(**changed: Any) -> Tensor:
    arguments = {"q": Q, "k": Q, "v": Q, "sort": SORT, "block_size": 4, **changed}
    return sinkhorn_attention(**arguments)


def attention_of_blocks(**changed: Any) -> Tensor:
    names = ("q", "k", "v", "sorted_k", "sorted_v")
    return block_attention(**{**dict.fromkeys(names, BLOCKS), **changed})


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "iterations True": ("num_iterations", lambda: sinkhorn(SCORES, True)),
    "iterations 3.0": ("num_iterations", lambda: sinkhorn(SCORES, 3.0)),
    "no blocks": ("log_scores", lambda: sinkhorn(torch.zeros(2, 0, 0), 3)),
    "noise number": ("noise", lambda: gumbel_sinkhorn(SCORES, 3, noise=1.0)),
    "noise in float64": ("noise", lambda: gumbel_sinkhorn(SCORES, 3, noise=SCORES.double())),
    "temperature text": ("temperature", lambda: gumbel_sinkhorn(SCORES, 3, temperature="a")),
    "temperature tensor": (
        "temperature",
        lambda: gumbel_sinkhorn(SCORES, 3, temperature=torch.ones(3)),
    ),
    "temperature infinite": (
        "temperature",
        lambda: top_k_blocks(SCORES, 1, temperature=float("inf")),
    ),
    "kernel None": ("kernel", lambda: gumbel_sinkhorn(SCORES, 3, kernel=None)),
    "k 1.0": ("k", lambda: top_k_blocks(SCORES, 1.0)),
    "null blocks 1.0": ("num_null", lambda: top_k_blocks(SCORES, 1, num_null=1.0)),
    "shape number": ("shape", lambda: gumbel_noise(3)),
    "shape with 2.0": ("shape", lambda: gumbel_noise((2, 2.0))),
    "noise of integers": ("dtype", lambda: gumbel_noise((2,), dtype=torch.int64)),
    "pooled by 2.0": ("block_size", lambda: pool_blocks(SCORES, 2.0)),
    "scored by text": ("block_size", lambda: block_scores(Q, Q, "4")),
    "scores of two dtypes": ("k", lambda: block_scores(Q, Q.double(), 4)),
    "blocks a list": ("blocks", lambda: sort_blocks([1], SORT)),
    "sort None": ("sort", lambda: sort_blocks(BLOCKS, None)),
    "blocks and sort of two dtypes": ("sort", lambda: sort_blocks(BLOCKS, SORT.double())),
    "blocks of integers": ("blocks", lambda: sort_blocks(BLOCKS.long(), SORT)),
    "mask for 4.0": ("block_size", lambda: sorted_padding_mask(SORT, 4.0)),
    "mask for 0": ("block_size", lambda: sorted_padding_mask(SORT, 0)),
    "mask for 1.0 null": ("num_null", lambda: sorted_padding_mask(SORT, 4, num_null=1.0)),
    "attention by 4.0": ("block_size", lambda: attention(block_size=4.0)),
    "sortcut 1.0": ("sortcut", lambda: attention(sortcut=1.0)),
    "rotation 1.5": ("rotation", lambda: attention(rotation=1.5, causal=True)),
    "dropout text": ("dropout_p", lambda: attention(dropout_p="a")),
    "k in float64": ("k", lambda: attention(k=Q.double())),
    "k on meta": ("k", lambda: attention(k=Q.to("meta"))),
    "v None": ("v", lambda: attention(v=None)),
    "sort in float64": ("sort", lambda: attention(sort=SORT.double())),
    "null of numbers": ("null_kv", lambda: attention(null_kv=(1, 2))),
    "null number": ("null_kv", lambda: attention(null_kv=1)),
    "null of one": ("null_kv", lambda: attention(null_kv=(torch.zeros(2, 3),))),
    "hidden floats": ("hidden", lambda: attention_of_blocks(hidden=torch.zeros(4, 4))),
    "hidden shape": ("hidden", lambda: attention_of_blocks(hidden=torch.zeros(3, 4) > 0)),
    "hidden with six axes": (
        "sorted_hidden",
        lambda: attention_of_blocks(sorted_hidden=torch.zeros(1, 1, 1, 1, 1, 4) > 0),
    ),
    "hidden number": ("sorted_hidden", lambda: attention_of_blocks(sorted_hidden=1)),
    "hidden on meta": (
        "hidden",
        lambda: attention_of_blocks(hidden=torch.zeros(4, 4, device="meta").bool()),
    ),
    "block k None": ("k", lambda: attention_of_blocks(k=None)),
    "block v in float64": ("sorted_v", lambda: attention_of_blocks(sorted_v=BLOCKS.double())),
}


@pytest.mark.parametrize(("name", "call"), BAD.values(), ids=BAD)
def test_arguments_of_a_wrong_type_are_named(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected"):
        call()


def test_integers_of_numpy() -> None:
    two, four = np.int64(2), np.int32(4)
    assert torch.equal(sinkhorn(SCORES, two), sinkhorn(SCORES, 2))
    assert torch.equal(
        gumbel_sinkhorn(SCORES, two, temperature=np.float32(0.5)),
        gumbel_sinkhorn(SCORES, 2, temperature=0.5),
    )
    assert torch.equal(
        top_k_blocks(SCORES, two, num_null=np.int64(1)), top_k_blocks(SCORES, 2, num_null=1)
    )
    assert torch.equal(pool_blocks(SCORES, two), pool_blocks(SCORES, 2))
    assert torch.equal(attention(block_size=four, sortcut=np.int64(1)), attention(sortcut=1))
    assert gumbel_noise([two, four]).shape == (2, 4)


@pytest.mark.parametrize("combine", ["concat", "sum_logits", "sum_out"])
@pytest.mark.parametrize("which", ["hidden", "sorted_hidden"])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (4, 1), (2, 1, 1), (1, 1, 1, 4, 1)], ids=str)
def test_masks_of_any_rank_broadcast(shape: tuple[int, ...], which: str, combine: str) -> None:
    torch.manual_seed(1)
    hidden = torch.rand(shape) > 0.5
    for mask in (hidden, ~hidden):
        options = {which: mask, "combine": combine}
        torch.testing.assert_close(
            attention_of_blocks(**options), attention_of_blocks(**options, backend="reference")
        )


def test_noise_in_a_graph_of_any_size() -> None:
    def run(x: Tensor) -> Tensor:
        return x + gumbel_noise(x.shape, device=x.device)

    compiled = torch.compile(run, backend="eager", fullgraph=True, dynamic=True)
    for size in (3, 5):
        torch.manual_seed(2)
        expected = run(torch.zeros(size, size))
        torch.manual_seed(2)
        assert torch.equal(compiled(torch.zeros(size, size)), expected)
