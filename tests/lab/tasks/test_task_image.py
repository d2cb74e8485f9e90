"""Tests of CIFAR-10: gray and color, layouts, statistics and real files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar10_files import (
    Planes,
    differences,
    expected_splits,
    gray_by_hand,
    write_folder,
    write_tar,
)

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task, task_status
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images import cifar


@pytest.fixture(params=["folder", "folder itself", "tar", "npz", "hub"])
def load(
    request: pytest.FixtureRequest,
    data: Path,
    planes: Planes,
    write_npz_xz: Callable[..., None],
    put_on_hub: Callable[..., Any],
) -> Callable[..., Task]:
    """Load the tiny CIFAR-10 from each supported folder layout."""
    folder: Path | None = data
    if request.param == "folder":
        write_folder(data, planes)
    elif request.param == "folder itself":
        write_folder(data, planes)
        folder = data / "cifar-10-batches-bin"
    elif request.param == "tar":
        write_tar(data, planes)
    elif request.param == "npz":
        write_npz_xz(data / "cifar10_rgb.npz.xz", **differences(planes))
    else:
        folder = None
        fetched = {part: hub_rows(*pair) for part, pair in planes.items()}
        put_on_hub("uoft-cs/cifar10", fetched)
    return lambda **options: load_task("image", data_dir=folder, **options)


class hub_rows:
    """Build the part of datasets.Dataset that the decoder uses."""

    def __init__(self, planes: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = planes.transpose(0, 2, 3, 1), labels

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self):
        return (
            {"img": pixels, "label": int(label)}
            for pixels, label in zip(self.images, self.labels, strict=True)
        )

    def __getitem__(self, column: str) -> list[int]:
        assert column == "label"
        return self.labels.tolist()


def test_gray_tokens(load: Callable[..., Task], planes: Planes) -> None:
    task = load()
    assert (task.input_kind, task.vocab_size, task.max_length) == ("tokens", 256, 1024)
    assert not task.padding
    for name, (images, labels) in expected_splits(planes).items():
        split = task.split(name)
        assert [label for _, label in split] == labels.tolist()
        tokens = torch.stack([inputs for inputs, _ in split]).numpy()
        assert np.array_equal(tokens.reshape(-1, 32, 32), gray_by_hand(images))


def test_color_patches(load: Callable[..., Task], planes: Planes) -> None:
    task = load(patch_size=8, color="rgb")
    assert (task.input_kind, task.num_features, task.max_length) == ("vectors", 192, 16)
    vectors, _ = task.split("test")[1]
    scale = cifar._SCALES["rgb"]
    pixels = planes["test"][0][1].transpose(1, 2, 0) / 255
    expected = (pixels - np.array(scale.mean)) / np.array(scale.std)
    # Patch 6 is in the second row of patches, third column.
    torch.testing.assert_close(
        vectors[6], torch.tensor(expected[8:16, 16:24].reshape(-1)).float(), atol=1e-5, rtol=1e-5
    )


def test_second_load_reads_the_decoded_copy(load: Callable[..., Task], cache: Path) -> None:
    first = load()
    calls: list[str] = []
    again = load(progress=lambda what, done, total: calls.append(what))
    assert calls == []
    assert again.fingerprint() == first.fingerprint()
    assert load(color="rgb").fingerprint() != first.fingerprint()
    assert len(list((cache / "image").iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "kind", "features", "length"),
    [
        ({"patch_size": 4}, "vectors", 16, 64),
        ({"patch_size": 16}, "vectors", 256, 4),
        ({"color": "rgb"}, "vectors", 3, 1024),
        ({"color": "rgb", "patch_size": 2}, "vectors", 12, 256),
    ],
    ids=str,
)
def test_patch_sizes_and_colors_set_the_sequence_length(
    data: Path, planes: Planes, options, kind: str, features: int, length: int
) -> None:
    write_folder(data, planes)
    task = load_task("image", data_dir=data, **options)
    assert (task.input_kind, task.num_features, task.max_length) == (kind, features, length)
    inputs, _ = task.split("train")[0]
    assert inputs.shape == (length, features)
    assert inputs.dtype == torch.float32


def test_statistics_per_image(data: Path, planes: Planes) -> None:
    write_folder(data, planes)
    options = {"color": "rgb", "layout": "image", "statistics": "per_image"}
    task = load_task("image", data_dir=data, **options)
    pixels = planes["test"][0][2] / 255
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    expected = (pixels - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert np.abs(task.split("test")[2][0].numpy() - expected).max() < 1e-5
    assert task.black == pytest.approx([-m / s for m, s in zip(mean, std, strict=True)])
    plain = load_task("image", data_dir=data, color="rgb", layout="image")
    assert plain.fingerprint() != task.fingerprint()
    with pytest.raises(InputError, match="statistics:"):
        load_task("image", data_dir=data, statistics="per_image")
    with pytest.raises(InputError, match="statistics"):
        load_task("image", data_dir=data, color="rgb", statistics="mean")


def test_statistics_of_imagenet(data: Path, planes: Planes) -> None:
    """Use ImageNet's statistics for weights trained on its images."""
    write_folder(data, planes)
    options = {"color": "rgb", "layout": "image", "statistics": "imagenet"}
    task = load_task("image", data_dir=data, **options)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pixels = planes["test"][0][2] / 255
    expected = (pixels - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert np.abs(task.split("test")[2][0].numpy() - expected).max() < 1e-5
    with pytest.raises(InputError, match="statistics:"):
        load_task("image", data_dir=data, statistics="imagenet")


def test_bytes_of_images_as_a_sequence(data: Path, planes: Planes) -> None:
    write_tar(data, planes)
    assert task_status("image_bytes", data).available
    task = load_task("image_bytes", data_dir=data)
    assert (task.vocab_size, task.max_length, task.metric) == (257, 3072, "bits_per_byte")
    assert [len(task.split(name)) for name in SPLITS] == [27, 3, 6]
    for index in range(6):
        inputs, labels = task.split("test")[index]
        numbers = planes["test"][0][index].transpose(1, 2, 0).reshape(-1)
        assert torch.as_tensor(labels).tolist() == numbers.tolist()
        assert torch.as_tensor(inputs).tolist() == [256, *numbers[:-1].tolist()]
    batch = task.collate([task.split("test")[index] for index in range(2)])
    uniform = torch.zeros(2, 3072, 257)
    bits, count = task.metrics(uniform, batch)["bits_per_byte"]
    assert count == 2 * 3072
    assert bits / count == pytest.approx(math.log2(257))


def test_bytes_of_images_need_color(data: Path, planes: Planes, tmp_path: Path) -> None:
    write_tar(data, planes)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    with pytest.raises(InputError, match="color"):
        load_task("image_bytes", color="gray", data_dir=data)
    with pytest.raises(InputError, match="image_bytes"):
        load_task("image_bytes", data_dir=nothing)
