"""Tests of MNIST: idx files, the archive, the hub."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from damaged_files import assert_names_cut_file

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.images import digits

Pairs = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def pairs() -> Pairs:
    rng = np.random.default_rng(1)
    return {
        part: (
            rng.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            rng.integers(0, 10, count, dtype=np.uint8),
        )
        for part, count in (("train", 20), ("test", 4))
    }


def write_idx(folder: Path, pairs: Pairs, zipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, (images, labels) in pairs.items():
        for name, array in ((f"{part}_images", images), (f"{part}_labels", labels)):
            head = bytes([0, 0, 8, array.ndim])
            head += b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = head + array.tobytes()
            path = folder / (digits._IDX[name] + (".gz" if zipped else ""))
            path.write_bytes(gzip.compress(content) if zipped else content)


@pytest.mark.parametrize("source", ["plain", "gz", "torchvision", "npz", "hub"])
def test_all_sources_give_the_same_samples(
    source: str,
    data: Path,
    pairs: Pairs,
    write_npz_xz: Callable[..., None],
    put_on_hub: Callable[..., Any],
) -> None:
    if source == "npz":
        (train_x, train_y), (test_x, test_y) = pairs["train"], pairs["test"]
        write_npz_xz(
            data / "mnist.npz.xz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y
        )
    elif source == "hub":
        put_on_hub("ylecun/mnist", on_hub(pairs))
    else:
        write_idx(data / "MNIST/raw" if source == "torchvision" else data, pairs, source == "gz")
    task = load_task("mnist", data_dir=None if source == "hub" else data)
    assert (task.vocab_size, task.max_length, task.padding) == (256, 784, False)
    images, labels = pairs["train"]
    found = [task.split("train")[index] for index in range(18)]
    found += [task.split("validation")[index] for index in range(2)]
    assert len(task.split("train")) == 18
    assert [label for _, label in found] == labels.tolist()
    assert np.array_equal(torch.stack([x for x, _ in found]).numpy(), images.reshape(20, -1))
    assert [label for _, label in task.split("test")] == pairs["test"][1].tolist()


def on_hub(pairs: Pairs) -> dict[str, Any]:
    class Rows(list):
        def __getitem__(self, column: str) -> list[int]:
            return [row[column] for row in self]

    return {
        part: Rows({"image": x, "label": int(y)} for x, y in zip(*pair, strict=True))
        for part, pair in pairs.items()
    }


def test_patches_are_normalised_vectors(data: Path, pairs: Pairs) -> None:
    write_idx(data, pairs)
    task = load_task("mnist", data_dir=data, patch_size=14)
    assert (task.input_kind, task.num_features, task.max_length) == ("vectors", 196, 4)
    expected = (pairs["test"][0][3][14:, :14].reshape(-1) / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(
        task.split("test")[3][0][2], torch.tensor(expected).float(), atol=1e-5, rtol=1e-5
    )


def test_one_of_four_files_is_missing(data: Path, pairs: Pairs) -> None:
    write_idx(data, pairs)
    (data / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte:"):
        load_task("mnist", data_dir=data)


def test_truncated_idx(data: Path, pairs: Pairs) -> None:
    write_idx(data, pairs)
    assert_names_cut_file("mnist", data, data / "train-images-idx3-ubyte", -100)


def test_images_and_labels_of_different_counts(data: Path, pairs: Pairs) -> None:
    pairs["train"] = (pairs["train"][0], pairs["train"][1][:-1])
    write_idx(data, pairs)
    with pytest.raises(InputError, match=r"labels.*20 images"):
        load_task("mnist", data_dir=data)


def test_fetching_fails_in_one_sentence(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def urlopen(url: str, timeout: float) -> object:
        raise ConnectionError("no route to host")

    def load_dataset(*_: object, **__: object) -> object:
        raise TypeError("no Parquet\nmore lines")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with monkeypatch.context() as patch:
        patch.setattr("urllib.request.urlopen", urlopen)
        with pytest.raises(InputError, match=r"parquet.*no route.*--data-dir"):
            load_task("mnist")
    monkeypatch.setattr("rifflemix.lab.tasks.data_io.file_task.download", lambda *_: b"")
    with pytest.raises(InputError, match="ylecun/mnist") as raised:
        load_task("mnist")
    assert "\n" not in str(raised.value)
    assert not cache.exists()


def test_fetching_needs_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"'rifflemix\[data\]'.*--data-dir"):
        load_task("mnist")


@pytest.mark.slow
def test_real_archive_is_read(shared_data: Path) -> None:
    task = load_task("mnist", data_dir=shared_data)
    assert len(task.split("train")) == 54000
    pixels = task.split("train").images.values / 255
    assert pixels.mean() == pytest.approx(digits._MNIST_SCALE.mean[0], abs=1e-4)
    assert pixels.std() == pytest.approx(digits._MNIST_SCALE.std[0], abs=1e-4)
    assert [task.split("test")[index][1] for index in range(5)] == [7, 2, 1, 0, 4]
