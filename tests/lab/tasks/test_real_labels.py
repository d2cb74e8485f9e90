"""Tests of ImageNet's validation images with ReaL labels: zero, one or several per image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from image_folders import Write, load

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.images import imagenet_layouts

SYNSETS = ("n01440764", "n02084071", "n02123045", "n03000134", "n04000480", "n05000123")
REAL = [[0], [], [1, 3], [2], [5, 0, 5], [4]]


@pytest.fixture
def imagenet(data: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(imagenet_layouts, "IMAGENET_CLASSES", len(SYNSETS))
    for label, name in enumerate(SYNSETS):
        for number in range(10):
            write(data / "imagenet" / "train" / name / f"{number}.JPEG")
        write(data / "imagenet" / "val" / name / f"ILSVRC2012_val_{label + 1:08d}.JPEG")
    (data / "real.json").write_text(json.dumps(REAL))
    return data


def with_real(folder: Path) -> Task:
    return load(folder, "imagenet", crop_share=1.0, further_tests="real")


def test_images_without_a_label_are_skipped(imagenet: Path) -> None:
    task = with_real(imagenet)
    images, plain = task.split("real"), task.split("test")
    assert len(images) == 5
    # Image k in the files has label k in the folders.
    by_label = {label: image for image, label in (plain[i] for i in range(len(plain)))}
    wanted = {
        number: torch.tensor([1.0 * (label in classes) / len({*classes}) for label in range(6)])
        for number, classes in enumerate(REAL)
        if classes
    }
    for index in range(len(images)):
        image, labels = images[index]
        (number,) = (n for n, other in by_label.items() if torch.equal(image, other))
        assert torch.equal(labels, wanted.pop(number))
    assert wanted == {}


def test_every_label_of_an_image_is_right(imagenet: Path) -> None:
    task = with_real(imagenet)
    batch = task.collate([task.split("real")[index] for index in range(5)])
    assert batch["labels"].shape == (5, 6)
    right = torch.where(batch["labels"] > 0, 1.0, -1.0)
    # Five wrong answers out of six include one of two labels.
    for answer, hits, of_five in ((right, 5, 5), (-right, 0, 2)):
        metrics = task.metrics(answer, batch)
        assert metrics["accuracy"] == (hits, 5)
        assert metrics["top5_accuracy"] == (of_five, 5)
    # With two labels, either label counts.
    assert task.metrics(10 * right + torch.arange(6), batch)["accuracy"] == (5, 5)
    first = torch.nn.functional.one_hot(torch.zeros(5, dtype=torch.int64), 6).float()
    zero = float((batch["labels"][:, 0] > 0).sum())
    assert task.metrics(first, batch)["accuracy"] == (zero, 5)
    nats, count = task.metrics(torch.zeros(5, 6), batch)["loss"]
    assert nats / count == pytest.approx(torch.log(torch.tensor(6.0)).item())


def test_the_test_split_keeps_its_labels(imagenet: Path) -> None:
    plain = load(imagenet, "imagenet", crop_share=1.0)
    task = with_real(imagenet)
    assert plain.further_tests == {}
    assert task.split("test").digest() == plain.split("test").digest()
    assert task.fingerprint() != plain.fingerprint()
    (imagenet / "real.json").rename(imagenet / "imagenet" / "real.json")
    assert with_real(imagenet).fingerprint() == task.fingerprint()
    (imagenet / "imagenet" / "real.json").write_text(json.dumps([[1], *REAL[1:]]))
    assert with_real(imagenet).fingerprint() != task.fingerprint()


BAD = {
    "no list": ("{}", "real.json:"),
    "no json": ("[[0]", "real.json:"),
    "no number": ('[["0"]]', "real.json:"),
    "class": ("[[6]]", r"real\.json.*\b0\b.*\b5\b"),
    "few": ("[[1], [2]]", r"ILSVRC2012_val_.*\b1\b.*\b2\b"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_damaged_labels(content: str, message: str, imagenet: Path) -> None:
    (imagenet / "real.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        with_real(imagenet)
    assert "\n" not in str(caught.value)


def test_missing_labels_and_other_names(imagenet: Path, write: Write) -> None:
    with pytest.raises(InputError, match=r"further_tests: .*got 'v2'"):
        load(imagenet, "imagenet", further_tests="v2")
    write(imagenet / "imagenet" / "val" / SYNSETS[0] / "mine.JPEG")
    with pytest.raises(InputError, match=r"mine\.JPEG: .*ILSVRC2012_val_"):
        with_real(imagenet)
    (imagenet / "real.json").unlink()
    with pytest.raises(InputError, match=r"real\.json.*real\.json"):
        with_real(imagenet)
