"""Settings and shapes of Pathfinder images, and antialiased drawing of the shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Directions are integer parts of a turn. A table gives the same vectors on every CPU.
TURN = 4096


@dataclass(frozen=True)
class Scene:
    """Settings of the generated images. Lengths are in pixels.

    Attributes:
        size: height and width of the image.
        contour_length: number of dashes in each of the two long contours.
        num_distractors: number of short contours.
        distractor_length: number of dashes in each short contour.
        paddle_length: length of a dash.
        paddle_thickness: thickness of a dash.
        gap: distance between two consecutive dashes of a contour.
        clearance: minimum distance between the middle lines of two contours. A grid with cells of
            a quarter of the clearance enforces it.
        continuity: straightness. A bend is at most 60 degrees / continuity.
        contrast: brightness of a dash relative to a disc. Over 1, thin dashes are more visible.
        marker_radius: radius of the two discs.
        disc_distance: minimum distance between the two discs.
        border: width of the empty frame.
    """

    size: int
    contour_length: int
    num_distractors: int
    distractor_length: int
    paddle_length: float
    paddle_thickness: float
    gap: float
    clearance: float
    continuity: float
    contrast: float
    marker_radius: float
    disc_distance: float
    border: float

    @property
    def lag(self) -> int:
        """Number of latest dashes that do not block the next dash.

        The next dash may be closer to these dashes than the clearance.
        """
        return 2 + int(self.clearance // (self.paddle_length + self.gap))

    @property
    def max_bend(self) -> int:
        """Maximum bend between two dashes, in units of 1 / 4,096 turn."""
        return round(TURN / 6 / self.continuity)

    @property
    def look_ahead(self) -> float:
        """Distance between the heads of two dashes in a line, in dash lengths."""
        return 1 + self.gap / self.paddle_length

    @property
    def extent(self) -> float:
        """Maximum extent of a long contour in the image."""
        return min(self.size, self.contour_length * (self.paddle_length + self.gap))

    @property
    def disc_clearance(self) -> float:
        """Minimum distance between the center of a disc and other contours."""
        return self.marker_radius + self.clearance / 2


class Pictures(NamedTuple):
    """The shapes to draw in S images.

    Attributes:
        dashes: (S, T, 2, 2) both ends of every dash, as x and y.
        discs: (S, 2, 2) centers of both discs.
        labels: (S,) 1 if both discs are on one contour, else 0.
    """

    dashes: Floats
    discs: Floats
    labels: NDArray[np.uint8]


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
    return middle + half * np.maximum(1 - np.float32(radius) / length, 0)


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
    return np.sqrt(np.square(offset - part[..., None] * along).sum(axis=-1))
