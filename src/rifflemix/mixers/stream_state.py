"""Streaming states: whether a state belongs to a mixer, their sizes, and prompts.

The check of names, dtypes and sizes runs at every step, so it uses plain loops. It takes two to
three microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rifflemix.checks import autocast_enabled
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers.padding import move_padding_back, move_padding_last

Layout = dict[str, tuple[int, list[tuple[int, int]], torch.dtype]]
"""For each tensor: number of dimensions, fixed axes with their sizes, and dtype."""

Step = Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""Function (tokens (B, C), state) -> (outputs, next state)."""

_PADDING = "padding"
"""Entry of a cache (`_attention/softmax_parts.py`) that exists only after a prompt with padding."""


def layout_of(state: dict[str, Tensor]) -> Layout:
    """Return the layout of `state`. Later states may grow along axes of size 0."""
    return {
        name: (
            part.dim(),
            [(axis, size) for axis, size in enumerate(part.shape) if axis and size],
            part.dtype,
        )
        for name, part in state.items()
    }


def misfit(state: dict[str, Tensor], layout: Layout, x_t: Tensor) -> str | None:
    """Describe why a state does not fit tokens (B, C); None if it fits."""
    rows = len(x_t)
    for name, (dim, fixed, dtype) in layout.items():
        part = state.get(name)
        if not isinstance(part, Tensor):
            return f"one without '{name}'"
        shape = part.shape
        fits = len(shape) == dim and shape[0] == rows
        if fits:
            for axis, size in fixed:
                if shape[axis] != size:
                    fits = False
        if not fits:
            return f"'{name}' of shape {tuple(shape)} for {rows} sequences"
        if part.dtype != dtype and not _widens(part.dtype, dtype, x_t):
            return f"'{name}' of {part.dtype} for tokens of {x_t.dtype}"
        if part.device != x_t.device:
            return f"'{name}' on {part.device} for tokens on {x_t.device}"
    if len(state) > len(layout):
        unknown = [name for name in state if name not in layout and name != _PADDING]
        if unknown:
            return f"one with '{unknown[0]}'"
    return None


def select(
    rows: Tensor, chosen: dict[str, Tensor], other: dict[str, Tensor], mixer: str
) -> dict[str, Tensor]:
    """Select the state `chosen` for the sequences in `rows`, and `other` for the rest.

    Raises:
        InputError: the states of the mixer grow with the tokens, so they differ in size.
    """
    if rows.all():
        return chosen
    if any(other[name].shape != chosen[name].shape for name in other):
        raise bad_argument(
            "key_padding_mask",
            f"equal numbers of valid tokens, since the state of {mixer} grows",
            "different numbers",
            "prefill sequences of equal length together, or implement `fill_stream`",
        )
    return {
        name: torch.where(rows.view(-1, *(1,) * (part.dim() - 1)), part, other[name])
        for name, part in chosen.items()
    }


def fill_by_steps(
    step: Step, x: Tensor, key_padding_mask: Tensor | None, state: dict[str, Tensor], mixer: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mix a prompt token by token.

    Args:
        step: `TokenMixer.step`.
        x: (B, N, C) prompt.
        key_padding_mask: (B, N) bools, True = padding, or None.
        state: state before the prompt.
        mixer: name of the mixer, for errors.

    Returns:
        (B, N, C) mixed tokens, and the state after the prompt.
    """
    if key_padding_mask is None:
        outputs = []
        for x_t in x.unbind(1):
            y_t, state = step(x_t, state)
            outputs.append(y_t)
        return torch.stack(outputs, 1), state
    moved, mask, order = move_padding_last(x, key_padding_mask)
    y = torch.zeros_like(x)
    for n in range(int((~mask).sum(1).max())):
        y[:, n], after = step(moved[:, n], state)
        state = select(~mask[:, n], after, state, mixer)
    return move_padding_back(y, order), state


def numbers_in(state: dict[str, Tensor], cached: int) -> int:
    """Count the numbers of a state except `position`; axes of size 0 count `cached` tokens."""
    shapes = (part.shape for name, part in state.items() if name != "position")
    return sum(math.prod(size or cached for size in shape) for shape in shapes)


def foreign_state(mixer: str, got: str) -> InputError:
    """Return the error for a state that does not belong to a mixer."""
    expected = f"a state from init_state or step of {mixer} with these settings"
    return bad_argument("state", expected, got)


def _widens(dtype: torch.dtype, first: torch.dtype, x_t: Tensor) -> bool:
    """Check that `dtype` may follow the dtype `first` of a stream.

    A sum with fewer bits than the tokens gets the dtype of the tokens after one step. Autocast
    allows any dtype of the same kind.
    """
    if _kind(dtype) != _kind(first):
        return False
    wanted = torch.promote_types(first, x_t.dtype) if first.is_floating_point else first
    return torch.promote_types(dtype, wanted) == wanted or autocast_enabled(x_t.device.type)


def _kind(dtype: torch.dtype) -> tuple[bool, bool]:
    return dtype.is_floating_point, dtype.is_complex
