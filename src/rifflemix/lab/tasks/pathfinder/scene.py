"""Settings and shapes of Pathfinder images."""

from __future__ import annotations

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
