"""Tests of folders of labeled images: layouts, splits and refusals."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folders import Write, load, pixels_of

from rifflemix.errors import InputError, InputWarning
from rifflemix.lab.tasks import load_task, task_status
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images import image_folder, imagenet_layouts

SYNSETS = ("n01440764", "n02123045", "n02084071")


@pytest.fixture
def few_synsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet_layouts, "IMAGENET_CLASSES", len(SYNSETS))
    monkeypatch.setattr(imagenet_layouts, "TINY_CLASSES", len(SYNSETS))


# Classification folders.


def test_all_three_parts(data: Path, write: Write) -> None:
    expected: dict[str, set[tuple[bytes, int]]] = {split: set() for split in SPLITS}
    for part, split, count in (
        ("train", "train", 5),
        ("valid", "validation", 2),
        ("test", "test", 3),
    ):
        for label, name in enumerate(("bee", "wasp")):
            for number in range(count):
                pixels = write(data / part / name / f"{number}.png")
                expected[split].add((pixels.tobytes(), label))
    task = load(data)
    assert (task.num_classes, task.input_kind) == (2, "images")
    assert {split: pixels_of(task, split) for split in SPLITS} == expected
    assert re.search(r"\bvalidation\b.*\btest\b", task.split_note)
    image, label = task.split("train")[0]
    assert image.shape == (3, 8, 8)
    scale = image_folder._SCALES["rgb"]
    raw = task.split("train").images[0].transpose(2, 0, 1) / 255
    wanted = (raw - np.array(scale.mean)[:, None, None]) / np.array(scale.std)[:, None, None]
    assert np.abs(image.numpy() - wanted).max() < 1e-5
    assert label in (0, 1)


@pytest.mark.parametrize("part", ["val", "test"])
def test_one_held_out_part_is_the_test_split(data: Path, write: Write, part: str) -> None:
    train, held_out = set(), set()
    for label, (name, count) in enumerate((("bee", 40), ("wasp", 9))):
        for number in range(count):
            train.add((write(data / "train" / name / f"{number}.png").tobytes(), label))
        for number in range(2):
            held_out.add((write(data / part / name / f"{number}.png").tobytes(), label))
    task = load(data)
    assert pixels_of(task, "test") == held_out
    validation = pixels_of(task, "validation")
    # A tenth of 40 is 4, but test has 2; a tenth of 9 rounds to zero.
    assert [label for _, label in validation] == [0, 0]
    assert pixels_of(task, "train") | validation == train
    assert len(task.split("train")) + len(task.split("validation")) == len(train)
    assert re.search(r"\btest\b.*\bvalidation\b.*\btraining\b", task.split_note)


def test_folder_of_classes_without_parts(data: Path, write: Write) -> None:
    every = set()
    for label, name in enumerate(("bee", "fly", "wasp")):
        for number in range(30):
            every.add((write(data / name / f"{number}.png").tobytes(), label))
    task = load(data)
    splits = {split: pixels_of(task, split) for split in SPLITS}
    assert {split: len(found) for split, found in splits.items()} == {
        "train": 72, "validation": 9, "test": 9
    }  # fmt: skip
    assert set.union(*splits.values()) == every
    for found in splits.values():
        assert len({label for _, label in found}) == 3
    order = [task.split("train")[index][1] for index in range(72)]
    assert order != sorted(order)


def test_splits_depend_only_on_file_names(tmp_path: Path, write: Write) -> None:
    for number in range(40):
        for name in ("bee", "wasp"):
            write(tmp_path / "one" / name / f"{number}.png")
    (tmp_path / "two").mkdir()
    for name in ("wasp", "bee"):
        (tmp_path / "two" / name).mkdir()
        for number in reversed(range(40)):
            content = (tmp_path / "one" / name / f"{number}.png").read_bytes()
            (tmp_path / "two" / name / f"{number}.png").write_bytes(content)
    assert load(tmp_path / "one").fingerprint() == load(tmp_path / "two").fingerprint()


def test_images_in_two_splits_are_reported(data: Path, write: Write) -> None:
    for name in ("bee", "wasp"):
        for part in ("train", "val", "test"):
            for number in range(3):
                write(data / part / name / f"{number}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(data)
    shutil.copy(data / "train" / "bee" / "0.png", data / "val" / "bee" / "other.png")
    shutil.copytree(data / "train" / "wasp", data / "test" / "wasp", dirs_exist_ok=True)
    told = r"\b1 of validation\b.*\b3 of"
    with pytest.warns(InputWarning, match=f"task image_folder: .*{told}"):
        task = load(data)
    assert re.search(told, task.split_note)


def test_hidden_files_and_other_types_are_ignored(data: Path, write: Write) -> None:
    for name in ("bee", "wasp"):
        for number in range(10):
            write(data / "train" / name / f"{number}.JPEG")
        write(data / "train" / name / "._0.JPEG")
        write(data / "val" / name / "a.png")
        (data / "train" / name / "Thumbs.db").write_bytes(b"of the system")
    for hidden in (".thumbnails", "__MACOSX"):
        write(data / "train" / hidden / "x.png")
        write(data / hidden / "deep" / "x.png")
    task = load(data)
    assert sum(len(task.split(split)) for split in SPLITS) == 22
    assert re.fullmatch(r"22 images\b.*\b2 classes\b.*\(bee, wasp\)", task.data_source)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda w, d: None, "task image_folder: .*--data-dir", id="nothing"),
        pytest.param(
            lambda w, d: (d / "a.zip").write_bytes(b""), r"a\.zip", id="packed"
        ),
        pytest.param(
            lambda w, d: [w(d / "bee" / "x.png"), w(d / "wasp" / "x.png"), (d / "ant").mkdir()],
            "ant:",
            id="empty class without train",
        ),
        pytest.param(lambda w, d: w(d / "bee" / "x.png"), "data: .*classes", id="one alone"),
        pytest.param(
            lambda w, d: w(d / "train" / "bee" / "x.png"), "(data|train): .*classes", id="one class"
        ),
        pytest.param(
            lambda w, d: [
                w(d / "train" / name / "x.png") for name in ("bee", "wasp")
            ] + [w(d / "val" / "x.png")],
            "val:",
            id="flat val",
        ),
        pytest.param(
            lambda w, d: [
                w(d / part) for part in ("train/bee/x.png", "train/wasp/x.png", "val/ant/x.png")
            ],
            "val/ant",
            id="unknown class",
        ),
        pytest.param(
            lambda w, d: [w(d / "train" / "bee" / "x.png"), (d / "train" / "wasp").mkdir()],
            "train/wasp",
            id="no images",
        ),
        pytest.param(
            lambda w, d: [w(d / name / "x.png") for name in ("bee", "wasp")],
            "task image_folder: .*split",
            id="too few",
        ),
    ],
)  # fmt: skip
def test_invalid_folders_are_refused(
    data: Path, write: Write, make: Callable[[Write, Path], Any], message: str
) -> None:
    make(write, data)
    with pytest.raises(InputError, match=message) as raised:
        load(data)
    assert "\n" not in str(raised.value)


# ImageNet, Tiny-ImageNet, Dogs vs. Cats.


def write_train(write: Write, base: Path, inside: str = "") -> None:
    for name in SYNSETS:
        for number in range(20):
            write(base / "train" / name / inside / f"{name}_{number}.JPEG")


def write_flat_val(write: Write, folder: Path, prefix: str) -> dict[str, tuple[bytes, int]]:
    """Write two images per class and return their names, pixels and labels."""
    return {
        f"{prefix}{number:08d}": (
            write(folder / f"{prefix}{number:08d}.JPEG").tobytes(),
            number % 3,
        )
        for number in range(6)
    }


@pytest.mark.parametrize("folder", [".", "imagenet", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"])
@pytest.mark.usefixtures("few_synsets")
def test_imagenet_by_synset(data: Path, write: Write, folder: str) -> None:
    write_train(write, data / folder)
    held_out = {
        (
            write(data / folder / "val" / name / f"{number}.JPEG").tobytes(),
            sorted(SYNSETS).index(name),
        )
        for name in SYNSETS
        for number in range(2)
    }
    assert task_status("imagenet", data).available
    task = load(data, "imagenet", crop_share=1.0)
    assert pixels_of(task, "test") == held_out
    assert [len(task.split(split)) for split in SPLITS] == [54, 6, 6]


@pytest.mark.parametrize("labels", ["solution", "annotations"])
@pytest.mark.usefixtures("few_synsets")
def test_imagenet_with_a_flat_val(data: Path, write: Write, labels: str) -> None:
    base = data / "ILSVRC" / "Data" / "CLS-LOC"
    write_train(write, base)
    images = write_flat_val(write, base / "val", "ILSVRC2012_val_")
    names = {name: sorted(SYNSETS)[label] for name, (_, label) in images.items()}
    if labels == "solution":
        lines = ["ImageId,PredictionString"]
        lines += [f"{name},{synset} 1 2 3 4 {synset} 5 6 7 8" for name, synset in names.items()]
        (data / "LOC_val_solution.csv").write_text("\n".join(lines) + "\n")
    else:
        folder = data / "ILSVRC" / "Annotations" / "CLS-LOC" / "val"
        folder.mkdir(parents=True)
        for name, synset in names.items():
            box = f"<object><name>{synset}</name></object>"
            (folder / f"{name}.xml").write_text(f"<annotation>{box}{box}</annotation>")
    task = load(data, "imagenet", crop_share=1.0)
    assert pixels_of(task, "test") == set(images.values())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(
            lambda b: (b / "LOC_val_solution.csv").unlink(),
            "val:",
            id="no labels",
        ),
        pytest.param(
            lambda b: (b / "val" / "v00000003.JPEG").unlink(),
            r"\b6 images\b.*\b5\b",
            id="image missing",
        ),
        pytest.param(
            lambda b: (b / "val" / "v00000003.JPEG").rename(b / "val" / "other.JPEG"),
            r"other\.JPEG:",
            id="label missing",
        ),
        pytest.param(
            lambda b: (b / "LOC_val_solution.csv").write_text("v00000000,cat 1 2\n"),
            r"LOC_val_solution\.csv: .*\b1\b",
            id="no synset",
        ),
        pytest.param(
            lambda b: (b / "LOC_val_solution.csv").write_bytes(b"\xff\xfe\n"),
            r"LOC_val_solution\.csv:",
            id="no text",
        ),
        pytest.param(
            lambda b: (b / "train" / SYNSETS[0]).rename(b / "train" / "n99999999"),
            r"n01440764\b",
            id="unknown synset",
        ),
        pytest.param(
            lambda b: (b / "train" / SYNSETS[0]).rename(b / "train" / "bee"),
            r"\b3\b.*ImageNet.*got 2\b.*image_folder",
            id="a part of it",
        ),
    ],
)
@pytest.mark.usefixtures("few_synsets")
def test_invalid_imagenet_folders_are_refused(
    data: Path, write: Write, spoil: Callable[[Path], Any], message: str
) -> None:
    write_train(write, data)
    images = write_flat_val(write, data / "val", "v")
    lines = [f"{name},{sorted(SYNSETS)[label]} 1 2 3 4" for name, (_, label) in images.items()]
    (data / "LOC_val_solution.csv").write_text("\n".join(lines))
    spoil(data)
    with pytest.raises(InputError, match=message) as raised:
        load(data, "imagenet")
    assert "\n" not in str(raised.value)


def test_imagenet_has_a_thousand_classes(data: Path, write: Write) -> None:
    write_train(write, data)
    assert not task_status("imagenet", data).available
    with pytest.raises(InputError, match=r"\b1,000\b.*ImageNet.*got 3\b"):
        load(data, "imagenet")


@pytest.mark.parametrize("folder", [".", "tiny-imagenet-200"])
@pytest.mark.usefixtures("few_synsets")
def test_tiny_imagenet(data: Path, write: Write, folder: str) -> None:
    base = data / folder
    write_train(write, base, "images")
    images = write_flat_val(write, base / "val" / "images", "val_")
    lines = [f"{n}.JPEG\t{sorted(SYNSETS)[k]}\t0\t32\t44\t62" for n, (_, k) in images.items()]
    (base / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    write(base / "test" / "images" / "test_0.JPEG")
    assert task_status("tiny_imagenet", data).available
    task = load(data, "tiny_imagenet")
    assert pixels_of(task, "test") == set(images.values())
    assert [len(task.split(split)) for split in SPLITS] == [54, 6, 6]
    (base / "val" / "val_annotations.txt").unlink()
    with pytest.raises(InputError, match=r"val_annotations\.txt:"):
        load(data, "tiny_imagenet")


@pytest.mark.usefixtures("few_synsets")
def test_tiny_imagenet_sorted_by_class(data: Path, write: Write) -> None:
    write_train(write, data, "images")
    held_out = {
        (write(data / "val" / name / "images" / "v.JPEG").tobytes(), sorted(SYNSETS).index(name))
        for name in SYNSETS
    }
    assert pixels_of(load(data, "tiny_imagenet"), "test") == held_out


@pytest.mark.parametrize("folder", [".", "train", "dogs-vs-cats/train"])
def test_dogs_vs_cats(data: Path, write: Write, folder: str) -> None:
    every = {
        (write(data / folder / f"{pet}.{number}.jpg").tobytes(), label)
        for label, pet in enumerate(("cat", "dog"))
        for number in range(20)
    }
    write(data / folder / "._cat.1.jpg")
    write(data / "test1" / "1.jpg")
    assert task_status("dogs_vs_cats", data).available
    task = load(data, "dogs_vs_cats")
    assert set.union(*(pixels_of(task, split) for split in SPLITS)) == every
    assert [len(task.split(split)) for split in SPLITS] == [32, 4, 4]


@pytest.mark.parametrize("name", ["imagenet", "tiny_imagenet", "dogs_vs_cats", "image_folder"])
def test_missing_data_is_reported(data: Path, name: str) -> None:
    for folder in (None, data):
        with pytest.raises(InputError, match="--data-dir") as raised:
            load_task(name, data_dir=folder)
        assert "\n" not in str(raised.value)
        assert not task_status(name, folder).available
