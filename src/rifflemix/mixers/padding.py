"""Padding for mixers to which the positions of tokens matter: valid tokens go first, in order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def move_padding_last(x: Tensor, key_padding_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Valid tokens first, in order; also their mask and where each position came from, (B, N)."""
    order = key_padding_mask.to(torch.uint8).argsort(dim=1, stable=True)
    moved = x.gather(1, order.unsqueeze(-1).expand_as(x))
    return moved, key_padding_mask.gather(1, order), order


def move_padding_back(y: Tensor, order: Tensor) -> Tensor:
    """Undo `move_padding_last` on outputs (B, N, C)."""
    return y.gather(1, order.argsort(1).unsqueeze(-1).expand_as(y))


def mix_valid_tokens(
    mix: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, key_padding_mask: Tensor | None
) -> Tensor:
    """`mix` on the sequence of the valid tokens, wherever padding stands between them.

    Args:
        mix: takes (B, N, C) tokens and a mask whose padding stands last, or no mask.
        x: (B, N, C) tokens.
        key_padding_mask: (B, N) bool, True = padding, any pattern.

    Returns:
        (B, N, C), the outputs at the positions that the tokens came from.
    """
    if key_padding_mask is None:
        return mix(x, None)
    moved, mask, order = move_padding_last(x, key_padding_mask)
    return move_padding_back(mix(moved, mask), order)
