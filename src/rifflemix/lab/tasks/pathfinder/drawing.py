"""Antialiased drawing of dashes and discs into batches of gray images."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_PIXELS_AT_ONCE = 1 << 22


def draw_images(
    dashes: Floats, discs: Floats, *, size: int, thickness: float, radius: float, contrast: float
) -> NDArray[np.uint8]:
    """Draw dashes and discs into gray images.

    The brightness of a pixel is the share of its area that a shape covers. The total brightness of
    a dash is proportional to its area, even if the dash is thinner than a pixel.

    Args:
        dashes: (S, T, 2, 2) both ends of each dash, round caps included, as x and y in pixels.
        discs: (S, D, 2) centers of the discs.
        size: height and width of the images.
        thickness: thickness of a dash.
        radius: radius of a disc.
        contrast: brightness of a dash relative to a disc. Values over white are clipped.

    Returns:
        (S, size, size) uint8, black 0 and white 255.
    """
    images = np.empty((len(dashes), size, size), dtype=np.uint8)
    step = max(1, _PIXELS_AT_ONCE // size**2)
    for start in range(0, len(dashes), step):
        part = slice(start, start + step)
        light = contrast * _light(_shortened(dashes[part], thickness / 2), thickness / 2, size)
        light += _light(np.repeat(discs[part, :, None], 2, axis=2), radius, size)
        images[part] = np.minimum(light * 255 + 0.5, 255).reshape(-1, size, size)
    return images


def _shortened(dashes: Floats, radius: float) -> Floats:
    """Shorten dashes to make room for their round caps."""
    middle = dashes.mean(axis=2, keepdims=True)
    half = dashes - middle
    length = np.sqrt(np.square(half).sum(axis=-1, keepdims=True))
    shortened: Floats = middle + half * np.maximum(1 - np.float32(radius) / length, 0)
    return shortened


def _light(segments: Floats, radius: float, size: int) -> NDArray[np.float64]:
    """Compute the covered share of each pixel.

    Args:
        segments: (S, T, 2, 2) both ends of each segment.
        radius: half of the thickness of a segment.
        size: height and width of the images.

    Returns:
        (S * size * size,) sums over all segments.
    """
    count = len(segments)
    ends = segments.reshape(-1, 1, 1, 2, 2)
    reach = radius + 0.5
    # Each segment is drawn in a square of pixels that fits the longest segment.
    extent = float(np.abs(ends[..., 0, :] - ends[..., 1, :]).max(initial=0))
    side = math.ceil(extent + 2 * reach) + 1
    corner = np.floor(ends.min(axis=3) - np.float32(reach)).astype(np.int64)
    pixels = corner + np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1)
    most = np.float32(min(1.0, 2 * radius))
    cover = np.clip(np.float32(reach) - _distance(pixels + np.float32(0.5), ends), 0, most)
    image = np.repeat(np.arange(count), segments.shape[1])[:, None, None]
    position = (image * size + pixels[..., 1]) * size + pixels[..., 0]
    drawn = (cover > 0) & ((pixels >= 0) & (pixels < size)).all(axis=-1)
    total = np.bincount(position[drawn], weights=cover[drawn], minlength=count * size * size)
    return np.asarray(total, dtype=np.float64)


def _distance(points: Floats, ends: Floats) -> Floats:
    """Compute the distances of points from segments.

    Args:
        points: (M, P, P, 2).
        ends: (M, 1, 1, 2, 2) both ends of each segment.
    """
    points = points.astype(np.float32)
    start, along = ends[..., 0, :], ends[..., 1, :] - ends[..., 0, :]
    offset = points - start
    square = np.maximum(np.square(along).sum(axis=-1), np.float32(1e-12))
    part = np.clip((offset * along).sum(axis=-1) / square, 0, 1)
    distance: Floats = np.sqrt(np.square(offset - part[..., None] * along).sum(axis=-1))
    return distance
