"""The number of CPU threads changes no bit of outputs and gradients, but where the card says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rifflemix.mixers import create_mixer, list_mixers, mixer_card
from rifflemix.runs.device import using_threads

EVEN, ODD = (8, 128, 64), (3, 23, 12)
"""Sequences, tokens and channels: sizes that vectors divide, and such that they do not."""
SPLIT_ELSEWHERE = {"reformer", "sparse_transformer", "tssa"}
"""Mixers whose card says so of other options or sizes than those of the defaults here."""
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "csp": [{"causal": True}, {"shift": "power"}],
    "linear": [{"causal": True}, {"normalize": False}],
    "local": [{"causal": True}, {"block_size": 4}],
    "performer": [{"kernel": "relu"}],
    "reformer": [
        {"num_buckets": [2, 4], "chunk_size": 4, "num_hashes": 3},
        {"num_buckets": 4, "chunk_size": 3, "causal": True},
    ],
    "sinkhorn": [{"top_k": 2}, {"combine": "sum_out"}],
    "sliceformer": [{"variant": "max_exchange"}],
    "softmax": [{"causal": True}],
    "sparse_transformer": [
        {"pattern": "strided", "stride": 3},
        {"pattern": "strided", "stride": 3, "causal": True},
    ],
    "tssa": [
        {"causal": True},
        *({"causal": True, "renormalize_every": every} for every in (1, 3, "doubling")),
    ],
}


def outputs(name: str, size: tuple[int, int, int], threads: int, **options: Any) -> list[Tensor]:
    batch, length, dim = size
    torch.manual_seed(0)
    heads = 4 if size == EVEN else 3
    mixer = create_mixer(name, dim, num_heads=heads, max_length=length, **options)
    x = torch.randn(batch, length, dim, requires_grad=True)
    with using_threads(threads):
        y = mixer(x)
        y.square().sum().backward()
    tensors = [y.detach(), x.grad, *(parameter.grad for parameter in mixer.parameters())]
    return [tensor for tensor in tensors if tensor is not None]


def require_same(name: str, size: tuple[int, int, int], may_split: bool, **options: Any) -> None:
    one, two = (outputs(name, size, threads, **options) for threads in (1, 2))
    pairs = list(zip(one, two, strict=True))
    if may_split:  # the order of a sum, nothing else
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-2) for a, b in pairs)
    else:
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", list_mixers())
def test_threads_change_no_bit(name: str) -> None:
    may_split = bool(mixer_card(name).thread_sums) and name not in SPLIT_ELSEWHERE
    require_same(name, EVEN, may_split)


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        (name, options, size)
        for name, several in OPTIONS.items()
        for options in several
        for size in ((EVEN, ODD) if name in SPLIT_ELSEWHERE else (EVEN,))
    ],
    ids=str,
)
def test_nor_with_other_options(
    name: str, options: dict[str, Any], size: tuple[int, int, int]
) -> None:
    require_same(name, size, bool(mixer_card(name).thread_sums), **options)
