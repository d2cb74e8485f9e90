"""Tests of images in shards: stored, resumed, shared between processes, clear errors."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from rifflemix.errors import InputError
from rifflemix.lab.tasks import PreparationStopped
from rifflemix.lab.tasks.data_io import shards
from rifflemix.lab.tasks.data_io.shards import ShardedImages, prepare_shards, prepare_stack
from rifflemix.locks import locked

NO_PROGRESS = lambda what, done, total: None  # noqa: E731


@dataclass(frozen=True)
class Numbered:
    """Fill image n with n, and write every request to a log."""

    diary: Path
    fails_from: int = 1000
    error: Exception | None = None

    def __call__(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        with self.diary.open("a") as stream:
            stream.write(f"{first}+{count}\n")
        if first >= self.fails_from and self.error is not None:
            raise self.error
        values = np.arange(first, first + count, dtype=np.uint8)
        return np.repeat(values, 4).reshape(-1, 2, 2), values % 2

    def entries(self) -> list[str]:
        return sorted(self.diary.read_text().split()) if self.diary.exists() else []


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_SHARD", 4)
    monkeypatch.setattr(shards, "_cores", lambda: 1)


@pytest.fixture
def maker(tmp_path: Path) -> Numbered:
    return Numbered(tmp_path / "diary")


def content(folder: Path, maker: Numbered, count: int) -> list[int]:
    images, labels = prepare_shards(folder, maker, count, NO_PROGRESS, "making")
    split = ShardedImages(images, labels, np.arange(count))
    rows = [split[index] for index in range(len(split))]
    assert [label for _, label in rows] == [number % 2 for number in range(count)]
    assert all((pixels == pixels[0]).all() and pixels.shape == (4,) for pixels, _ in rows)
    return [int(pixels[0]) for pixels, _ in rows]


def test_shards_are_made_once(tmp_path: Path, maker: Numbered) -> None:
    for _ in range(2):
        assert content(tmp_path / "x", maker, 10) == list(range(10))
    assert maker.entries() == ["0+4", "4+4", "8+2"]


def test_fewer_samples_use_existing_shards_and_more_add_shards(
    tmp_path: Path, maker: Numbered
) -> None:
    for count in (10, 7, 3, 12):
        assert content(tmp_path / "x", maker, count) == list(range(count))
    assert maker.entries() == ["0+4", "4+4", "8+2", "8+4"]


def test_shards_resume_after_a_kill(tmp_path: Path, maker: Numbered) -> None:
    broken = Numbered(maker.diary, fails_from=8, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        content(tmp_path / "x", broken, 12)
    assert content(tmp_path / "x", maker, 12) == list(range(12))
    assert maker.entries() == ["0+4", "4+4", "8+4", "8+4"]


@pytest.mark.parametrize("damage", ["cut", "label gone", "list gone"])
def test_damaged_shards_are_made_again(tmp_path: Path, maker: Numbered, damage: str) -> None:
    content(tmp_path / "x", maker, 8)
    piece = next((tmp_path / "x").glob("00001-*"))
    if damage == "cut":
        (piece / "images.npy").write_bytes((piece / "images.npy").read_bytes()[:-2])
    else:
        (piece / ("labels.npy" if damage == "label gone" else "contents.json")).unlink()
    assert content(tmp_path / "x", maker, 8) == list(range(8))
    assert maker.entries() == ["0+4", "4+4", "4+4"]


@pytest.mark.parametrize("by_image", [False, True])
def test_fewer_samples_than_a_damaged_shard_contains(
    tmp_path: Path, maker: Numbered, by_image: bool
) -> None:
    folder = tmp_path / "x"
    for count in (4, 3):
        if by_image:
            stack = prepare_stack(folder, maker, count, NO_PROGRESS, "making", 4)
            assert [int(stack[row][0, 0]) for row in range(count)] == list(range(count))
        else:
            assert content(folder, maker, count) == list(range(count))
        [piece] = folder.glob("*-*")
        (piece / ("contents.json" if by_image else "images.npy")).write_bytes(b"damaged")
    assert maker.entries() == ["0+3", "0+4"]


class _Killed(Numbered):
    def __call__(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        if first == 4:
            os._exit(9)
        return super().__call__(first, count)


def test_killed_process_is_reported(
    tmp_path: Path, maker: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_cores", lambda: 2)
    with pytest.raises(InputError, match=r"making images .*memory") as raised:
        content(tmp_path / "x", _Killed(maker.diary), 12)
    assert "\n" not in str(raised.value)
    assert content(tmp_path / "x", maker, 12) == list(range(12))


def test_progress_counts_existing_shards(tmp_path: Path, maker: Numbered) -> None:
    content(tmp_path / "x", maker, 5)
    said: list[tuple[str, int, int | None]] = []
    prepare_shards(tmp_path / "x", maker, 10, lambda *what: said.append(what), "making")
    assert said == [("making", 4, 10), ("making", 8, 10), ("making", 10, 10)]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("image 5 "), "image 5 "),
        (OSError(errno.ENOSPC, "No space left on device"), "x: No space left.*RIFFLEMIX_CACHE"),
    ],
    ids=["data", "disk"],
)
def test_errors_are_one_sentence(
    tmp_path: Path, cores: int, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_cores", lambda: cores)
    maker = Numbered(tmp_path / "diary", fails_from=4, error=error)
    with pytest.raises(InputError, match=message) as raised:
        content(tmp_path / "x", maker, 12)
    assert "\n" not in str(raised.value)


def test_folder_that_cannot_be_made(tmp_path: Path, maker: Numbered) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match="file/x: Not a directory"):
        content(tmp_path / "file" / "x", maker, 3)


def test_second_process_waits_for_the_first(
    tmp_path: Path, maker: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_WAIT_SECONDS", 0.01)
    folder = tmp_path / "x"
    folder.mkdir()
    waiting = threading.Event()
    said: list[str] = []

    def progress(what: str, done: int, total: int | None) -> None:
        said.append(what)
        waiting.set()

    def other() -> None:
        with locked(folder):
            waiting.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    while not (folder / ".lock").exists():
        time.sleep(0.001)
    time.sleep(0.05)
    prepare_shards(folder, maker, 3, progress, "making")
    thread.join()
    assert re.fullmatch("making, .*wait.*", said[0])
    assert said[-1] == "making"


def _die_while_making(folder: Path, maker: Numbered) -> None:
    def progress(what: str, done: int, total: int | None) -> None:
        if done == 8:
            os._exit(9)

    prepare_shards(folder, maker, 20, progress, "making")


@pytest.mark.slow
def test_killed_process_leaves_complete_shards_and_no_lock(tmp_path: Path, maker: Numbered) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_die_while_making, args=(tmp_path / "x", maker)
    )
    # The other process uses shards of 1,000 and dies after the first shard.
    process.start()
    process.join(60)
    assert content(tmp_path / "x", maker, 20) == list(range(20))


def test_maps_files_and_pickles_as_paths(tmp_path: Path, maker: Numbered) -> None:
    images, labels = prepare_shards(tmp_path / "x", maker, 12, NO_PROGRESS, "making")
    assert all(isinstance(array.values.base, np.memmap) for array in (*images, *labels))
    digests = {
        ShardedImages(images, labels, np.array(rows)).digest()
        for rows in ([0, 1, 5], [0, 5, 1], [0, 1], [0, 1, 5])
    }
    assert len(digests) == 3


def test_stop_keeps_shards_and_each_call_makes_at_least_one(
    tmp_path: Path, maker: Numbered
) -> None:
    for made in (4, 8, 12):
        with pytest.raises(PreparationStopped, match=f"^making: {made} of 14$"):
            prepare_shards(tmp_path / "x", maker, 14, lambda *_: True, "making")
    prepare_shards(tmp_path / "x", maker, 14, lambda *_: True, "making")
    assert maker.entries() == ["0+4", "12+2", "4+4", "8+4"]
    assert content(tmp_path / "x", maker, 14) == list(range(14))
