"""RandAugment: some changes of an image, drawn from fourteen, all of one strength."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_TOP_STRENGTH = 30
_LUMA = (0.299, 0.587, 0.114)


def rand_augment(
    levels: Tensor, generator: np.random.Generator, *, changes: int = 2, strength: float = 14
) -> Tensor:
    """Apply `changes` operations to an image, each drawn anew.

    Args:
        levels: (channels, height, width) whole numbers from 0 to 255, floating-point.
        generator: draws the operations and their signs.
        changes: how many.
        strength: of all, from 0 to 30.

    Returns:
        Levels of the same shape; what comes in from outside is black.

    Source: Cubuk et al. 2020, "RandAugment", section 3 and its list of transformations.
    """
    share = strength / _TOP_STRENGTH
    for _ in range(changes):
        change = OPERATIONS[int(generator.integers(len(OPERATIONS)))]
        sign = 1.0 if generator.integers(2) else -1.0
        levels = change(levels, share, sign).clamp(0, 255).round()
    return levels


Operation = Callable[[Tensor, float, float], Tensor]
"""Levels, strength from 0 to 1, sign -> levels, which may lie outside or between."""


def identity(levels: Tensor, share: float, sign: float) -> Tensor:
    """The image unchanged."""
    return levels


def auto_contrast(levels: Tensor, share: float, sign: float) -> Tensor:
    """Each channel stretched to 0 to 255; one of a single level stays."""
    low, high = levels.amin((1, 2), keepdim=True), levels.amax((1, 2), keepdim=True)
    stretched = ((levels - low) * (255.0 / (high - low).clamp(min=1.0))).floor()
    return torch.where(high > low, stretched, levels)


def equalize(levels: Tensor, share: float, sign: float) -> Tensor:
    """Each channel's levels made equally frequent, as far as whole levels can be."""
    return torch.stack([_equalized(channel) for channel in levels])


def _equalized(channel: Tensor) -> Tensor:
    counts = torch.bincount(channel.flatten().long(), minlength=256)
    step = int(counts.sum() - counts[counts > 0][-1]) // 255
    if step == 0:
        return channel
    table = ((counts.cumsum(0) - counts + step // 2) // step).clamp(max=255)
    return table.to(channel.dtype)[channel.long()]


def rotate(levels: Tensor, share: float, sign: float) -> Tensor:
    """Against the clock about the centre, by up to 30 degrees."""
    angle = math.radians(sign * 30.0 * share)
    cos, sin = math.cos(angle), math.sin(angle)
    y, x = (0.5 * size for size in levels.shape[1:])
    return _moved(levels, (cos, -sin, x - cos * x + sin * y), (sin, cos, y - sin * x - cos * y))


def shear_x(levels: Tensor, share: float, sign: float) -> Tensor:
    """Rows shifted by up to 0.3 of their position."""
    return _moved(levels, (1.0, sign * 0.3 * share, 0.0), (0.0, 1.0, 0.0))


def shear_y(levels: Tensor, share: float, sign: float) -> Tensor:
    """Columns shifted by up to 0.3 of their position."""
    return _moved(levels, (1.0, 0.0, 0.0), (sign * 0.3 * share, 1.0, 0.0))


def translate_x(levels: Tensor, share: float, sign: float) -> Tensor:
    """Shifted sideways by up to 150/331 of the width."""
    return _moved(levels, (1.0, 0.0, round(sign * share * 150 / 331 * levels.shape[2])), _ROWS)


def translate_y(levels: Tensor, share: float, sign: float) -> Tensor:
    """Shifted up or down by up to 150/331 of the height."""
    return _moved(levels, _COLUMNS, (0.0, 1.0, round(sign * share * 150 / 331 * levels.shape[1])))


_COLUMNS, _ROWS = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)


def _moved(
    levels: Tensor, to_x: tuple[float, float, float], to_y: tuple[float, float, float]
) -> Tensor:
    """Every pixel from the nearest to (a x + b y + c, d x + e y + f), at pixel centres."""
    height, width = levels.shape[1:]
    y = torch.arange(height, dtype=torch.float64).unsqueeze(1) + 0.5
    x = torch.arange(width, dtype=torch.float64) + 0.5
    column = (to_x[0] * x + to_x[1] * y + to_x[2]).floor().long()
    row = (to_y[0] * x + to_y[1] * y + to_y[2]).floor().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    found = levels[:, row.clamp(0, height - 1), column.clamp(0, width - 1)]
    return found * inside


def posterize(levels: Tensor, share: float, sign: float) -> Tensor:
    """The lowest bits set to 0: up to 4 of the 8."""
    step = float(2 ** round(4 * share))
    return (levels / step).floor() * step


def solarize(levels: Tensor, share: float, sign: float) -> Tensor:
    """Levels from a threshold on, which falls from 255 to 0, turned into their negatives."""
    return torch.where(levels >= 255.0 * (1.0 - share), 255.0 - levels, levels)


def brightness(levels: Tensor, share: float, sign: float) -> Tensor:
    """Away from black or towards it."""
    return _blended(torch.zeros_like(levels), levels, share, sign)


def color(levels: Tensor, share: float, sign: float) -> Tensor:
    """Away from gray or towards it."""
    return _blended(_gray(levels).expand_as(levels), levels, share, sign)


def contrast(levels: Tensor, share: float, sign: float) -> Tensor:
    """Away from the mean of the gray image or towards it."""
    mean = (_gray(levels).mean() + 0.5).floor()
    return _blended(mean.expand_as(levels), levels, share, sign)


def sharpness(levels: Tensor, share: float, sign: float) -> Tensor:
    """Away from a smoothed image or towards it; the outermost pixels stay."""
    kernel = levels.new_tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13.0
    smooth = levels.clone()
    inner = F.conv2d(levels.unsqueeze(1), kernel.view(1, 1, 3, 3))[:, 0]
    smooth[:, 1:-1, 1:-1] = inner.round()
    return _blended(smooth, levels, share, sign)


def _gray(levels: Tensor) -> Tensor:
    if len(levels) == 1:
        return levels
    weights = levels.new_tensor(_LUMA).view(3, 1, 1)
    return (levels * weights).sum(0, keepdim=True).round()


def _blended(other: Tensor, levels: Tensor, share: float, sign: float) -> Tensor:
    return other + (1.0 + sign * 0.9 * share) * (levels - other)


OPERATIONS: tuple[Operation, ...] = (
    identity,
    auto_contrast,
    equalize,
    rotate,
    solarize,
    color,
    posterize,
    contrast,
    brightness,
    sharpness,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)
