"""Chunks of a sequence, or of the sequences in a packed batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import is_known, scan, statically_known_true, take_first

_MOST_TOKENS = 64


class Chunks(NamedTuple):
    """Chunks of `size` tokens, with zeros after the last token of every sequence.

    Attributes:
        size: tokens of a chunk, a power of two.
        bounds: first chunk of each sequence, and the number of chunks. This number is symbolic in
            an exported graph for any length.
        places: (N,) position of each token, or None if tokens keep their position.
        length: N.
    """

    size: int
    bounds: list[int]
    places: Tensor | None
    length: int

    @classmethod
    def of(cls, length: int, offsets: Sequence[int] | None, device: torch.device) -> Chunks:
        """Plan the chunks of one length, or of a packed batch."""
        if not is_known(length):
            count = _symbolic_count(length)
            return cls(_MOST_TOKENS, [0, count], None, length)
        lengths = [length] if offsets is None else [b - a for a, b in pairwise(offsets)]
        size = min(_MOST_TOKENS, 1 << max(0, max(lengths) - 1).bit_length())
        bounds = list(accumulate((-(-n // size) for n in lengths), initial=0))
        if offsets is None:
            return cls(size, bounds, None, length)
        places = [
            place for first, n in zip(bounds, lengths, strict=False)
            for place in range(first * size, first * size + n)
        ]  # fmt: skip
        return cls(size, bounds, torch.tensor(places, device=device, dtype=torch.int64), length)

    def split(self, x: Tensor) -> Tensor:
        """Split tokens into chunks: (B, H, N, F) -> (B, H, chunks, size, F)."""
        room = self.bounds[-1] * self.size
        if self.places is not None:
            empty = x.new_zeros((*x.shape[:2], room, x.shape[3]))
            x = empty.index_copy(2, self.places, x)
        elif not statically_known_true(room == self.length):
            x = F.pad(x, (0, 0, 0, room - self.length))
        return x.unflatten(2, (self.bounds[-1], self.size))

    def join(self, chunks: Tensor) -> Tensor:
        """Undo `split`."""
        tokens = chunks.flatten(2, 3)
        if self.places is not None:
            return tokens.index_select(2, self.places)
        return take_first(tokens, self.length, 2)

    def states(
        self, factor: Tensor | None, addition: Tensor, first: Tensor, *, by_matrix: bool
    ) -> tuple[Tensor, Tensor]:
        """Compute S <- factor S + addition over the chunks of every sequence.

        Args:
            factor: (B, H, chunks, D, D) matrices, or (B, H, chunks, 1 or D, 1) numbers; None is 1.
            addition: (B, H, chunks, D, E).
            first: (B or sequences, H, D, E) states before the first chunks.
            by_matrix: whether the factors are matrices.

        Returns:
            The states before all chunks, and the states after the last chunks.
        """
        if not is_known(addition.shape[2]):
            return _scanned(factor, addition, first, by_matrix=by_matrix)
        factors = [None] * addition.shape[2] if factor is None else factor.unbind(2)
        additions, before, last = addition.unbind(2), [], []
        for sequence, (start, end) in enumerate(pairwise(self.bounds)):
            state = first if self.places is None else first[sequence].unsqueeze(0)
            for chunk in range(start, end):
                before.append(state)
                state = _updated(factors[chunk], additions[chunk], state, by_matrix=by_matrix)
            last.append(state)
        return torch.stack(before, 2), torch.cat(last)


def _symbolic_count(length: int) -> int:
    """Return the number of chunks for all values of a symbolic length.

    One extra chunk proves to torch.export that there are at least two.
    """
    if statically_known_true(length <= _MOST_TOKENS):
        return 1
    return (length + 2 * _MOST_TOKENS - 1) // _MOST_TOKENS


def _updated(factor: Tensor | None, addition: Tensor, state: Tensor, *, by_matrix: bool) -> Tensor:
    if factor is None:
        return state + addition
    if by_matrix:
        return factor @ state + addition
    return torch.addcmul(addition, factor, state)


def _scanned(
    factor: Tensor | None, addition: Tensor, first: Tensor, *, by_matrix: bool
) -> tuple[Tensor, Tensor]:
    """Run `Chunks.states` for a symbolic number of chunks."""

    def step(state: Tensor, chunk: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        by = chunk[1] if len(chunk) > 1 else None
        return _updated(by, chunk[0], state, by_matrix=by_matrix), state.clone()

    last, before = scan(step, first, [x.movedim(2, 0) for x in (addition, factor) if x is not None])
    return before.movedim(0, 2), last
