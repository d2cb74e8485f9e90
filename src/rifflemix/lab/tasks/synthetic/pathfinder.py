"""Pathfinder and Path-X of the Long Range Arena: does a dashed contour join two discs?

Source: Linsley et al., Learning long-range spatial dependencies with horizontal gated recurrent
units (2018). The settings of the four sizes come from Tay et al., Long Range Arena (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Sample, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer, check_number, check_one_of
from rifflemix.lab.tasks.core.card import TaskCard, TaskStatus
from rifflemix.lab.tasks.core.generated import GeneratedTask, Streams, refuse_generator_options
from rifflemix.lab.tasks.data_io.files import cache_root
from rifflemix.lab.tasks.data_io.shards import ShardedImages, check_room, prepare_shards
from rifflemix.lab.tasks.images.image_files import PixelInputs, PixelScale
from rifflemix.lab.tasks.images.pixels import pixel_shapes
from rifflemix.lab.tasks.synthetic.contours import draw_scenes
from rifflemix.lab.tasks.synthetic.pathfinder_files import find_release, load_release
from rifflemix.lab.tasks.synthetic.scene import Scene, draw_images

PATCH_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class PatchedImages:
    """Split with patch vectors instead of pixel tokens.

    Attributes:
        images: split with pixels as tokens.
        inputs: conversion of the pixels to patches.
    """

    images: ShardedImages
    inputs: PixelInputs

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        """Return the patches of an image, and its label.

        The patches are (N, patch_size**2) float32 in row order, with black 0 and white 1.
        """
        pixels, label = self.images[index]
        shape = (1, self.inputs.height, self.inputs.width)
        return self.inputs.convert(pixels.numpy().reshape(shape))[0], label

    def digest(self) -> bytes:
        return self.images.digest()


PRESETS = {"curv_baseline": 6, "curv_contour_length_9": 9, "curv_contour_length_14": 14}
"""Dashes per long contour in the three sets of the Long Range Arena, easy to hard."""

CURRICULUM: dict[str, tuple[str, dict[str, Any]]] = {
    "32": ("pathfinder32", {"preset": "curv_contour_length_14"}),
    "64": ("pathfinder64", {"preset": "curv_contour_length_9"}),
    "128-d5-g1": ("pathfinder128", {"num_distractors": 5, "gap": 1.0, "contrast": 0.9}),
    "128-d5-g2": ("pathfinder128", {"num_distractors": 5, "gap": 2.0, "contrast": 0.9}),
    "128-d14": ("pathfinder128", {"num_distractors": 14, "gap": [2.0, 3.0], "contrast": 0.8}),
    "128-d20": ("pathfinder128", {"num_distractors": 20, "gap": [2.0, 3.0], "contrast": 0.73}),
    "128": ("pathx", {"preset": "curv_contour_length_14"}),
}
"""Task and options of the seven steps to Path-X.

The paper also generates the four steps in the middle. Source: Dimension Mixer, Table 6.
"""

_SCALE = PixelScale(top=255, mean=(0.0,), std=(1.0,))
# Part of the cache folder names. Increase it when the generated images change.
_VERSION = 2
_WHAT = "generating {title}, {split}"


@dataclass(frozen=True)
class _Look:
    """The Long Range Arena's settings for one image size.

    Attributes:
        paddle_length, paddle_thickness, continuity, contrast: see `Scene`.
        gaps: values of `Scene.gap`. Each image uses one of them, drawn at random.
        marker_radius, disc_distance, border: see `Scene`.
        distractor_dashes: total number of dashes in all distractors.
    """

    paddle_length: float
    paddle_thickness: float
    gaps: tuple[float, ...]
    continuity: float
    contrast: float
    marker_radius: float
    disc_distance: float
    border: float
    distractor_dashes: int


# Contrast at 32 pixels is 0.75 (paddles) times 2 (snakes): the original generator multiplies them.
_LOOKS = {
    32: _Look(2.0, 0.5, (1.0,), 1.0, 1.5, 1.5, 7.0, 1.0, 20),
    64: _Look(5.0, 1.0, (1.0,), 1.8, 0.8, 2.5, 12.0, 1.0, 22),
    128: _Look(5.0, 1.5, (2.0, 3.0), 1.8, 0.9, 3.0, 20.0, 1.0, 35),
    256: _Look(5.0, 2.0, (3.0,), 1.8, 1.0, 5.0, 27.0, 22.0, 30),
}
_NUMBERS = ("paddle_length", "paddle_thickness", "continuity", "contrast")
_MOST_CONTRAST = 4.0
_MOST_GAPS = 16
_GENERATOR_OPTIONS = ("contour_length", "num_distractors", "gap", *_NUMBERS)


@dataclass(frozen=True)
class PathfinderMaker:
    """Generator of images by number.

    Each image depends only on its number, the seed, the split and the scenes.

    Attributes:
        scenes: scenes that differ only in the gap and its clearance. Each image uses one of them,
            drawn at random.
        seed: seed of all images.
        part: number of the split.
    """

    scenes: tuple[Scene, ...]
    seed: int
    part: int

    def __call__(self, first: int, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return images (count, size, size) and labels (count,) from number `first` on."""
        streams = Streams(self.seed, self.part, np.arange(first, first + count))
        kinds = np.zeros(count, dtype=np.int64)
        if len(self.scenes) > 1:
            random = streams.uniform(np.arange(count), 1)[:, 0]
            kinds = (random * np.float32(len(self.scenes))).astype(np.int64)
        size = self.scenes[0].size
        images = np.empty((count, size, size), dtype=np.uint8)
        labels = np.empty(count, dtype=np.uint8)
        for kind, scene in enumerate(self.scenes):
            rows = np.flatnonzero(kinds == kind)
            if len(rows):
                images[rows], labels[rows] = _draw(streams.of(rows), len(rows), scene)
        return images, labels


def _draw(
    streams: Streams, count: int, scene: Scene
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    pictures = draw_scenes(streams, count, scene)
    images = draw_images(
        pictures.dashes,
        pictures.discs,
        size=scene.size,
        thickness=scene.paddle_thickness,
        radius=scene.marker_radius,
        contrast=scene.contrast,
    )
    return images, pictures.labels


class Pathfinder(GeneratedTask):
    """Pathfinder at one image size."""

    def __init__(self, name: str, title: str, size: int) -> None:
        self.size = size
        self.card = TaskCard(
            name=name,
            title=title,
            source=(
                "generated, after Linsley et al. (2018) with the settings of the Long Range Arena "
                "(Tay et al., 2021)"
            ),
            licence="generated, free of rights",
            description=(
                f"{size}x{size} gray images, one token per pixel: {size**2:,} tokens with 256 "
                "levels. patch_size 2 to 16: patches as vectors. Label 1 if one dashed contour "
                "joins the two discs, 0 if each disc is on a different contour. preset: "
                f"{', '.join(PRESETS)}. It sets all unset options at this size. If gap is a list, "
                "each image draws one of its values. If --data-dir contains the Long Range "
                f"Arena's folder pathfinder{size}, it is read instead, at most num_train, "
                "num_validation and num_test images."
            ),
            needs_data=False,
            is_image=True,
            options={
                "patch_size": 1,
                "preset": "curv_contour_length_14",
                **dict.fromkeys(_GENERATOR_OPTIONS),
                "num_train": 160_000,
                "num_validation": 20_000,
                "num_test": 20_000,
            },
            shapes=partial(pixel_shapes, classes=2, channels=1, side=size),
        )

    def load(self, request: Request) -> Task:
        """Load the task. Generating or reading resumes after an interruption."""
        patch_size = check_one_of(request.options, "patch_size", PATCH_SIZES)
        check_choice("preset", request.options["preset"], PRESETS)
        counts = {name: request.count(name) for name in SPLITS}
        release = find_release(request.data_dir, self.size, str(request.options["preset"]))
        if release is not None:
            refuse_generator_options(request, _GENERATOR_OPTIONS)
            splits, source = load_release(self.card, release, counts, request)
            options = {k: v for k, v in request.options.items() if k not in _GENERATOR_OPTIONS}
        else:
            scenes = scenes_of(self.size, request.options)
            splits, source = self._generate(scenes, counts, request), "generated"
            options = {**request.options, **_scene_options(scenes), "seed": request.seed}
        inputs = PixelInputs(self.size, self.size, _SCALE, patch_size, as_tokens=patch_size == 1)
        return Task(
            name=self.card.name,
            options=options,
            **pixel_shapes(options, classes=2, channels=1, side=self.size).for_task(),
            split_note=(
                "80 / 10 / 10 % train / validation / test, by a hash of the file names"
                if release
                else "validation is a split of its own, drawn apart from training and test"
            ),
            data_source=source,
            splits=splits
            if patch_size == 1
            else {name: PatchedImages(split, inputs) for name, split in splits.items()},
            inputs=inputs,
            classes=("apart", "joined"),
        )

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Report the task as available. Missing images are generated."""
        found = [find_release(data_dir, self.size, preset) for preset in PRESETS]
        names = [release.preset for release in found if release]
        if names:
            return TaskStatus(self.card.name, True, f"{', '.join(names)} in {data_dir}")
        return self.status_of_kept(cache_root() / f"pathfinder{self.size}")

    def prepared(self, request: Request) -> Path:
        check_one_of(request.options, "patch_size", PATCH_SIZES)
        check_choice("preset", request.options["preset"], PRESETS)
        release = find_release(request.data_dir, self.size, str(request.options["preset"]))
        if release is not None:
            return release.folder
        return self._folder(scenes_of(self.size, request.options), request.seed)

    def _generate(
        self, scenes: tuple[Scene, ...], counts: Mapping[str, int], request: Request
    ) -> dict[str, ShardedImages]:
        folder = self._folder(scenes, request.seed)
        check_room(folder, sum(counts.values()) * self.size**2)
        splits = {}
        for name in reversed(SPLITS):
            images, labels = prepare_shards(
                folder / name,
                PathfinderMaker(scenes, request.seed, SPLITS.index(name)),
                counts[name],
                request.progress,
                _WHAT.format(title=self.card.title, split=name),
            )
            splits[name] = ShardedImages(images, labels, np.arange(counts[name]))
        return splits

    def _folder(self, scenes: tuple[Scene, ...], seed: int) -> Path:
        # Path-X and Pathfinder-128 use the same images, so they share the folder.
        fields = zip(*(asdict(scene).values() for scene in scenes), strict=True)
        values = "-".join("+".join(dict.fromkeys(f"{v:g}" for v in each)) for each in fields)
        return (
            cache_root()
            / f"pathfinder{self.size}"
            / f"generated-v{_VERSION}-seed{seed}-contour{scenes[0].contour_length}-{values}"
        )


def scenes_of(size: int, options: Mapping[str, Any]) -> tuple[Scene, ...]:
    """Create the scenes for an image size from a preset and options.

    Args:
        size: 32, 64, 128 or 256.
        options: "preset" and the options of the generator. None selects the value of the preset.

    Returns:
        One scene per gap.

    Raises:
        InputError: an option is out of range.
    """
    look = _LOOKS[size]
    preset = PRESETS[str(options["preset"])]
    values = {
        name: getattr(look, name) if options.get(name) is None else check_number(options, name)
        for name in _NUMBERS
    }
    if not values["contrast"] <= _MOST_CONTRAST:
        raise bad_argument(
            "contrast", f"more than 0, at most {_MOST_CONTRAST:g}", values["contrast"]
        )
    for name in ("paddle_length", "paddle_thickness"):
        _check_pixels(name, values[name], size)
    if not 0.25 <= values["continuity"] <= 100:
        raise bad_argument("continuity", "0.25 to 100", values["continuity"])
    length = preset
    if options.get("contour_length") is not None:
        length = check_integer(options, "contour_length", 3, 100)
    short = max(length // 3, 1)
    if options.get("num_distractors") is None:
        number = look.distractor_dashes // short
    else:
        number = check_integer(options, "num_distractors", 0, 1000)
    return tuple(
        Scene(
            size=size,
            contour_length=length,
            num_distractors=number,
            distractor_length=short,
            gap=gap,
            # Two contours keep a greater distance than the dashes of one contour.
            clearance=gap + max(gap, values["paddle_thickness"]),
            marker_radius=look.marker_radius,
            disc_distance=look.disc_distance,
            border=look.border,
            **values,
        )
        for gap in _gaps(options, look, size)
    )


def _gaps(options: Mapping[str, Any], look: _Look, size: int) -> tuple[float, ...]:
    given = options.get("gap")
    if given is None:
        return look.gaps
    several = given if isinstance(given, list | tuple) else [given]
    gaps = tuple(check_number({"gap": gap}, "gap") for gap in several)
    if not 0 < len(gaps) <= _MOST_GAPS or len(set(gaps)) < len(gaps):
        raise bad_argument("gap", f"a number, or 1 to {_MOST_GAPS} different ones", repr(given))
    for gap in gaps:
        _check_pixels("gap", gap, size)
    return gaps


def _check_pixels(name: str, value: float, size: int) -> None:
    if not 0.25 <= value <= size / 4:
        raise bad_argument(name, f"0.25 to {size / 4:g} pixels", value)


def _scene_options(scenes: tuple[Scene, ...]) -> dict[str, Any]:
    gaps = [scene.gap for scene in scenes]
    options = {name: getattr(scenes[0], name) for name in _GENERATOR_OPTIONS}
    return {**options, "gap": gaps[0] if len(gaps) == 1 else gaps}
