"""Tests of folders of classes: accepted files, folders that are parts, notes and refusals."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from image_folders import Write, load
from PIL import Image

from rifflemix.errors import InputError, InputWarning
from rifflemix.lab.tasks import task_status
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images.image_files import begins_as_image


@pytest.fixture
def insects(data: Path, write: Write) -> Path:
    """Write two classes of 10 images."""
    for name in ("bee", "wasp"):
        for number in range(10):
            write(data / name / f"{number}.png")
    return data


def count(data: Path) -> int:
    task = load(data)
    return sum(len(task.split(split)) for split in SPLITS)


# Accepted files.


def encoded(kind: str, random: np.random.Generator) -> bytes:
    content = io.BytesIO()
    noise = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).save(content, format=kind)
    return content.getvalue()


def test_format_is_detected_from_the_content(insects: Path) -> None:
    random = np.random.default_rng(1)
    endings = (".jfif", ".JPE", ".gif", ".pbm", ".pnm", "", ".1", ".png~")
    for kind in ("JPEG", "PNG", "GIF", "WEBP"):
        for ending in endings:
            (insects / "bee" / f"{kind}{ending}").write_bytes(encoded(kind, random))
    task = load(insects)
    assert sum(len(task.split(split)) for split in SPLITS) == 20 + 4 * len(endings)


def test_ignored_files_are_reported(insects: Path, write: Write) -> None:
    (insects / "bee" / "labels.txt").write_text("BM P6 no image")
    (insects / "wasp" / "a.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (insects / "wasp" / "deep" / "texts").mkdir(parents=True)
    write(insects / "overview.PNG")
    (insects / "README").write_text("not among the images")
    with pytest.warns(InputWarning) as warned:
        task = load(insects)
    (warning,) = map(str, (warning.message for warning in warned))
    name, told = warning.split(": ", 1)
    assert name == "task image_folder"
    assert re.search(r"\b3\b.*bee/labels\.txt\b.*\b1\b.*overview\.PNG\b", told)
    assert re.match(r"20 images\b.*\b2 classes\b.*\(bee, wasp\)", task.data_source)
    assert task.data_source.endswith(told)


def test_test_part_without_labels_is_reported(data: Path, write: Write) -> None:
    for name in ("bee", "wasp"):
        for number in range(10):
            write(data / "train" / name / f"{number}.png")
    write(data / "test" / "0.png")
    with pytest.warns(InputWarning, match="task image_folder: .*test"):
        assert count(data) == 20


def test_classes_are_named(data: Path, write: Write) -> None:
    names = ["a\nb", "a\udcffb", "c" * 80, *(f"d{number:02}" for number in range(20))]
    for name in names:
        for number in range(10):
            write(data / os.fsdecode(os.fsencode(name)) / f"{number}.png")
    source = load(data).data_source
    assert re.match(r"230 images\b.*\b23 classes\b", source)
    shown = rf"(a\nb, a\udcffb, {'c' * 60}..., d00, d01, d02, d03, d04, d05, 14 "
    assert shown in source


def test_folders_that_begin_with_underscores_are_classes(insects: Path, write: Write) -> None:
    write(insects / "__background__" / "__0.png")
    assert load(insects).num_classes == 3
    assert count(insects) == 21


@pytest.mark.parametrize("place", ["bee/x.png", "bee/x", "bee/more/x.png", "ant", "train"])
def test_broken_links_are_refused(insects: Path, place: str) -> None:
    link = insects / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("nothing")
    with pytest.raises(InputError, match=f"{place}:"):
        load(insects)
    link.unlink()
    link.symlink_to(link.name)  # to itself
    with pytest.raises(InputError, match=f"{place}:"):
        load(insects)


def test_links_to_images_are_read(insects: Path, tmp_path: Path, write: Write) -> None:
    write(tmp_path / "store" / "x.png")
    (insects / "bee" / "linked.png").symlink_to(tmp_path / "store" / "x.png")
    assert count(insects) == 21


def test_images_two_folders_deep_are_refused(insects: Path, write: Write) -> None:
    write(insects / "bee" / "one" / "x.png")
    assert count(insects) == 21
    write(insects / "bee" / "one" / "two" / "three" / "x.png")
    with pytest.raises(InputError, match="bee/one/two"):
        load(insects)


def test_a_file_that_cannot_be_read_is_refused(data: Path) -> None:
    with pytest.raises(InputError, match="secret:"):
        begins_as_image(data / "secret")


# Parts.


def write_parts(data: Path, write: Write, *parts: str) -> None:
    """Write parts with images of two classes.

    The first part has 10 images per class, the second part 1, the third part 2, and so on.
    """
    for position, part in enumerate(parts):
        for name in ("bee", "wasp"):
            for number in range(10 if position == 0 else position):
                write(data / part / name / f"{number}.png")


@pytest.mark.parametrize("train", ["train", "Train", "TRAINING"])
@pytest.mark.parametrize("test", ["Test", "Testing", "eval", "Dev", "VAL"])
def test_names_of_parts_in_any_case(data: Path, write: Write, train: str, test: str) -> None:
    write_parts(data, write, train, test)
    assert task_status("image_folder", data).available
    task = load(data)
    assert "(bee, wasp)" in task.data_source
    assert [len(task.split(split)) for split in SPLITS] == [18, 2, 2]


@pytest.mark.parametrize(
    ("validation", "test"),
    [("dev", "Test"), ("Validation", "testing"), ("eval", "test"), ("valid", "Eval")],
)
def test_three_parts_under_other_names(
    data: Path, write: Write, validation: str, test: str
) -> None:
    write_parts(data, write, "Training", validation, test)
    task = load(data)
    assert [len(task.split(split)) for split in SPLITS] == [20, 2, 4]
    assert re.search(r"\bvalidation\b.*\btest\b", task.split_note)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("train", "val", "valid"), "validation, got val and valid"),
        (("train", "dev", "val"), "validation, got dev and val"),
        (("train", "training"), "train, got train and training"),
        (("train", "val", "test", "eval"), "validation, got val and eval"),
        (("train", "test1"), "test1:"),
        (("train", "test", "more"), "more:"),
        (("train_set", "test_set"), "test_set:"),
        (("TrainImages", "ants"), "TrainImages:"),
        (("images_train", "images_test"), "images_test:"),
        (("val", "test"), "test:"),
        (("holdout", "eval"), "eval:"),
    ],
)
def test_invalid_parts_are_refused(
    data: Path, write: Write, parts: tuple[str, ...], message: str
) -> None:
    write_parts(data, write, *parts)
    with pytest.raises(InputError, match=message):
        load(data)


def test_class_with_the_name_of_a_part(data: Path, write: Write) -> None:
    for name in ("boat", "test tube", "train"):
        for number in range(10):
            write(data / name / f"{number}.png")
    with pytest.raises(InputError, match="boat:"):
        load(data)
    (data / "train").rename(data / "steam train")
    with pytest.raises(InputError, match=r"/(steam|test) \w+: "):
        load(data)
    (data / "test tube").rename(data / "tube")
    assert load(data).num_classes == 3
    (data / "valid").mkdir()
    (data / "train").mkdir()
    for name in ("boat", "valid", "steam train"):
        (data / name).rename(data / "train" / name)
    (data / "tube").rename(data / "train" / "test")
    write(data / "train" / "valid" / "0.png")
    assert "(boat, steam train, test, valid)" in load(data).data_source


def test_folders_without_images_next_to_parts_are_ignored(data: Path, write: Write) -> None:
    write_parts(data, write, "train", "test")
    (data / "annotations").mkdir()
    (data / "annotations" / "0.xml").write_text("<box/>")
    assert count(data) == 22
