"""Outputs and gradients do not depend on the number of CPU threads, except as the card notes.

Gradients of weights are sums over tokens. Matrix products on some CPUs split these sums by threads.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from rifflemix.lab.runs.environment import using_threads
from rifflemix.mixers import create_mixer, list_mixers, mixer_card

EVEN, ODD = (8, 128, 64), (3, 23, 12)
"""Sequences, tokens and channels: sizes with and without a remainder for vector instructions."""
SPLIT_ELSEWHERE = {"reformer", "sparse_transformer", "tssa"}
"""Mixers with a thread note on the card that applies to other options or sizes only."""
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


def outputs(
    name: str, size: tuple[int, int, int], threads: int, **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the output, the input's gradient and the parameters' gradients."""
    batch, length, dim = size
    torch.manual_seed(0)
    heads = 4 if size == EVEN else 3
    mixer = create_mixer(name, dim, num_heads=heads, max_length=length, **options)
    x = torch.randn(batch, length, dim, requires_grad=True)
    with using_threads(threads):
        y = mixer(x)
        y.square().sum().backward()
    of_parameters = [p.grad for p in mixer.parameters() if p.grad is not None]
    return [y.detach(), *([] if x.grad is None else [x.grad])], of_parameters


@functools.cache
def products_split_sums(size: tuple[int, int, int]) -> bool:
    """Check whether torch's product for weight gradients depends on the threads here."""
    batch, length, dim = size
    generator = torch.Generator().manual_seed(0)
    tokens, grad = torch.randn(2, batch * length, dim, generator=generator)
    found = []
    for threads in (1, 2):
        with using_threads(threads):
            found.append(grad.T @ tokens)
    return not torch.equal(*found)


def require_same(name: str, size: tuple[int, int, int], may_split: bool, **options: Any) -> None:
    one, two = (outputs(name, size, threads, **options) for threads in (1, 2))
    for of_one, of_two, split in (
        (one[0], two[0], may_split),
        (one[1], two[1], may_split or products_split_sums(size)),
    ):
        # Some gradients cancel to rounding errors of the other gradients.
        largest = max((float(torch.linalg.norm(a)) for a in of_one), default=0.0)
        for a, b in zip(of_one, of_two, strict=True):
            if split:  # only the order of a sum differs
                assert torch.linalg.norm(a - b) <= 1e-5 * largest
            else:
                assert torch.equal(a, b)


@pytest.mark.parametrize("name", list_mixers())
def test_number_of_threads_does_not_change_a_bit(name: str) -> None:
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
def test_number_of_threads_does_not_change_a_bit_with_options(
    name: str, options: dict[str, Any], size: tuple[int, int, int]
) -> None:
    require_same(name, size, bool(mixer_card(name).thread_sums), **options)
