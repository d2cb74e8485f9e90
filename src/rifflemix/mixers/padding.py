"""Padding in mixers that depend on token positions: valid tokens are moved to the front."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rifflemix.compat import stable_order, values_can_be_read
from rifflemix.errors import bad_argument


def move_padding_last(x: Tensor, key_padding_mask: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Move padding behind the valid tokens; keep the order of the tokens.

    Args:
        x: (B, N, C) tokens.
        key_padding_mask: (B, N) bool, True = padding, any pattern.

    Returns:
        The tokens, their mask, and the original position (B, N) of each token. The position is
        None if the padding is known to come last already, as in most tasks.
    """
    if _stands_last(key_padding_mask):
        return x, key_padding_mask, None
    order = stable_order(key_padding_mask.to(torch.uint8), 1)
    moved = x.gather(1, order.unsqueeze(-1).expand_as(x))
    return moved, key_padding_mask.gather(1, order), order


def move_padding_back(y: Tensor, order: Tensor | None) -> Tensor:
    """Undo `move_padding_last` on outputs (B, N, C)."""
    if order is None:
        return y
    return y.gather(1, order.argsort(1).unsqueeze(-1).expand_as(y))


def _stands_last(key_padding_mask: Tensor) -> bool:
    """Check that no token follows padding.

    Returns False if the mask has no values or is on a GPU, where reading it would wait.
    """
    on_cpu = type(key_padding_mask) is Tensor and key_padding_mask.device.type == "cpu"
    if not (on_cpu and values_can_be_read()):
        return False
    return not bool((key_padding_mask[:, :-1] & ~key_padding_mask[:, 1:]).any())


def mix_valid_tokens(
    mix: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, key_padding_mask: Tensor | None
) -> Tensor:
    """Run `mix` on the valid tokens as a contiguous sequence.

    Args:
        mix: function of tokens (B, N, C) and of a mask with padding last, or None.
        x: (B, N, C) tokens.
        key_padding_mask: (B, N) bool, True = padding, any pattern.

    Returns:
        (B, N, C) outputs, each at the original position of its token.
    """
    if key_padding_mask is None:
        return mix(x, None)
    moved, mask, order = move_padding_last(x, key_padding_mask)
    return move_padding_back(mix(moved, mask), order)


def fill_valid_tokens(
    fill: Callable[[Tensor, Tensor | None], tuple[Tensor, dict[str, Tensor]]],
    x: Tensor,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run `mix_valid_tokens` for a function that returns outputs and a streaming state."""
    if key_padding_mask is None:
        return fill(x, None)
    moved, mask, order = move_padding_last(x, key_padding_mask)
    y, state = fill(moved, mask)
    return move_padding_back(y, order), state


def check_no_padding(key_padding_mask: Tensor | None) -> None:
    """Raise if there is a mask, for streams with `keep_positions=True`."""
    if key_padding_mask is not None:
        raise bad_argument("key_padding_mask", "None to prefill with keep_positions=True", "a mask")


def last_tokens(
    x: Tensor, key_padding_mask: Tensor | None, count: int, dim: int = 1
) -> tuple[Tensor, Tensor | None]:
    """Return the last `count` valid tokens of each sequence.

    Args:
        x: (B, ..., N, ...) with the tokens along `dim`.
        key_padding_mask: (B, N) bool, True = padding. Padding must come last.
        count: number of tokens to keep.
        dim: dimension of the tokens.

    Returns:
        min(count, N) tokens along `dim`, and a mask of leading zeros. Sequences with fewer tokens
        start with zeros. The mask is (B, min(count, N)) bool, True = zero, or None if
        `key_padding_mask` is None.
    """
    length = x.shape[dim]
    count = min(count, length)
    if key_padding_mask is None:
        return x.narrow(dim, length - count, count), None
    first = (~key_padding_mask).sum(1, keepdim=True) - count
    index = first + torch.arange(count, device=x.device)
    return take_tokens(x, index, dim), index < 0


def take_tokens(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Gather tokens at positions (B, M) along `dim`; zeros for negative positions."""
    shape = [x.shape[0]] + [1] * (x.dim() - 1)
    shape[dim] = index.shape[1]
    index = index.view(shape)
    sizes = [*x.shape[:dim], index.shape[dim], *x.shape[dim + 1 :]]
    # No take_along_dim: a program from torch.export would support these sizes only.
    taken = x.gather(dim, index.clamp_min(0).expand(sizes))
    return taken.masked_fill(index < 0, 0.0)


def newest_in_slots(x: Tensor, key_padding_mask: Tensor | None, count: int, dim: int) -> Tensor:
    """Return the index of the latest token in each slot of a ring buffer.

    Token n is in slot n % count, until a later token replaces it.

    Args:
        x: (B, ..., N, ...) with the tokens along `dim`.
        key_padding_mask: (B, N) bool, True = padding. Padding must come last.
        count: number of slots.
        dim: dimension of the tokens.

    Returns:
        (B, count) int64 token indices, negative for empty slots.
    """
    if key_padding_mask is None:
        lengths = torch.full((x.shape[0], 1), x.shape[dim], device=x.device)
    else:
        lengths = (~key_padding_mask).sum(1, keepdim=True)
    slots = torch.arange(count, device=x.device)
    return slots + (lengths - 1 - slots) // count * count
