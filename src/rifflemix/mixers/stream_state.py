"""Whether the state of a stream is one of this mixer: names, kinds and sizes of its tensors.

Asked at every step, hence the plain loops: two to three microseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

Layout = dict[str, tuple[int, list[tuple[int, int]], torch.dtype]]
"""Of each tensor its dimensions, the axes that keep their size and this size, and its type."""

_PADDING = "padding"
"""What a prompt with padding adds to the state of a cache (`_attention/cache.py`)."""


def layout_of(state: dict[str, Tensor]) -> Layout:
    """The layout of all states that follow one before the first token: sizes of 0 will grow."""
    return {
        name: (
            part.dim(),
            [(axis, size) for axis, size in enumerate(part.shape) if axis and size],
            part.dtype,
        )
        for name, part in state.items()
    }


def misfit(state: dict[str, Tensor], layout: Layout, rows: int) -> str | None:
    """What is wrong with a state of so many sequences; None where it fits."""
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
        if part.dtype != dtype and _kind(part.dtype) != _kind(dtype):
            return f"'{name}' of {part.dtype}"
    if len(state) > len(layout):
        unknown = [name for name in state if name not in layout and name != _PADDING]
        if unknown:
            return f"one with '{unknown[0]}'"
    return None


def _kind(dtype: torch.dtype) -> tuple[bool, bool]:
    return dtype.is_floating_point, dtype.is_complex
