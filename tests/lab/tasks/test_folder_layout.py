"""Folders of classes: what files are read, which folders are parts, and what is told or refused."""

from __future__ import annotations

import io
import os
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
    """Two classes of 10 images."""
    for name in ("bee", "wasp"):
        for number in range(10):
            write(data / name / f"{number}.png")
    return data


def count(data: Path) -> int:
    task = load(data)
    return sum(len(task.split(split)) for split in SPLITS)


# What is read.


def encoded(kind: str, random: np.random.Generator) -> bytes:
    content = io.BytesIO()
    noise = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).save(content, format=kind)
    return content.getvalue()


def test_the_content_decides(insects: Path) -> None:
    random = np.random.default_rng(1)
    endings = (".jfif", ".JPE", ".gif", ".pbm", ".pnm", "", ".1", ".png~")
    for kind in ("JPEG", "PNG", "GIF", "WEBP"):
        for ending in endings:
            (insects / "bee" / f"{kind}{ending}").write_bytes(encoded(kind, random))
    task = load(insects)
    assert sum(len(task.split(split)) for split in SPLITS) == 20 + 4 * len(endings)


def test_what_is_not_read_is_told(insects: Path, write: Write) -> None:
    (insects / "bee" / "labels.txt").write_text("BM P6 no image")
    (insects / "wasp" / "a.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (insects / "wasp" / "deep" / "texts").mkdir(parents=True)
    write(insects / "overview.PNG")
    (insects / "README").write_text("not among the images")
    told = (
        "not read: files that are no images (3, such as bee/labels.txt); images in no class "
        "folder (1, such as overview.PNG)"
    )
    with pytest.warns(InputWarning) as warned:
        task = load(insects)
    assert [str(warning.message) for warning in warned] == [f"task image_folder: {told}"]
    assert task.data_source == f"20 images of 2 classes in folders (bee, wasp); {told}"


def test_a_test_part_without_labels_is_told(data: Path, write: Write) -> None:
    for name in ("bee", "wasp"):
        for number in range(10):
            write(data / "train" / name / f"{number}.png")
    write(data / "test" / "0.png")
    with pytest.warns(InputWarning, match="the images of test, which has no folders of classes"):
        assert count(data) == 20


def test_classes_are_named(data: Path, write: Write) -> None:
    names = ["a\nb", "a\udcffb", "c" * 80, *(f"d{number:02}" for number in range(20))]
    for name in names:
        for number in range(10):
            write(data / os.fsdecode(os.fsencode(name)) / f"{number}.png")
    source = load(data).data_source
    assert source == (
        rf"230 images of 23 classes in folders (a\nb, a\udcffb, {'c' * 60}..., d00, d01, d02, "
        "d03, d04, d05, 14 more)"
    )


def test_classes_that_begin_with_underscores_count(insects: Path, write: Write) -> None:
    write(insects / "__background__" / "__0.png")
    assert load(insects).num_classes == 3
    assert count(insects) == 21


@pytest.mark.parametrize("place", ["bee/x.png", "bee/x", "bee/more/x.png", "ant", "train"])
def test_links_that_lead_nowhere_are_refused(insects: Path, place: str) -> None:
    link = insects / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("nothing")
    with pytest.raises(InputError, match=f"{place}: expected a file or a folder, got a link that"):
        load(insects)
    link.unlink()
    link.symlink_to(link.name)  # to itself
    with pytest.raises(InputError, match=f"{place}: expected a file or a folder, got a link that"):
        load(insects)


def test_links_to_images_are_read(insects: Path, tmp_path: Path, write: Write) -> None:
    write(tmp_path / "store" / "x.png")
    (insects / "bee" / "linked.png").symlink_to(tmp_path / "store" / "x.png")
    assert count(insects) == 21


def test_images_two_folders_deep_are_refused(insects: Path, write: Write) -> None:
    write(insects / "bee" / "one" / "x.png")
    assert count(insects) == 21
    write(insects / "bee" / "one" / "two" / "three" / "x.png")
    with pytest.raises(InputError, match="bee/one/two: expected images in the folder of their cla"):
        load(insects)


def test_a_file_that_cannot_be_read_is_refused(data: Path) -> None:
    with pytest.raises(InputError, match=r"secret: cannot be read \(No such file or directory\)"):
        begins_as_image(data / "secret")


# Parts.


def write_parts(data: Path, write: Write, *parts: str) -> None:
    """Two classes: 10 images of each in the first part, and one more in each further one."""
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
    assert "classes in folders (bee, wasp)" in task.data_source
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
    assert task.split_note == "validation and test are parts of the data set"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("train", "val", "valid"), "expected one folder for validation, got val and valid"),
        (("train", "dev", "val"), "expected one folder for validation, got dev and val"),
        (("train", "training"), "expected one folder for train, got train and training"),
        (("train", "val", "test", "eval"), "expected one folder for validation, got val and eval"),
        (("train", "test1"), "test1: expected no images but in train, found .* rename it to val"),
        (("train", "test", "more"), "more: expected no images but in test and train, found"),
        (("train_set", "test_set"), "test_set: a part of a data set by its name, but there is no"),
        (("TrainImages", "ants"), "TrainImages: a part of a data set by its name"),
        (("images_train", "images_test"), "images_test: a part of a data set by its name"),
        (("val", "test"), "test: a part of a data set by its name.* rename .* all classes into"),
        (("holdout", "eval"), "eval: a part of a data set by its name"),
    ],
)
def test_parts_that_are_refused(
    data: Path, write: Write, parts: tuple[str, ...], message: str
) -> None:
    write_parts(data, write, *parts)
    with pytest.raises(InputError, match=message):
        load(data)


def test_a_class_by_the_name_of_a_part(data: Path, write: Write) -> None:
    for name in ("boat", "test tube", "train"):
        for number in range(10):
            write(data / name / f"{number}.png")
    with pytest.raises(
        InputError, match=r"boat: .* where train is a class, put all classes into a"
    ):
        load(data)
    (data / "train").rename(data / "steam train")
    with pytest.raises(InputError, match=r"steam train: a part|test tube: a part"):
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


def test_folders_without_images_lie_beside_parts(data: Path, write: Write) -> None:
    write_parts(data, write, "train", "test")
    (data / "annotations").mkdir()
    (data / "annotations" / "0.xml").write_text("<box/>")
    assert count(data) == 22
