"""Batches of samples with similar lengths, sized in tokens, as in Tensor2Tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, count, repeat, takewhile

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import bad_argument
from rifflemix.lab.train.protocols import HasLengths, Split

_FIRST_BOUNDARY, _GROWTH = 8, 1.1


def bucket_boundaries(longest: int) -> list[int]:
    """Return the lengths at which buckets start.

    The first is 8, and each next one is 10 % larger, below `longest`.
    """
    growing = accumulate(repeat(_FIRST_BOUNDARY), lambda x, _: max(x + 1, int(x * _GROWTH)))
    return list(takewhile(lambda boundary: boundary < longest, growing))


def bucket_sizes(tokens: int, longest: int) -> list[int]:
    """Return the batch size of each bucket for at most `tokens` tokens."""
    return [max(1, tokens // end) for end in (*bucket_boundaries(longest), longest)]


def sample_lengths(split: Split, task_name: str) -> NDArray[np.int64]:
    """Return the tokens of every sample of a split.

    Raises:
        InputError: the split has no sample lengths.
    """
    if not isinstance(split, HasLengths):
        expected = f"None for task {task_name}"
        got = "tokens and a length"
        raise bad_argument("token_batches", expected, got, "the task has no lengths of samples")
    return split.lengths()


def batches_by_length(
    lengths: NDArray[np.int64], order: Iterable[int], token_batches: tuple[int, int]
) -> Iterator[list[int]]:
    """Group samples into batches, each from one bucket of lengths.

    Args:
        lengths: (S,) tokens of each sample.
        order: sample numbers. Each sample joins the open batch of its bucket.
        token_batches: tokens of a batch, and the length from which samples share a bucket.

    Yields:
        Sample numbers of a batch when it is full. The incomplete batches come last.

    Source: Vaswani et al. 2018, Tensor2Tensor for Neural Machine Translation.
    """
    buckets = np.searchsorted(bucket_boundaries(token_batches[1]), lengths, side="right").tolist()
    sizes = bucket_sizes(*token_batches)
    waiting: list[list[int]] = [[] for _ in sizes]
    for sample in order:
        bucket = buckets[sample]
        waiting[bucket].append(sample)
        if len(waiting[bucket]) == sizes[bucket]:
            yield waiting[bucket]
            waiting[bucket] = []
    yield from filter(None, waiting)


def endless_batches(
    lengths: NDArray[np.int64],
    epoch_order: Callable[[int], NDArray[np.int64]],
    token_batches: tuple[int, int],
    first_step: int,
) -> Iterator[list[tuple[int, int]]]:
    """Yield training batches of (sample, position) pairs from `first_step` on.

    Samples that fill no batch in one epoch wait for the next epoch.
    """
    order = chain.from_iterable(epoch_order(epoch).tolist() for epoch in count())
    seen = 0
    for step, batch in enumerate(batches_by_length(lengths, order, token_batches)):
        if step >= first_step:
            yield list(zip(batch, range(seen, seen + len(batch)), strict=True))
        seen += len(batch)
