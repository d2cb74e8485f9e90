"""Blocks and pictures of docs/pathfinder.md."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import ASSETS, DOCS, cite
from numpy.typing import NDArray
from PIL import Image
from store import load, names, newest

from rifflemix.lab.tasks.synthetic.pathfinder import CURRICULUM, PRESETS, PathfinderMaker, scenes_of
from rifflemix.text import table_lines

_PAGE = DOCS / "pathfinder.md"
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


def settings() -> str:
    """Write the settings of each size, for all presets."""
    scenes = {
        preset: [scenes_of(size, {"preset": preset}) for size in _SIZES] for preset in PRESETS
    }
    rows = [
        [f"dashes, `{preset}`", *(
            f"2 x {s.contour_length}, {s.num_distractors} x {s.distractor_length}" for s, *_ in row
        )]
        for preset, row in scenes.items()
    ]  # fmt: skip
    rows += [[f"`{name}`", *(_values(each, name) for each in scenes[_LONGEST])]
             for name in _SETTINGS]  # fmt: skip
    return _table(["", *(f"{size}x{size}" for size in _SIZES)], rows)


def curriculum() -> str:
    """Write the steps to Path-X."""
    columns = ("contour_length", "num_distractors", "gap", "contrast")
    rows = []
    for number, (task, options) in enumerate(CURRICULUM.values(), start=1):
        size = 128 if task == "pathx" else int(task.removeprefix("pathfinder"))
        scenes = scenes_of(size, {"preset": _LONGEST, **options})
        rows.append([str(number), f"`{task}`", *(_values(scenes, name) for name in columns)])
    return _table(["step", "task", *(f"`{name}`" for name in columns)], rows)


def _values(scenes: Iterable[Any], name: str) -> str:
    return " or ".join(dict.fromkeys(f"{getattr(scene, name):g}" for scene in scenes))


def _table(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def cnn() -> str:
    """Write the accuracy of the convolutional network."""
    result = newest("pathfinder-cnn-*")
    content = result.content
    rows = [
        [f"`{row['set']}`", f"{100 * row['accuracy']:.1f} %", f"{row['test_images']:,}",
         f"{row['cpu_seconds'] / 60:.1f}", f"{row['images_seen']:,}"]
        for row in content["results"]
    ]  # fmt: skip
    headers = ["set", "test accuracy", "test images", "processor minutes", "images seen"]
    source = f"{content['parameters']:,} parameters, one core of {_cpu(content)}"
    return f"{_table(headers, rows)}\n\n{source}; from {cite(_PAGE, result)}."


def _cpu(content: Mapping[str, Any]) -> str:
    return str(content["environment"]["hardware"]["cpu"])


def attention() -> str:
    """Write the accuracy of small models with attention and without mixing."""
    found = [load(name) for name in sorted(names("pathfinder-patches-*"))]
    first = found[0].content
    headers = ("dashes of a contour", "bends", "distractors",
               *(mixer["name"] for mixer in first["mixers"]))  # fmt: skip
    rows = [
        (
            f"{options['contour_length']} of {options['paddle_length']:g} pixels",
            f"to {60 / options['continuity']:g} degrees",
            str(options["num_distractors"]),
            *(f"{_score(mixer, result.content)} %" for mixer in result.content["mixers"]),
        )
        for result in found
        for options in [result.content["task"]["options"]]
    ]
    train, tuned = first["config"]["train"], first["config"]["tuned"]["lr"]
    trials = [trial for result in found for trial in result.content["tuning"]["trials"]]
    minutes = max(trial["wall_seconds"] for trial in trials) / 60
    source = (
        f"Test accuracy and the standard error of {first['task']['sizes']['test']:,} images, of "
        f"the learning rate that validation chose among {len(tuned)}: one seed, "
        f"{train['max_steps']:,} steps of {train['batch_size']}, at most {minutes:.1f} minutes of "
        f"a core of {_cpu(first)}, on a machine with other work. From "
        f"{', '.join(cite(_PAGE, result) for result in found)}:"
    )
    commands = [result.content["command"] for result in found]
    return "\n".join([*table_lines(headers, rows), "", source, "", "```", *commands, "```"])


def _score(mixer: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Format the test accuracy in percent and the standard error of the finite split."""
    share = mixer["test"]["mean"]
    error = (share * (1 - share) / content["task"]["sizes"]["test"]) ** 0.5
    return f"{100 * share:.1f} ± {100 * error:.1f}"


TABLES: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "curriculum": curriculum,
    "cnn": cnn,
    "attention": attention,
}
