"""Tests of CIFAR-10: every format, gray and color, refusals."""

from __future__ import annotations

import hashlib
import io
import math
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task, prepare_task, task_status
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images import cifar

PER_BATCH = 6
Planes = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def planes(monkeypatch: pytest.MonkeyPatch) -> Planes:
    """Build images (M, 3, 32, 32) and labels of a tiny CIFAR-10."""
    binary = cifar._BINARY_10
    files = {part: dict.fromkeys(names, PER_BATCH) for part, names in binary.files.items()}
    monkeypatch.setattr(cifar, "_BINARY_10", replace(binary, files=files))
    rng = np.random.default_rng(0)
    return {
        part: (
            rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8),
            rng.integers(0, 10, count, dtype=np.uint8),
        )
        for part, count in (("train", 5 * PER_BATCH), ("test", PER_BATCH))
    }


def batches(planes: Planes) -> dict[str, bytes]:
    """Build the binary files: label byte and planes, image by image."""
    rows = {
        part: np.concatenate([labels[:, None], images.reshape(len(labels), -1)], axis=1)
        for part, (images, labels) in planes.items()
    }
    files = {
        f"data_batch_{number + 1}.bin": rows["train"][
            number * PER_BATCH : (number + 1) * PER_BATCH
        ].tobytes()
        for number in range(5)
    }
    return {**files, "test_batch.bin": rows["test"].tobytes()}


def write_folder(data: Path, planes: Planes) -> None:
    (data / "cifar-10-batches-bin").mkdir()
    for name, content in batches(planes).items():
        (data / "cifar-10-batches-bin" / name).write_bytes(content)


def write_tar(data: Path, planes: Planes) -> None:
    with tarfile.open(data / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, content in {**batches(planes), "readme.html": b"x"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def differences(planes: Planes) -> dict[str, np.ndarray]:
    """Build arrays of cifar10_rgb.npz.xz: differences mod 256 along plane, row and column."""
    arrays = {}
    for part, (images, labels) in planes.items():
        values = images.astype(np.int64)
        for axis in (3, 2, 1):
            values = np.diff(values, axis=axis, prepend=0)
        arrays[f"{part}_x_diff"] = (values % 256).astype(np.uint8)
        arrays[f"{part}_y"] = labels
        arrays[f"{part}_src"] = np.ones(len(labels), np.uint8)
    return arrays


def gray_by_hand(planes: np.ndarray) -> np.ndarray:
    red, green, blue = (planes[:, channel].astype(np.float64) for channel in range(3))
    exact = (19595 * red + 38470 * green + 7471 * blue) / 65536
    return np.floor(exact + 0.5).astype(np.uint8)


def expected_splits(planes: Planes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    images, labels = planes["train"]
    return {
        "train": (images[:27], labels[:27]),
        "validation": (images[27:], labels[27:]),
        "test": planes["test"],
    }


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
def test_sizes_of_the_task(
    data: Path, planes: Planes, options, kind: str, features: int, length: int
) -> None:
    write_folder(data, planes)
    task = load_task("image", data_dir=data, **options)
    assert (task.input_kind, task.num_features, task.max_length) == (kind, features, length)
    inputs, _ = task.split("train")[0]
    assert inputs.shape == (length, features)
    assert inputs.dtype == torch.float32


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
def test_color_archive_of_something_else(
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


def test_prepare_and_status(data: Path, planes: Planes, cache: Path) -> None:
    write_tar(data, planes)
    before = task_status("image", data).detail
    assert "cifar-10-binary.tar.gz" in before
    folder = prepare_task("image", data_dir=data)
    assert folder is not None
    assert folder.is_relative_to(cache)
    assert folder.is_dir()
    assert task_status("image", data).detail != before


@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"])
def test_pickles_are_refused(data: Path, name: str) -> None:
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).write_bytes(b"\x80\x02}q\x01.")
    with pytest.raises(InputError, match=r"cifar-10-binary\.tar\.gz"):
        load_task("image", data_dir=data)


@pytest.mark.parametrize("cut", [-1, 5000], ids=["one byte", "most"])
def test_truncated_batch(data: Path, planes: Planes, cut: int) -> None:
    write_folder(data, planes)
    path = data / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"data_batch_3\.bin:"):
        load_task("image", data_dir=data)


def test_missing_batch(data: Path, planes: Planes) -> None:
    write_folder(data, planes)
    (data / "cifar-10-batches-bin" / "data_batch_2.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_2\.bin:"):
        load_task("image", data_dir=data)


@pytest.mark.parametrize("keep", [0.5, 0.98], ids=str)
def test_truncated_tar(data: Path, planes: Planes, keep: float) -> None:
    write_tar(data, planes)
    path = data / "cifar-10-binary.tar.gz"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InputError, match=r"cifar-10-binary\.tar\.gz:"):
        load_task("image", data_dir=data)


def test_tar_without_a_batch(data: Path, planes: Planes) -> None:
    with tarfile.open(data / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("cifar-10-batches-bin/readme.html"))
    with pytest.raises(InputError, match=r"cifar-10-batches-bin/data_batch_1\.bin"):
        load_task("image", data_dir=data)


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
def test_archive_of_something_else(
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
