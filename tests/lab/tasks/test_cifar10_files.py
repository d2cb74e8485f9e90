"""Files of CIFAR-10: archives, and damaged or missing files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cifar10_files import (
    Planes,
    differences,
    expected_splits,
    gray_by_hand,
    write_folder,
    write_tar,
)
from damaged_files import (
    assert_names_cut_file,
    assert_names_file,
    assert_prepares,
    assert_refuses_pickle,
    pack,
)

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images import cifar


def test_gray_archive(data: Path, planes: Planes, write_npz_xz: Callable[..., None]) -> None:
    images = {part: gray_by_hand(pair[0]) for part, pair in planes.items()}
    arrays = {f"{part}_x": values for part, values in images.items()}
    arrays |= {f"{part}_y": pair[1] for part, pair in planes.items()}
    write_npz_xz(data / "cifar10_gray.npz.xz", **arrays)
    task = load_task("image", data_dir=data)
    assert np.array_equal(task.split("test")[2][0].reshape(32, 32).numpy(), images["test"][2])
    assert "172" in task.data_source
    with pytest.raises(
        InputError,
        match=r"cifar10_gray\.npz\.xz.*cifar10_rgb\.npz\.xz",
    ) as raised:
        load_task("image", data_dir=data, color="rgb")
    assert raised.value.args[0].count("cifar10_gray") == 1  # not among the accepted files


def test_color_archive_is_decoded_in_pieces(
    data: Path, planes: Planes, write_npz_xz: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "_PIECE", 7)
    write_npz_xz(data / "cifar10_rgb.npz.xz", **differences(planes))
    task = load_task("image", data_dir=data, color="rgb", layout="image")
    assert "172" in task.data_source
    for name, (images, labels) in expected_splits(planes).items():
        split = task.split(name)
        assert [label for _, label in split] == labels.tolist()
        stored = np.stack([split.images[row] for row in split.rows])
        assert np.array_equal(stored.transpose(0, 3, 1, 2), images)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"test_x_diff": None}, "test:", id="absent"),
        pytest.param(
            {"train_x_diff": np.zeros((30, 32, 32), np.uint8)}, r"got \(32, 32\)", id="gray"
        ),
        pytest.param(
            {"train_y": np.zeros(29, np.uint8)},
            r"train: .*\b30\b.*got uint8 of shape \(29,\)",
            id="labels",
        ),
        pytest.param({"test_y": np.full(6, 10, np.uint8)}, "labels 0 to 9", id="label 10"),
    ],
)
def test_color_archive_with_other_arrays_is_refused(
    data: Path,
    planes: Planes,
    write_npz_xz: Callable[..., None],
    change: dict[str, np.ndarray | None],
    message: str,
) -> None:
    arrays = {k: v for k, v in {**differences(planes), **change}.items() if v is not None}
    write_npz_xz(data / "cifar10_rgb.npz.xz", **arrays)
    with pytest.raises(InputError, match=message) as raised:
        load_task("image", data_dir=data, color="rgb")
    assert "cifar10_rgb.npz.xz" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_prepare_and_status(data: Path, planes: Planes, cache: Path) -> None:
    write_tar(data, planes)
    assert_prepares("image", data, cache, "cifar-10-binary.tar.gz")


@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"])
def test_pickles_are_refused(data: Path, name: str) -> None:
    assert_refuses_pickle("image", data, name, "cifar-10-binary.tar.gz")


@pytest.mark.parametrize("cut", [-1, 5000], ids=["one byte", "most"])
def test_truncated_batch(data: Path, planes: Planes, cut: int) -> None:
    write_folder(data, planes)
    path = data / "cifar-10-batches-bin" / "data_batch_3.bin"
    assert_names_cut_file("image", data, path, cut)


def test_missing_batch(data: Path, planes: Planes) -> None:
    write_folder(data, planes)
    (data / "cifar-10-batches-bin" / "data_batch_2.bin").unlink()
    assert_names_file("image", data, "data_batch_2.bin:")


@pytest.mark.parametrize("keep", [0.5, 0.98], ids=str)
def test_truncated_tar(data: Path, planes: Planes, keep: float) -> None:
    write_tar(data, planes)
    assert_names_cut_file("image", data, data / "cifar-10-binary.tar.gz", keep)


def test_tar_without_a_batch(data: Path, planes: Planes) -> None:
    pack(data / "cifar-10-binary.tar.gz", {"cifar-10-batches-bin/readme.html": b""})
    assert_names_file("image", data, "cifar-10-batches-bin/data_batch_1.bin")


def test_label_out_of_range(data: Path, planes: Planes) -> None:
    planes["test"][1][3] = 10
    write_folder(data, planes)
    with pytest.raises(InputError, match=r"cifar-10-batches-bin.*\b0\b.*\b9\b"):
        load_task("image", data_dir=data)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        pytest.param({"train_x": np.zeros((9, 32, 32))}, r"uint8\b.*float64\b", id="dtype"),
        pytest.param({"train_x": np.zeros((9, 28, 28), np.uint8)}, r"\(28, 28\)", id="shape"),
        pytest.param({"train_y": np.zeros(8, np.uint8)}, r"train: .*uint8.*\(8,\)", id="count"),
        pytest.param({"train_y": np.zeros(9)}, r"train: .*float64.*\(9,\)", id="float labels"),
        pytest.param({"train_y": np.full(9, -1)}, r"\b0\b.*\b9\b.*got -1\b", id="negative"),
        pytest.param({"train_x": None}, "train: ", id="absent"),
        pytest.param({}, "validation", id="too few"),
    ],
)
def test_archive_with_other_arrays_is_refused(
    data: Path, write_npz_xz: Callable[..., None], arrays: dict[str, object], message: str
) -> None:
    content: dict[str, object] = {
        "train_x": np.zeros((9, 32, 32), np.uint8),
        "train_y": np.zeros(9, np.uint8),
        "test_x": np.zeros((2, 32, 32), np.uint8),
        "test_y": np.zeros(2, np.uint8),
        **arrays,
    }
    content = {name: values for name, values in content.items() if values is not None}
    write_npz_xz(data / "cifar10_gray.npz.xz", **content)
    with pytest.raises(InputError, match=message) as raised:
        load_task("image", data_dir=data)
    assert "cifar10_gray.npz.xz" in str(raised.value)


@pytest.mark.slow
def test_real_gray_archive(shared_data: Path) -> None:
    gray = load_task("image", data_dir=shared_data)
    assert {name: len(gray.split(name)) for name in SPLITS} == {
        "train": 45000, "validation": 5000, "test": 10000
    }  # fmt: skip
    pixels = gray.split("train").images.values.astype(np.float64) / 255
    assert pixels.mean() == pytest.approx(cifar._SCALES["gray"].mean[0], abs=1e-4)
    assert pixels.std() == pytest.approx(cifar._SCALES["gray"].std[0], abs=1e-4)


REAL_RGB = "f0813c5ffc4d87f2f23bf5dd74c399a317fc7f67b9ec92ebd14d2d7159ba2753"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_real_color_archive(shared_data: Path, tmp_path: Path) -> None:
    """Check sums, labels and statistics of all images, and the gray archive against them."""
    path = shared_data / "cifar10_rgb.npz.xz"
    with path.open("rb") as stream:
        assert hashlib.file_digest(stream, "sha256").hexdigest() == REAL_RGB
    color = load_task("image", data_dir=shared_data, color="rgb", layout="image")
    gray = load_task("image", data_dir=shared_data)
    for name, count in (("train", 50_000), ("test", 10_000)):
        pixels, labels = color.split(name).images.values, color.split(name).labels.values
        assert pixels.shape == (count, 32, 32, 3)
        assert np.bincount(labels).tolist() == [count // 10] * 10
        assert np.array_equal(labels, gray.split(name).labels.values)
        assert np.array_equal(cifar._colored(pixels, "gray"), gray.split(name).images.values)
    pixels = color.split("train").images.values.reshape(50_000, 1024, 3)
    mean, square, within = np.zeros(3), np.zeros(3), np.zeros(3)
    for start in range(0, 50_000, 5000):
        part = pixels[start : start + 5000].astype(np.float32) / 255
        means, squares = part.mean(axis=1), np.einsum("npc,npc->nc", part, part) / 1024
        mean += means.mean(axis=0, dtype=np.float64) / 10
        square += squares.mean(axis=0, dtype=np.float64) / 10
        # As in torch: divided by 1,023, not 1,024.
        deviations = np.sqrt((squares - means**2) * (1024 / 1023))
        within += deviations.mean(axis=0, dtype=np.float64) / 10
    scale, per_image = cifar._SCALES["rgb"], cifar._PER_IMAGE_10
    assert mean == pytest.approx(scale.mean, abs=6e-5)
    assert np.sqrt(square - mean**2) == pytest.approx(scale.std, abs=6e-5)
    assert mean == pytest.approx(per_image.mean, abs=6e-5)
    assert within == pytest.approx(per_image.std, abs=6e-5)
    # The color archive alone gives the same gray task.
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / path.name).symlink_to(path)
    alone = load_task("image", data_dir=tmp_path / "alone")
    assert alone.fingerprint() == gray.fingerprint()
