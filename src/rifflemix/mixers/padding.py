"""Padding for mixers to which the positions of tokens matter: valid tokens go first, in order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rifflemix.compat import (
    is_known,
    stable_order,
    statically_known_true,
    values_can_be_read,
)
from rifflemix.errors import bad_argument, check_choice

LAYOUTS = ("max_length", "length")


def layout_length(layout: str | None, max_length: int | None) -> int | None:
    """The number of positions that a structure over positions is laid out over.

    Args:
        layout: "max_length", so that a sample's result does not depend on how long the others of
            its batch are; "length", over as many positions as come in, padding included; unset,
            the first where there is a `max_length`.
        max_length: of the mixer.

    Returns:
        `max_length`, or None for the number of tokens at hand.

    Raises:
        InputError: another layout, or "max_length" without one.
    """
    if layout is None:
        return max_length
    check_choice("layout", layout, LAYOUTS)
    if layout == "length":
        return None
    if max_length is None:
        raise bad_argument("max_length", 'the most tokens, for layout="max_length"', None)
    return max_length


def block_of(size: int, length: int) -> int:
    """Tokens in a block: `size`, or all tokens where these are fewer.

    A length that is a symbol of a traced graph is not compared: its blocks are filled with padding.
    """
    return length if statically_known_true(length <= size) else size


def blocks_and_size(size: int, length: int) -> tuple[int, int]:
    """How many blocks of `block_of` hold all tokens, and how many tokens each.

    Where the length is a symbol of a traced graph there is one more, of padding: a compiler that
    knows of two blocks at least makes no other graph, and no condition, for one.
    """
    if is_known(length):
        size = min(size, length)
        return (length + size - 1) // size, size
    if statically_known_true(length <= size):
        return 1, length
    return _blocks_of_any_length(size, length), size


def missing_tokens(size: int, length: int) -> int:
    """How many tokens of padding fill the blocks that hold all tokens, as `blocks_and_size`."""
    if is_known(length):
        return -length % size
    if not is_known(size):  # the one block of all tokens
        return 0
    # The same number without its maximum, which a compiler could not divide by the blocks again.
    return (length + 2 * size - 1) // size * size - length


def _blocks_of_any_length(size: int, length: int) -> int:
    # The maximum changes nothing; without it a compiler does not see that there are two at least.
    blocks: int = torch.sym_max(2, (length + 2 * size - 1) // size)
    return blocks


def move_padding_last(x: Tensor, key_padding_mask: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Valid tokens first, in order.

    Args:
        x: (B, N, C) tokens.
        key_padding_mask: (B, N) bool, True = padding, any pattern.

    Returns:
        The tokens; their mask; where each position came from, (B, N), or None where the padding is
        seen to stand last already, as most tasks have it, and nothing was moved.
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
    """Whether no token follows padding; False where that cannot be read, or only by waiting."""
    on_cpu = type(key_padding_mask) is Tensor and key_padding_mask.device.type == "cpu"
    if not (on_cpu and values_can_be_read()):
        return False
    return not bool((key_padding_mask[:, :-1] & ~key_padding_mask[:, 1:]).any())


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


def fill_valid_tokens(
    fill: Callable[[Tensor, Tensor | None], tuple[Tensor, dict[str, Tensor]]],
    x: Tensor,
    key_padding_mask: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """`mix_valid_tokens` for functions that return outputs and the state of a stream."""
    if key_padding_mask is None:
        return fill(x, None)
    moved, mask, order = move_padding_last(x, key_padding_mask)
    y, state = fill(moved, mask)
    return move_padding_back(y, order), state


def check_no_padding(key_padding_mask: Tensor | None) -> None:
    """Raise if there is padding where a stream could not tell it from tokens."""
    if key_padding_mask is not None:
        raise bad_argument("key_padding_mask", "None to prefill with keep_positions=True", "a mask")


def last_tokens(
    x: Tensor, key_padding_mask: Tensor | None, count: int, dim: int = 1
) -> tuple[Tensor, Tensor | None]:
    """The last `count` valid tokens of each sequence, where padding stands last.

    Args:
        x: (B, ..., N, ...) with the tokens along `dim`.
        key_padding_mask: (B, N) bool, True = padding, which stands last.
        count: tokens to keep.
        dim: where the tokens are.

    Returns:
        min(count, N) tokens along `dim`, with zeros in front where a sequence has fewer; and
        where these zeros are, (B, min(count, N)) bool, None without a mask.
    """
    length = x.shape[dim]
    count = min(count, length)
    if key_padding_mask is None:
        return x.narrow(dim, length - count, count), None
    first = (~key_padding_mask).sum(1, keepdim=True) - count
    index = first + torch.arange(count, device=x.device)
    return take_tokens(x, index, dim), index < 0


def take_tokens(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Tokens (B, ..., N, ...) at positions `index` (B, M) along `dim`, zero where negative."""
    shape = [x.shape[0]] + [1] * (x.dim() - 1)
    shape[dim] = index.shape[1]
    index = index.view(shape)
    sizes = [*x.shape[:dim], index.shape[dim], *x.shape[dim + 1 :]]
    # Not by take_along_dim: a program of torch.export would hold for these sizes alone.
    taken = x.gather(dim, index.clamp_min(0).expand(sizes))
    return taken.masked_fill(index < 0, 0.0)


def newest_in_slots(x: Tensor, key_padding_mask: Tensor | None, count: int, dim: int) -> Tensor:
    """Which token each of `count` slots holds when token n has been written to slot n % count.

    Args:
        x: (B, ..., N, ...) with the tokens along `dim`.
        key_padding_mask: (B, N) bool, True = padding, which stands last.
        count: slots.
        dim: where the tokens are.

    Returns:
        (B, count) int64, negative for a slot that nothing was written to.
    """
    if key_padding_mask is None:
        lengths = torch.full((x.shape[0], 1), x.shape[dim], device=x.device)
    else:
        lengths = (~key_padding_mask).sum(1, keepdim=True)
    slots = torch.arange(count, device=x.device)
    return slots + (lengths - 1 - slots) // count * count
