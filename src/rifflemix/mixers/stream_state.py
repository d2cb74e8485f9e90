"""Streaming states: whether a state belongs to a mixer, and a choice between two states.

The check of names, dtypes and sizes runs at every step, so it uses plain loops. It takes two to
three microseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.checks import autocast_enabled
from rifflemix.errors import bad_argument

Layout = dict[str, tuple[int, list[tuple[int, int]], torch.dtype]]
"""For each tensor: number of dimensions, fixed axes with their sizes, and dtype."""

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
