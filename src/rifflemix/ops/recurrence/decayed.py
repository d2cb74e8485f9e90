"""Decays between the tokens of a chunk, and inner products that they weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rifflemix.compat import widest_float
from rifflemix.ops.recurrence.triangular import join

# exp(-800) is 0 even in float64. A finite bound keeps differences of logarithms defined.
_LEAST_LOG = -800.0


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
            [join(blocks, left @ right.mT) for blocks, right in zip(row, right_parts, strict=True)]
            for row, left in zip(found, left_parts, strict=True)
        ]

    def _exp(self, logs: Tensor) -> Tensor:
        return logs.to(self._dtype).exp()


def _halves(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Split (..., L, F) into earlier and later blocks: twice (..., L / (2 half), half, F)."""
    earlier, later = x.unflatten(-2, (-1, 2, half)).unbind(-3)
    return earlier, later
