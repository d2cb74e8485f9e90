"""Chunks of tokens: their states, their decays, and triangular systems within a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import is_known, scan, statically_known_true, take_first, widest_float

_MOST_TOKENS = 64
# exp(-800) is 0 even in float64. A finite bound keeps differences of logarithms defined.
_LEAST_LOG = -800.0


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


class Decay:
    """The decays within chunks.

    Attributes:
        logs: (..., L, 1 or D) sum of the logarithms from the start of the chunk to each token. It
            is float64, since differences of long sums in float32 would lose small decays.

    Args:
        log_decay: (..., L, 1 or D) logarithm of the decay of each token.
    """

    def __init__(self, log_decay: Tensor) -> None:
        self._dtype = torch.promote_types(log_decay.dtype, torch.float32)
        wide = log_decay.clamp_min(_LEAST_LOG).to(widest_float(log_decay.device))
        self.logs = wide.cumsum(-2)

    def since_start(self) -> Tensor:
        """Return the decay from before the chunk to after each token: (..., L, 1 or D)."""
        return self._exp(self.logs)

    def until_end(self) -> Tensor:
        """Return the decay from after each token to the end of the chunk: (..., L, 1 or D)."""
        return self._exp(self.logs[..., -1:, :] - self.logs)

    def whole(self) -> Tensor:
        """Return the decay of the whole chunk: (..., 1 or D, 1)."""
        return self._exp(self.logs[..., -1, :].unsqueeze(-1))

    def products(self, lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> list[list[Tensor]]:
        """Compute decayed inner products of all pairs of `lefts` and `rights`.

        Args:
            lefts: tensors (..., L, D) of the later tokens t.
            rights: tensors (..., L, D) of the earlier tokens s.

        Returns:
            For each left and right (..., L, L): the sum over d of left[t, d] right[s, d]
            exp(logs[t, d] - logs[s, d]) for s <= t, and 0 for s > t.
        """
        if self.logs.shape[-1] == 1:
            gaps = self.logs - self.logs.mT
            later = torch.ones(gaps.shape[-2:], dtype=torch.bool, device=gaps.device).triu(1)
            weights = self._exp(gaps.masked_fill(later, -torch.inf))
            return [[left @ right.mT * weights for right in rights] for left in lefts]
        found = [[(left * right).sum(-1)[..., None, None] for right in rights] for left in lefts]
        half = 1
        while half < self.logs.shape[-2]:
            found = self._joined(found, lefts, rights, half)
            half *= 2
        return [[blocks.squeeze(-3) for blocks in row] for row in found]

    def _joined(
        self,
        found: list[list[Tensor]],
        lefts: Sequence[Tensor],
        rights: Sequence[Tensor],
        half: int,
    ) -> list[list[Tensor]]:
        """Join diagonal blocks (..., L / half, half, half) in pairs.

        Both factors of a decay between the two blocks of a pair are relative to the last token of
        the earlier block. So their exponents are at most 0.
        """
        earlier, later = _halves(self.logs, half)
        middle = earlier[..., -1:, :]
        to_middle, from_middle = self._exp(middle - earlier), self._exp(later - middle)
        left_parts = [_halves(left, half)[1] * from_middle for left in lefts]
        right_parts = [_halves(right, half)[0] * to_middle for right in rights]
        return [
            [
                join_blocks(blocks, left @ right.mT)
                for blocks, right in zip(row, right_parts, strict=True)
            ]
            for row, left in zip(found, left_parts, strict=True)
        ]

    def _exp(self, logs: Tensor) -> Tensor:
        return logs.to(self._dtype).exp()


def _halves(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Split (..., L, F) into earlier and later blocks: twice (..., L / (2 half), half, F)."""
    earlier, later = x.unflatten(-2, (-1, 2, half)).unbind(-3)
    return earlier, later


def inverse(matrix: Tensor) -> Tensor:
    """Invert lower triangular matrices with a diagonal of ones.

    The inverses of two neighboring diagonal blocks give the inverse of the block that joins them.
    This needs only matrix products: ONNX has no triangular solver.

    Args:
        matrix: (..., L, L), L a power of two. The diagonal and the entries above it are not read.

    Returns:
        (..., L, L).
    """
    size = matrix.shape[-1]
    found = torch.ones_like(matrix[..., :1]).unsqueeze(-1)
    half = 1
    while half < size:
        blocks = matrix.unflatten(-1, (-1, 2 * half)).unflatten(-3, (-1, 2 * half))
        below = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., half:, :half]
        earlier, later = found.unflatten(-3, (-1, 2)).unbind(-3)
        found = join_blocks(found, -(later @ below @ earlier))
        half *= 2
    return found.squeeze(-3)


def join_blocks(blocks: Tensor, below: Tensor) -> Tensor:
    """Join diagonal blocks (..., 2 n, h, h) in pairs, with (..., n, h, h) below the diagonal."""
    earlier, later = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    above = torch.cat((earlier, torch.zeros_like(below)), -1)
    return torch.cat((above, torch.cat((below, later), -1)), -2)
