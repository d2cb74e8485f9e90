"""Tests of Oxford's Flowers-102 and Pets: layouts, published splits and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folders import Write, load, pixels_of
from scipy.io import savemat

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, task_status
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images import oxford_layouts

BREEDS = ("Abyssinian", "american_bulldog", "Siamese")
FLOWERS = 3
# Image numbers of Flowers-102 by part, from 1, unordered.
PARTS = {"trnid": [7, 2, 5], "valid": [9, 1, 4], "tstid": [3, 6, 8, 10, 11]}
LABELS = [1, 2, 3, 3, 1, 2, 3, 1, 2, 3, 1]


@pytest.fixture(autouse=True)
def few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oxford_layouts, "PET_CLASSES", len(BREEDS))
    monkeypatch.setattr(oxford_layouts, "FLOWER_CLASSES", FLOWERS)


def write_flowers(folder: Path, write: Write, **changes: Any) -> dict[str, set[tuple[bytes, int]]]:
    """Write the data set; return pixels and labels by split."""
    pixels = {n: write(folder / f"jpg/image_{n:05}.jpg").tobytes() for n in range(1, 12)}
    labels, parts = changes.get("labels", LABELS), changes.get("parts", PARTS)
    savemat(folder / "imagelabels.mat", {"labels": np.array([labels], np.uint8)})
    arrays = {name: np.array([numbers], np.uint16) for name, numbers in parts.items()}
    savemat(folder / "setid.mat", arrays, do_compression=True)
    return {
        split: {(pixels[n], LABELS[n - 1] - 1) for n in numbers}
        for split, numbers in zip(SPLITS, PARTS.values(), strict=True)
    }


@pytest.mark.parametrize("folder", [".", "flowers-102"])
def test_flowers_are_in_the_published_splits(data: Path, write: Write, folder: str) -> None:
    (data / folder).mkdir(exist_ok=True, parents=True)
    expected = write_flowers(data / folder, write)
    write(data / folder / "jpg" / "._image_00001.jpg")
    assert task_status("flowers102", data).available
    task = load(data, "flowers102")
    assert task.num_classes == FLOWERS
    assert {split: pixels_of(task, split) for split in SPLITS} == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": LABELS[:-1]}, r"setid\.mat.*\b10\b"),
        ({"labels": [4, *LABELS[1:]]}, r"imagelabels\.mat.*\b1\b.*\b3\b"),
        ({"labels": [1, 2] * 5 + [1]}, r"imagelabels\.mat.*\b1\b.*\b3\b"),
        ({"parts": {**PARTS, "valid": [9, 1, 2]}}, r"setid\.mat.*\b11\b"),
        ({"parts": {"trnid": [1], "valid": [2]}}, r"setid\.mat.*'tstid'"),
        ({"parts": {**PARTS, "valid": []}}, r"setid\.mat.*'valid'"),
    ],
)
def test_inconsistent_flowers_are_refused(
    data: Path, write: Write, changes: dict[str, Any], words: str
) -> None:
    write_flowers(data, write, **changes)
    with pytest.raises(InputError, match=words) as raised:
        load(data, "flowers102")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["imagelabels.mat", "setid.mat"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:150],
        lambda content: b"MATLAB" * 100,
        lambda content: content[:130] + bytes(255 - b for b in content[130:]),
    ],
)
def test_damaged_matrices(data: Path, write: Write, name: str, damage: Any) -> None:
    write_flowers(data, write)
    path = data / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=name) as raised:
        load(data, "flowers102")
    assert "\n" not in str(raised.value)


def test_an_image_that_is_listed_is_missing(data: Path, write: Write) -> None:
    write_flowers(data, write)
    (data / "jpg" / "image_00010.jpg").unlink()
    with pytest.raises(InputError, match=r"image_00010\.jpg:"):
        load(data, "flowers102")
    (data / "imagelabels.mat").unlink()
    with pytest.raises(InputError, match=r"imagelabels\.mat"):
        load(data, "flowers102")


def write_pets(folder: Path, write: Write) -> dict[str, set[tuple[bytes, int]]]:
    """Write the data set; return pixels and labels by part.

    Each breed has 12 training images and 2 test images.
    """
    found: dict[str, set[tuple[bytes, int]]] = {"trainval": set(), "test": set()}
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for part, numbers in (("trainval", range(1, 13)), ("test", range(13, 15))):
        lines = []
        for label, breed in enumerate(BREEDS):
            for number in numbers:
                pixels = write(folder / f"images/{breed}_{number}.jpg").tobytes()
                found[part].add((pixels, label))
                lines.append(f"{breed}_{number} {label + 1} {1 + label % 2} {label + 1}")
        (folder / f"annotations/{part}.txt").write_text("\n".join(reversed(lines)) + "\n")
    write(folder / "images" / "unlisted_1.jpg")
    (folder / "annotations/list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n")
    return found


@pytest.mark.parametrize("folder", [".", "oxford-iiit-pet"])
def test_pets_are_in_the_published_lists(data: Path, write: Write, folder: str) -> None:
    found = write_pets(data / folder, write)
    assert task_status("oxford_pets", data).available
    task = load(data, "oxford_pets")
    assert task.num_classes == len(BREEDS)
    assert "american_bulldog" in task.data_source
    assert pixels_of(task, "test") == found["test"]
    assert pixels_of(task, "train") | pixels_of(task, "validation") == found["trainval"]
    assert [len(task.split(split)) for split in SPLITS] == [33, 3, 6]


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("trainval", "Siamese_3 3 1 3", "Siamese_3 3 1", r"\.txt: .*line \d"),
        ("trainval", "Siamese_3 3 1 3", "Siamese_3 0 1 3", r"\b1\b.*\b3\b.*got 4\b"),
        ("trainval", "Siamese_3 3 1 3", "Siamese_4 3 1 3", r"trainval\.txt"),
        ("test", "Siamese_13 3 1 3", "Siamese_13 2 1 3", r"test\.txt"),
        ("test", "Siamese_13 3 1 3", "Siamese_1 3 1 3", "Siamese_1.jpg"),
        ("test", "Siamese_13 3 1 3", "Siamese_99 3 1 3", "Siamese_99.jpg:"),
        ("test", "Siamese_13 3 1 3", "../../x_13 3 1 3", r"\.txt: .*line \d"),
    ],
)
def test_inconsistent_lists_of_pets_are_refused(
    data: Path, write: Write, name: str, old: str, new: str, words: str
) -> None:
    write_pets(data, write)
    path = data / f"annotations/{name}.txt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=words) as raised:
        load(data, "oxford_pets")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("lines", "found"), [(0, 0), (2, 1)])
@pytest.mark.parametrize("name", ["trainval", "test"])
def test_truncated_list_of_pets(
    data: Path, write: Write, name: str, lines: int, found: int
) -> None:
    write_pets(data, write)
    path = data / f"annotations/{name}.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    with pytest.raises(InputError, match=rf"{name}\.txt: .*\b1\b.*\b3\b.*got {found}"):
        load(data, "oxford_pets")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.5, 1j, "a"])
def test_fractional_labels_of_flowers_are_refused(data: Path, write: Write, value: Any) -> None:
    write_flowers(data, write)
    savemat(data / "imagelabels.mat", {"labels": np.array([[value, *LABELS[1:]]])})
    with pytest.raises(InputError, match=r"imagelabels\.mat.*'labels'"):
        load(data, "flowers102")


@pytest.mark.parametrize("name", ["flowers102", "oxford_pets"])
def test_missing_data_is_reported(data: Path, name: str) -> None:
    (data / "images").mkdir(parents=True)
    (data / "jpg").mkdir()
    for folder in (None, data):
        with pytest.raises(InputError, match="--data-dir"):
            load_task(name, data_dir=folder)
        assert not task_status(name, folder).available
