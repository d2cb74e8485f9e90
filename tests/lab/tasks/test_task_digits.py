"""Tests of the digits task: the file, the splits, tokens and patches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images import digits

CLASS_SIZES = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])


def test_splits_are_stratified_and_disjoint() -> None:
    task = load_task("digits")
    sizes = {name: len(task.split(name)) for name in SPLITS}
    assert sizes == {"train": 1087, "validation": 355, "test": 355}
    seen: set[bytes] = set()
    for name in SPLITS:
        samples = list(task.split(name))
        counts = np.bincount([label for _, label in samples], minlength=10)
        shares = counts / CLASS_SIZES
        assert np.ptp(shares) < 0.015
        seen |= {inputs.numpy().tobytes() for inputs, _ in samples}
    assert len(seen) == 1797


def test_splits_do_not_depend_on_the_seed_or_patches() -> None:
    labels = [[label for _, label in load_task("digits", seed=s).split("test")] for s in (0, 5)]
    labels.append([label for _, label in load_task("digits", patch_size=4).split("test")])
    assert labels[0] == labels[1] == labels[2]


def test_fingerprint_is_fixed() -> None:
    # Published results name this fingerprint, so any change of splits or pixels is deliberate.
    assert load_task("digits").fingerprint() == "788f44a28c6c62cbbaf69519a655c49d"


@pytest.mark.parametrize("name", SPLITS)
def test_classes_are_mixed(name: str) -> None:
    split = load_task("digits").split(name)
    assert len({split[index][1] for index in range(50)}) == 10


@pytest.mark.parametrize("patch_size", [2, 4])
def test_patches_contain_the_same_pixels(patch_size: int) -> None:
    tokens = load_task("digits").split("train")
    task = load_task("digits", patch_size=patch_size)
    assert (task.max_length, task.num_features) == (64 // patch_size**2, patch_size**2)
    assert task.vocab_size is None
    image = tokens[7][0].reshape(8, 8) / 16
    patches = task.split("train")[7][0] * digits._DIGITS_SCALE.std[0] + digits._DIGITS_SCALE.mean[0]
    across = 8 // patch_size
    for position in range(task.max_length):
        top, left = position // across * patch_size, position % across * patch_size
        expected = image[top : top + patch_size, left : left + patch_size]
        torch.testing.assert_close(patches[position], expected.reshape(-1), atol=1e-6, rtol=1e-6)


def test_vectors_are_normalised() -> None:
    split = load_task("digits", patch_size=4).split("train")
    values = torch.stack([inputs for inputs, _ in split])
    assert abs(values.mean().item()) < 1e-3
    assert values.std().item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_file_is_refused(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "digits.npz"
    if damage == "changed":
        path.write_bytes(digits._DIGITS_FILE.read_bytes()[:-1] + b"\xff")
    monkeypatch.setattr(digits, "_DIGITS_FILE", path)
    with pytest.raises(InputError, match=r"digits\.npz"):
        load_task("digits")
