"""From tokens to one vector."""

from __future__ import annotations

from torch import Tensor


def masked_mean(x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Mean over the valid tokens.

    Args:
        x: (B, N, C) tokens.
        key_padding_mask: (B, N) bool, True = padding.

    Returns:
        (B, C); zero for a sample with no valid token.
    """
    if key_padding_mask is None:
        return x.mean(dim=1)
    valid = (~key_padding_mask).to(x.dtype).unsqueeze(-1)
    total = x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0).sum(dim=1)
    return total / valid.sum(dim=1).clamp(min=1.0)
