"""Measure a layer on packed sequences, on padded sequences, and on equal lengths.

packed    all sequences in one row, with `cu_seqlens`
padded    a batch as long as the longest sequence, with `key_padding_mask`
equal     the same number of tokens in sequences of equal length, without a mask: a lower bound

python benchmarks/packed.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, product
from typing import Any

import torch
from harness import Call, run
from torch import Tensor

import rifflemix as rm
from rifflemix.lab.runs.environment import describe_hardware, environment
from rifflemix.lab.runs.measure import median, median_seconds

DIM, HEADS, SEED = 128, 4, 0
LENGTHS = {
    "8 sequences of 256 to 4,096 tokens": (8, 256, 4096),
    "512 sequences of 8 to 64 tokens": (512, 8, 64),
}
MIXERS = ("tssa", "csp", "sliceformer", "linear", "softmax")


def draw_lengths(count: int, shortest: int, longest: int) -> list[int]:
    """Draw lengths that are uniform in their logarithm, as of texts.

    The first is the longest, so that padding does not depend on the draw.
    """
    share = torch.rand(count, generator=torch.Generator().manual_seed(SEED))
    drawn = [int(shortest * (longest / shortest) ** u) for u in share.tolist()]
    return [longest, *drawn[1:]]


def ways(mixer: rm.TokenMixer, lengths: list[int]) -> dict[str, tuple[Tensor, Callable[[], Any]]]:
    """Return the input and the call of each layout."""
    total, longest = sum(lengths), max(lengths)
    bounds = torch.tensor((0, *accumulate(lengths)))
    mask = torch.arange(longest) >= torch.tensor(lengths).unsqueeze(1)
    row, padded, equal = (
        torch.randn(*size, DIM)
        for size in ((1, total), (len(lengths), longest), (len(lengths), total // len(lengths)))
    )
    return {
        "packed": (row, lambda: mixer(row, cu_seqlens=bounds)),
        "padded": (padded, lambda: mixer(padded, key_padding_mask=mask)),
        "equal": (equal, lambda: mixer(equal)),
    }


def gradients(leaves: Iterable[Tensor], call: Callable[[], Tensor]) -> Call:
    """Return a call that computes the gradients of some tensors."""
    leaves = [leaf.requires_grad_() for leaf in leaves]
    grad = torch.randn_like(call().detach())
    return lambda: torch.autograd.grad(call(), leaves, grad)


def rows_of(kind: str, name: str, causal: bool, repeats: int) -> Iterator[dict[str, Any]]:
    """Measure inference and training of a mixer."""
    lengths = draw_lengths(*LENGTHS[kind])
    torch.manual_seed(SEED)
    mixer = rm.create_mixer(name, DIM, num_heads=HEADS, max_length=max(lengths), causal=causal)
    calls = ways(mixer, lengths)
    for phase in ("forward", "training"):
        mixer.train(phase == "training")
        timed = {
            way: gradients([x, *mixer.parameters()], call)
            if mixer.training
            else torch.no_grad()(call)
            for way, (x, call) in calls.items()
        }
        taken = median_seconds(timed, torch.device("cpu"), repeats=repeats, max_seconds=5.0)
        row = {"mixer": name, "causal": causal, "lengths": kind, "phase": phase, "times": taken}
        row["seconds"] = {way: median(times) for way, times in taken.items()}
        print({key: value for key, value in row.items() if key != "times"})
        yield row


def measure(repeats: int = 5) -> Iterator[dict[str, Any]]:
    """Measure all mixers on all sets of lengths."""
    yield {
        "dim": DIM,
        "heads": HEADS,
        "lengths": {kind: draw_lengths(*bounds) for kind, bounds in LENGTHS.items()},
        "rows": [
            row for of in product(LENGTHS, MIXERS, (False, True)) for row in rows_of(*of, repeats)
        ],
        "hardware": describe_hardware(environment()),
    }


if __name__ == "__main__":
    run("packed", __doc__, measure)
