"""Point clouds, and examples of other kinds of data: series, sets of labels, motifs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import SPLITS, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import Budget, Shapes, TaskCard
from rifflemix.lab.tasks.core.generated import GeneratedTask
from rifflemix.lab.tasks.core.kinds import FORECAST, MASKED_TOKEN, MULTILABEL, Kind
from rifflemix.lab.tasks.data_io.files import Array, Arrays, cache_root, cached_arrays
from rifflemix.lab.tasks.images.digits import read_digits
from rifflemix.lab.tasks.user_data.arrays import from_arrays_once

_VERSION = 1

Points = NDArray[np.float64]
Generator = np.random.Generator

_TETRAHEDRON = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=np.float64)
_OCTAHEDRON = np.array(
    [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], dtype=np.float64
)


def _shapes(options: Mapping[str, Any]) -> Shapes:
    return Shapes(
        input_kind="vectors",
        num_classes=len(BODIES),
        max_length=int(options["num_points"]),
        num_features=3,
    )


class PointClouds(GeneratedTask):
    """Eight kinds of randomly rotated solids. Every sample has its own seed."""

    card = TaskCard(
        name="point_clouds",
        title="Point clouds",
        source="generated (synthetic: no scans, no ModelNet)",
        licence="Apache-2.0, as this package",
        description=(
            "Points drawn evenly over the surface of a sphere, cube, tetrahedron, octahedron, "
            "cylinder, cone, torus or along a helix, with proportions and a rotation drawn at "
            "random, centred, scaled to radius 1, and blurred by noise. Synthetic data."
        ),
        needs_data=False,
        options={
            "num_points": 256,
            "noise": 0.02,
            "num_train": 4000,
            "num_validation": 800,
            "num_test": 800,
        },
        shapes=_shapes,
    )

    def load(self, request: Request) -> Task:
        """Create the task. Draw and cache its points on first use."""
        num_points, noise, counts = _settings(request)
        splits = {}
        for part, (name, count) in enumerate(counts.items()):
            made = partial(_draw_all, request, part, count, num_points, noise)
            arrays = cached_arrays(_folder(request) / name, made, must_keep=request.must_keep)
            splits[name] = PointSplit(arrays["points"], arrays["labels"])
        return Task(
            name=self.card.name,
            options={**request.options, "seed": request.seed},
            **_shapes(request.options).for_task(),
            split_note="train, validation and test are drawn from separate streams of the seed",
            data_source="generated (synthetic)",
            splits=splits,
        )

    def prepared(self, request: Request) -> Path:
        """Return the folder of drawn points."""
        return _folder(request)


@dataclass(frozen=True, eq=False)
class PointSplit:
    """Drawn points with labels.

    Attributes:
        points: (M, N, 3) float32.
        labels: (M,) uint8.
    """

    points: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels.values)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return the points (N, 3) float32 and the class."""
        points = np.array(self.points.values[index])  # copy, because the mapped file is read-only
        return torch.from_numpy(points), int(self.labels.values[index])

    def digest(self) -> bytes:
        total = hashlib.blake2b(self.points.values.tobytes(), digest_size=16)
        total.update(self.labels.values.tobytes())
        return total.digest()


def _settings(request: Request) -> tuple[int, float, dict[str, int]]:
    options = request.options
    noise = options["noise"]
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise <= 1:
        raise bad_argument("noise", "a number from 0 to 1", repr(noise))
    counts = {name: check_integer(options, f"num_{name}", 1) for name in SPLITS}
    return check_integer(options, "num_points", 4, 65_536), float(noise), counts


def _folder(request: Request) -> Path:
    num_points, noise, counts = _settings(request)
    sizes = "-".join(map(str, counts.values()))
    name = f"generated-v{_VERSION}-seed{request.seed}-n{num_points}-noise{noise}-{sizes}"
    return cache_root() / PointClouds.card.name / name


def _draw_all(request: Request, part: int, count: int, num_points: int, noise: float) -> Arrays:
    """Draw every sample from (seed, part, index). Classes alternate."""
    points = np.empty((count, num_points, 3), dtype=np.float32)
    labels = np.arange(count) % len(BODIES)
    for index, label in enumerate(labels.tolist()):
        if index % 500 == 0:
            request.progress(f"drawing {SPLITS[part]} bodies", index, count)
        rng = np.random.default_rng([request.seed, part, index])
        posed = _posed(BODIES[CLASSES[label]](rng, num_points), rng)
        points[index] = posed + noise * rng.standard_normal(posed.shape)
    return {"points": points, "labels": labels.astype(np.uint8)}


def _posed(points: Points, rng: Generator) -> Points:
    """Center the points, scale to radius 1, and rotate at random."""
    points = points - points.mean(axis=0)
    points = points / np.linalg.norm(points, axis=1).max()
    # The Q factor of a Gaussian matrix with fixed signs is a uniformly distributed rotation.
    q, r = np.linalg.qr(rng.standard_normal((3, 3)))
    q = q * np.sign(np.diag(r))
    q[:, 0] *= np.linalg.det(q)
    return points @ q.T


def _on_sphere(rng: Generator, count: int) -> Points:
    points = rng.standard_normal((count, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def _on_cube(rng: Generator, count: int) -> Points:
    points = rng.uniform(-1, 1, (count, 3))
    points[np.arange(count), rng.integers(3, size=count)] = rng.choice([-1.0, 1.0], size=count)
    return points


def _on_triangles(corners: Points, rng: Generator, count: int) -> Points:
    """Draw points on congruent triangles (T, 3, 3)."""
    a, b, c = corners[rng.integers(len(corners), size=count)].transpose(1, 0, 2)
    u, v = np.sqrt(rng.random((count, 1))), rng.random((count, 1))
    return (1 - u) * a + u * (1 - v) * b + u * v * c


def _on_tetrahedron(rng: Generator, count: int) -> Points:
    faces = np.stack([np.delete(_TETRAHEDRON, corner, axis=0) for corner in range(4)])
    return _on_triangles(faces, rng, count)


def _on_octahedron(rng: Generator, count: int) -> Points:
    x, y, z = _OCTAHEDRON[0:2], _OCTAHEDRON[2:4], _OCTAHEDRON[4:6]
    faces = np.stack([np.stack((i, j, k)) for i in x for j in y for k in z])
    return _on_triangles(faces, rng, count)


def _around(radius: Points, height: Points, rng: Generator) -> Points:
    """Draw points at given axis distances and heights, with random angles."""
    angle = rng.uniform(0, 2 * np.pi, len(radius))
    return np.stack((radius * np.cos(angle), radius * np.sin(angle), height), axis=1)


def _on_cylinder(rng: Generator, count: int) -> Points:
    """Draw points on a closed cylinder, 1 to 3 radii high."""
    tall = rng.uniform(1, 3)
    on_side = rng.random(count) < tall / (tall + 1)  # areas: side 2 pi h, both lids 2 pi
    radius = np.where(on_side, 1.0, np.sqrt(rng.random(count)))
    height = np.where(on_side, rng.uniform(0, tall, count), rng.choice([0.0, tall], size=count))
    return _around(radius, height, rng)


def _on_cone(rng: Generator, count: int) -> Points:
    """Draw points on a closed cone, 1 to 3 radii high."""
    tall = rng.uniform(1, 3)
    slope = np.hypot(1, tall)
    on_side = rng.random(count) < slope / (slope + 1)  # areas: side pi s, base pi
    radius = np.sqrt(rng.random(count))
    return _around(radius, np.where(on_side, tall * (1 - radius), 0.0), rng)


def _on_torus(rng: Generator, count: int) -> Points:
    """Draw points on a torus: ring radius 1, tube radius 0.2 to 0.5."""
    tube = rng.uniform(0.2, 0.5)
    angle = np.empty(0)
    while len(angle) < count:  # rejection sampling, because the outer side is larger
        drawn = rng.uniform(0, 2 * np.pi, 2 * count)
        kept = rng.random(2 * count) * (1 + tube) < 1 + tube * np.cos(drawn)
        angle = np.concatenate((angle, drawn[kept]))
    angle = angle[:count]
    return _around(1 + tube * np.cos(angle), tube * np.sin(angle), rng)


def _on_helix(rng: Generator, count: int) -> Points:
    """Draw points on a helix: two to four turns, 1 to 3 radii high."""
    turns, tall = rng.uniform(2, 4), rng.uniform(1, 3)
    along = rng.random(count)
    angle = 2 * np.pi * turns * along
    return np.stack((np.cos(angle), np.sin(angle), tall * along), axis=1)


BODIES: dict[str, Callable[[Generator, int], Points]] = {
    "sphere": _on_sphere,
    "cube": _on_cube,
    "tetrahedron": _on_tetrahedron,
    "octahedron": _on_octahedron,
    "cylinder": _on_cylinder,
    "cone": _on_cone,
    "torus": _on_torus,
    "helix": _on_helix,
}
"""Functions that draw points on the surface of each solid, in the order of the labels."""

CLASSES = tuple(BODIES)


NOISE = 0.2
"""Standard deviation of the noise of `SeasonalSeries`."""

PARTS = {"train": 0.6, "validation": 0.2, "test": 0.2}


class Example(GeneratedTask):
    """Example of a kind. Subclasses make its data with `build`."""

    kind: Kind

    def build(self, options: Mapping[str, Any], seed: int) -> Task:
        """Make the data and the task."""
        raise NotImplementedError

    def load(self, request: Request) -> Task:
        """Make the task, with the card of this example."""
        task = self.build(request.options, request.seed)
        seed = {"seed": request.seed} if self.takes_seed else {}
        return replace(
            task,
            name=self.card.name,
            options={**request.options, **seed},
            data_source=self.at_hand,
            card=None,
        )


def _card(name: str, title: str, kind: Kind, description: str, **options: Any) -> TaskCard:
    return TaskCard(
        name=name,
        title=title,
        source="this package",
        licence="Apache-2.0, as this package",
        description=description,
        needs_data=False,
        options=options,
        output=kind.output,
        backbone=kind.backbone,
        budget=Budget(max_steps=500, batch_size=32, lr=3e-3),
    )


class SeasonalSeries(Example):
    """Two series with two seasons each, a slow trend and normal noise."""

    card = _card(
        "seasonal",
        "Seasonal series",
        FORECAST,
        "Forecasts of two channels with seasons of 12 and 30 steps, and normal noise of deviation "
        "0.2. No forecast has a mean absolute error below 0.16, the mean absolute noise.",
        steps=1500,
        context=60,
        horizon=12,
    )

    def build(self, options: Mapping[str, Any], seed: int) -> Task:
        """Generate the series."""
        steps = check_integer(options, "steps", 500)
        time, random = np.arange(steps), np.random.default_rng(seed)
        waves = [np.sin(2 * np.pi * time / period) for period in (12, 30)]
        clean = np.stack([waves[0] + 0.5 * waves[1], 2 * waves[1] - waves[0]], axis=1)
        return from_arrays_once(
            clean + NOISE * random.normal(size=clean.shape),
            kind=FORECAST.name,
            context=options["context"],
            horizon=options["horizon"],
            season=12,
        )


class DigitPairs(Example):
    """Two digits side by side; the labels are the digits that occur."""

    card = _card(
        "digit_sets",
        "Sets of digits",
        MULTILABEL,
        "Two of the real handwritten digits of task digits next to each other, as 16 columns of 8 "
        "pixels. The labels are the digits that occur, one or two of ten.",
        pairs=1500,
    )

    def build(self, options: Mapping[str, Any], seed: int) -> Task:
        """Draw pairs of images. No image is in two splits."""
        images, labels, rows = read_digits()
        random, x, y, names = np.random.default_rng(seed), [], [], []
        count = check_integer(options, "pairs", 50)
        for split, share in PARTS.items():
            for _ in range(round(count * share)):
                chosen = random.choice(rows[split], size=2, replace=False)
                x.append(np.concatenate([images[row].T for row in chosen]) / 16.0 - 0.3)
                y.append(np.isin(np.arange(10), labels[chosen]))
                names.append(split)
        return from_arrays_once(np.array(x), np.array(y), kind=MULTILABEL.name, split=names)


class Motifs(Example):
    """Random DNA with copies of a few motifs."""

    card = _card(
        "dna_motifs",
        "DNA with motifs",
        MASKED_TOKEN,
        "Sequences of A, C, G and T (ids 0 to 3): copies of 8 random motifs of 8 bases, with "
        "random bases between them. A masked base in a motif follows from its neighbors.",
        length=96,
        sequences=2000,
    )

    def build(self, options: Mapping[str, Any], seed: int) -> Task:
        """Generate the sequences."""
        random = np.random.default_rng(seed)
        length = check_integer(options, "length", 16)
        motifs = random.integers(0, 4, (8, 8))
        rows = random.integers(0, 4, (check_integer(options, "sequences", 50), length))
        for row in rows:
            at = int(random.integers(0, 8))
            while at + 8 <= length:
                row[at : at + 8] = motifs[random.integers(8)]
                at += 8 + int(random.integers(0, 4))
        return from_arrays_once(rows, kind=MASKED_TOKEN.name)


EXAMPLES = (SeasonalSeries(), DigitPairs(), Motifs())
