"""Blocks and pictures of docs/pathfinder.md."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from common import ASSETS
from numpy.typing import NDArray
from PIL import Image

from rifflemix.lab.tasks.synthetic.pathfinder import PRESETS, PathfinderMaker, scenes_of
from rifflemix.text import Markdown, code, table_lines

_SIZES, _GRAY = (32, 64, 128, 256), 90
_LONGEST = "curv_contour_length_14"
_SETTINGS = (
    "paddle_length", "paddle_thickness", "gap", "clearance", "continuity", "contrast",
    "marker_radius", "disc_distance",
)  # fmt: skip
# Size of the images, preset, images in a row, and pixels of the picture per pixel.
_SHEET = ((32, "curv_contour_length_9", 9, 2), (32, _LONGEST, 9, 2), (128, _LONGEST, 5, 1))


def strip(size: int, preset: str, columns: int, scale: int) -> NDArray[np.uint8]:
    """Draw a row of images with joined discs above a row with separate discs."""
    images, labels = PathfinderMaker(scenes_of(size, {"preset": preset}), 0, 0)(0, 8 * columns)
    rows = [
        np.concatenate([np.pad(image, 1, constant_values=_GRAY) for image in chosen], axis=1)
        for chosen in (images[labels == label][:columns] for label in (1, 0))
    ]
    return np.concatenate(rows).repeat(scale, axis=0).repeat(scale, axis=1)


def files() -> dict[Path, bytes]:
    """Draw the PNG file of the page."""
    strips = [strip(*of) for of in _SHEET]
    width = max(strip.shape[1] for strip in strips)
    right = [np.pad(s, ((0, 4), (0, width - s.shape[1])), constant_values=_GRAY) for s in strips]
    content = io.BytesIO()
    Image.fromarray(np.concatenate(right)).save(content, "png", optimize=True)
    return {ASSETS / "pathfinder.png": content.getvalue()}


def settings(*_: object) -> str:
    """Write the settings of each size, for all presets."""
    scenes = {
        preset: [scenes_of(size, {"preset": preset}) for size in _SIZES] for preset in PRESETS
    }
    rows = [
        [Markdown(f"dashes, `{preset}`"), *(
            f"2 x {s.contour_length}, {s.num_distractors} x {s.distractor_length}" for s, *_ in row
        )]
        for preset, row in scenes.items()
    ]  # fmt: skip
    for name in _SETTINGS:
        values = [[f"{getattr(scene, name):g}" for scene in each] for each in scenes[_LONGEST]]
        rows.append([Markdown(code(name)), *(" or ".join(dict.fromkeys(of)) for of in values)])
    headers = ["setting", *(f"{size}x{size}" for size in _SIZES)]
    return "\n".join(table_lines(headers, rows))


WRITERS = {"settings": settings}
