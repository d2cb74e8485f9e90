"""Check that point clouds have the named shapes, and every sample its own seed."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.tasks.synthetic.examples import BODIES, CLASSES, _posed

SMALL = {"num_points": 40, "num_train": 32, "num_validation": 16, "num_test": 16}


def small(seed: int = 0, **options: Any) -> Task:
    return load_task("point_clouds", seed=seed, **{**SMALL, **options})


def surface_distance(name: str, p: np.ndarray) -> np.ndarray:
    """Measure the distance to the surface in the body's frame."""
    x, y, z = p.T
    ring = np.hypot(x, y)
    match name:
        case "sphere":
            return np.abs(np.linalg.norm(p, axis=1) - 1)
        case "cube":
            return np.abs(np.abs(p).max(axis=1) - 1)
        case "octahedron":
            return np.abs(np.abs(p).sum(axis=1) - 1)
        case "tetrahedron":  # outward normals of its faces
            normals = -np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / 3**0.5
            return np.abs((p @ normals.T).max(axis=1) - 1 / 3**0.5)
        case "cylinder":
            lid = np.minimum(np.abs(z), np.abs(z - z.max()))
            return np.where(ring < 1 - 1e-9, lid, np.abs(ring - 1))
        case "torus":
            tube = np.hypot(ring - 1, z)
            return np.abs(tube - tube.max())
        case "helix":
            return np.abs(ring - 1)
    side = z > 1e-9
    tall = (z / np.where(side, 1 - ring, 1))[side].max()
    return np.where(side, np.abs(z - tall * (1 - ring)), np.maximum(ring - 1, 0))


@pytest.mark.parametrize("name", CLASSES)
def test_points_lie_on_the_surface(name: str) -> None:
    points = BODIES[name](np.random.default_rng(3), 500)
    assert points.shape == (500, 3)
    assert surface_distance(name, points).max() < 1e-9


def test_a_cone_is_covered_evenly() -> None:
    """Half of the side surface is beyond 1/sqrt(2) of the radius."""
    points = BODIES["cone"](np.random.default_rng(0), 20_000)
    side = points[points[:, 2] > 1e-9]
    beyond = (np.hypot(side[:, 0], side[:, 1]) > 2**-0.5).mean()
    assert beyond == pytest.approx(0.5, abs=0.02)


def test_a_torus_is_covered_evenly() -> None:
    """The outer half is larger than the inner half: its share is 1/2 + tube / pi."""
    points = BODIES["torus"](np.random.default_rng(0), 20_000)
    ring = np.hypot(points[:, 0], points[:, 1])
    tube = np.hypot(ring - 1, points[:, 2]).mean()
    assert (ring > 1).mean() == pytest.approx(0.5 + tube / np.pi, abs=0.02)


def test_samples_are_centred_scaled_and_labelled_in_turn() -> None:
    task = small(noise=0.0)
    batch = task.collate([task.split("train")[i] for i in range(16)])
    assert batch["inputs"].shape == (16, 40, 3)
    assert batch["inputs"].dtype == torch.float32
    assert batch["labels"].tolist() == [*range(8), *range(8)]
    torch.testing.assert_close(batch["inputs"].mean(dim=1), torch.zeros(16, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(batch["inputs"].norm(dim=2).amax(1), torch.ones(16))


def test_points_depend_only_on_seed_split_and_sample() -> None:
    task = small()
    assert small().fingerprint() == task.fingerprint()
    assert small(seed=1).fingerprint() != task.fingerprint()
    assert small(noise=0.0).fingerprint() != task.fingerprint()
    first = task.split("train")[0][0]
    assert not torch.equal(first, task.split("validation")[0][0])
    assert not torch.equal(first, task.split("train")[8][0])
    longer = small(num_train=64)
    assert torch.equal(longer.split("train")[0][0], first)


def test_splits_pickle() -> None:
    split = small().split("test")
    again = pickle.loads(pickle.dumps(split))
    assert torch.equal(again[3][0], split[3][0])
    assert again.digest() == split.digest()


def test_rotations_are_proper_and_favour_no_direction() -> None:
    marks = np.array(
        [[1.0, 0, 0], [-1, 0, 0], [0, 0.5, 0], [0, -0.5, 0], [0, 0, 0.2], [0, 0, -0.2]]
    )
    rng = np.random.default_rng(0)
    turns = []
    for _ in range(400):
        turned = _posed(marks, rng)
        turns.append(np.stack((turned[0], turned[2] / 0.5, turned[4] / 0.2)))
    rotations = np.stack(turns)
    unit = np.broadcast_to(np.eye(3), rotations.shape)
    np.testing.assert_allclose(rotations @ rotations.transpose(0, 2, 1), unit, atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(rotations), 1.0)
    assert np.abs(rotations.mean(axis=0)).max() < 0.12  # deviation of a mean: 0.029


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_points", 3), ("noise", -0.1), ("noise", True), ("num_train", 0), ("num_points", 4.0)],
)
def test_bad_options_are_refused(option: str, value: Any) -> None:
    with pytest.raises(rm.InputError, match=option):
        small(**{option: value})


def test_the_card_says_that_it_is_synthetic() -> None:
    card = rm.tasks.task_card("point_clouds")
    assert "synthetic" in card.source
