"""Tests of CIFAR-100: the binary version as a folder or an archive, and the hub's copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged_files import (
    assert_names_cut_file,
    assert_names_file,
    assert_prepares,
    assert_refuses_pickle,
    pack,
)

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task, task_status
from rifflemix.lab.tasks.images import cifar

Planes = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


@pytest.fixture
def planes(monkeypatch: pytest.MonkeyPatch) -> Planes:
    """Build coarse labels, fine labels and images (M, 3, 32, 32)."""
    counts = {"train": 30, "test": 6}
    files = {part: {f"{part}.bin": count} for part, count in counts.items()}
    monkeypatch.setattr(cifar, "_BINARY_100", replace(cifar._BINARY_100, files=files))
    rng = np.random.default_rng(0)
    made = {
        part: (
            rng.integers(0, 20, count, dtype=np.uint8),
            rng.integers(0, 100, count, dtype=np.uint8),
            rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8),
        )
        for part, count in counts.items()
    }
    made["train"][1][:2] = (0, 99)
    return made


def files(planes: Planes) -> dict[str, bytes]:
    """Write records of a coarse label, a fine label and the planes."""
    return {
        f"{part}.bin": np.concatenate(
            [coarse[:, None], fine[:, None], images.reshape(len(fine), -1)], axis=1
        ).tobytes()
        for part, (coarse, fine, images) in planes.items()
    }


def write_folder(data: Path, planes: Planes) -> None:
    (data / "cifar-100-binary").mkdir()
    for name, content in files(planes).items():
        (data / "cifar-100-binary" / name).write_bytes(content)


def write_tar(data: Path, content: dict[str, bytes]) -> None:
    files = {f"cifar-100-binary/{name}": values for name, values in content.items()}
    pack(data / "cifar-100-binary.tar.gz", files)


class HubRows:
    """The part of datasets.Dataset that the decoder uses."""

    def __init__(self, coarse: np.ndarray, fine: np.ndarray, planes: np.ndarray) -> None:
        self.columns = {"coarse_label": coarse.tolist(), "fine_label": fine.tolist()}
        self.images = planes.transpose(0, 2, 3, 1)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self):
        return ({"img": pixels} for pixels in self.images)

    def __getitem__(self, column: str) -> list[int]:
        return self.columns[column]


@pytest.fixture(params=["folder", "tar", "hub"])
def load(
    request: pytest.FixtureRequest, data: Path, planes: Planes, put_on_hub: Callable[..., Any]
) -> Callable[..., Task]:
    """Load the tiny CIFAR-100 from each supported folder layout."""
    folder: Path | None = data
    if request.param == "folder":
        write_folder(data, planes)
    elif request.param == "tar":
        write_tar(data, {**files(planes), "fine_label_names.txt": b"apple\n"})
    else:
        folder = None
        fetched = {part: HubRows(*rows) for part, rows in planes.items()}
        put_on_hub("uoft-cs/cifar100", fetched)
    return lambda **options: load_task("cifar100", data_dir=folder, **options)


def test_image_layout_returns_whole_images(load: Callable[..., Task], planes: Planes) -> None:
    task = load()
    assert (task.input_kind, task.num_classes, task.image_shape) == ("images", 100, (3, 32, 32))
    _, fine, images = planes["train"]
    splits = {
        "train": (fine[:27], images[:27]),
        "validation": (fine[27:], images[27:]),
        "test": planes["test"][1:],
    }
    scale = cifar._SCALE_100
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (scale.mean, scale.std))
    for name, (labels, pixels) in splits.items():
        split = task.split(name)
        assert [label for _, label in split] == labels.tolist()
        found = torch.stack([image for image, _ in split])
        expected = torch.from_numpy((pixels / 255 - mean) / std).float()
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    batch = task.collate([task.split("train")[i] for i in range(4)])
    assert task.loss(torch.zeros(4, 100), batch).item() == pytest.approx(np.log(100))


def test_statistics_per_image(data: Path, planes: Planes) -> None:
    write_folder(data, planes)
    task = load_task("cifar100", data_dir=data, statistics="per_image")
    mean = np.reshape((0.5071, 0.4865, 0.4409), (3, 1, 1))
    std = np.reshape((0.2009, 0.1984, 0.2023), (3, 1, 1))
    expected = (planes["test"][2][1] / 255 - mean) / std
    assert np.abs(task.split("test")[1][0].numpy() - expected).max() < 1e-5
    assert task.fingerprint() != load_task("cifar100", data_dir=data).fingerprint()
    with pytest.raises(InputError, match="statistics"):
        load_task("cifar100", data_dir=data, statistics="mean")


def test_patches_as_a_sequence(load: Callable[..., Task]) -> None:
    task = load(layout="sequence", patch_size=4)
    assert (task.input_kind, task.num_features, task.max_length) == ("vectors", 48, 64)
    assert task.num_classes == 100


def test_second_load_reads_the_decoded_copy(load: Callable[..., Task]) -> None:
    first = load()
    calls: list[str] = []
    again = load(progress=lambda what, done, total: calls.append(what))
    assert calls == []
    assert again.fingerprint() == first.fingerprint()


def test_training_images_change(data: Path, planes: Planes) -> None:
    write_folder(data, planes)
    task = load_task("cifar100", data_dir=data, augment="crop_flip")
    batch = task.collate([task.split("train")[0]])
    assert not torch.equal(task.augment(batch, [3])["inputs"], batch["inputs"])


def test_prepare_and_status(data: Path, planes: Planes, cache: Path) -> None:
    assert not task_status("cifar100", data).available
    write_tar(data, files(planes))
    assert_prepares("cifar100", data, cache, "cifar-100-binary.tar.gz")


@pytest.mark.parametrize("name", ["cifar-100-python/train", "cifar-100-python.tar.gz"])
def test_pickles_are_refused(data: Path, name: str) -> None:
    assert_refuses_pickle("cifar100", data, name, "cifar-100-binary.tar.gz")


@pytest.mark.parametrize("part", ["train", "test"])
def test_truncated_or_absent_file(data: Path, planes: Planes, part: str) -> None:
    write_folder(data, planes)
    path = data / "cifar-100-binary" / f"{part}.bin"
    assert_names_cut_file("cifar100", data, path, -1)
    path.unlink()
    assert_names_file("cifar100", data, f"{part}.bin:")


def test_archive_without_the_test_images(data: Path, planes: Planes) -> None:
    write_tar(data, {"train.bin": files(planes)["train.bin"]})
    assert_names_file("cifar100", data, "cifar-100-binary/test.bin")


def test_label_out_of_range(data: Path, planes: Planes) -> None:
    planes["test"][1][3] = 100
    write_folder(data, planes)
    with pytest.raises(InputError, match=r"cifar-100-binary.*\b0\b.*\b99\b"):
        load_task("cifar100", data_dir=data)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patch_size": 4}, r"patch_size: .*\b1\b.*'image'"),
        ({"layout": "sequence", "augment": "crop_flip"}, "augment: .*got 'crop_flip'"),
        ({"layout": "sequence", "patch_size": 3}, "patch_size: .*got 3"),
    ],
    ids=["patches of images", "augmented sequence", "patch size"],
)
def test_bad_options_are_refused(
    data: Path, planes: Planes, options: dict[str, object], words: str
) -> None:
    write_folder(data, planes)
    with pytest.raises(InputError, match=words):
        load_task("cifar100", data_dir=data, **options)
