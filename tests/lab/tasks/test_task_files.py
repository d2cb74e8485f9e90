"""Tests of the cache and the readers."""

from __future__ import annotations

import gzip
import lzma
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from rifflemix.errors import InputError
from rifflemix.lab.tasks.data_io import files, safe_readers


def _make(counter: list[int], value: int = 7) -> dict[str, np.ndarray]:
    counter.append(1)
    return {"a": np.full((5, 2), value, dtype=np.uint8), "b": np.arange(3)}


def test_cache_is_made_once_and_mapped(tmp_path: Path) -> None:
    calls: list[int] = []
    for _ in range(2):
        arrays = files.cached_arrays(tmp_path / "deep" / "key", lambda: _make(calls))
        assert arrays["a"].values.tolist() == [[7, 7]] * 5
        assert arrays["b"].values.tolist() == [0, 1, 2]
        assert isinstance(arrays["a"].values.base, np.memmap)
    assert len(calls) == 1
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["key"]


def test_damaged_cache_is_made_again(tmp_path: Path) -> None:
    calls: list[int] = []
    files.cached_arrays(tmp_path / "key", lambda: _make(calls))
    content = (tmp_path / "key" / "a.npy").read_bytes()
    (tmp_path / "key" / "a.npy").write_bytes(content[:-3])
    arrays = files.cached_arrays(tmp_path / "key", lambda: _make(calls))
    assert arrays["a"].values.shape == (5, 2)
    assert len(calls) == 2
    assert (tmp_path / "key" / "a.npy").read_bytes() == content


@pytest.mark.parametrize("name", ["b.npy", "contents.json"])
def test_cache_with_a_file_missing_is_made_again(tmp_path: Path, name: str) -> None:
    calls: list[int] = []
    files.cached_arrays(tmp_path / "key", lambda: _make(calls))
    (tmp_path / "key" / name).unlink()
    arrays = files.cached_arrays(tmp_path / "key", lambda: _make(calls))
    assert sorted(arrays) == ["a", "b"]
    assert arrays["b"].values.tolist() == [0, 1, 2]
    assert len(calls) == 2


def test_cache_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    calls: list[int] = []
    arrays = files.cached_arrays(tmp_path / "file" / "key", lambda: _make(calls))
    assert arrays["a"].values.tolist() == [[7, 7]] * 5
    copy = pickle.loads(pickle.dumps(arrays["a"]))
    assert copy.values.tolist() == arrays["a"].values.tolist()


def test_failed_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    arrays = files.cached_arrays(tmp_path / "key", lambda: _make([]))
    assert arrays["a"].values.shape == (5, 2)
    assert list(tmp_path.glob("**/*")) == []


def test_stat_key_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    first = files.stat_key([path])
    assert files.stat_key([path]) == first
    assert files.stat_key([path], "rgb") != first
    written = path.stat().st_mtime_ns
    os.utime(path, ns=(written, written + 1))
    assert files.stat_key([path]) != first
    path.write_bytes(b"abcd")
    os.utime(path, ns=(written, written))
    assert files.stat_key([path]) != first


def _idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.tobytes()


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gz"])
def test_read_idx(tmp_path: Path, zipped: bool) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / ("x.gz" if zipped else "x")
    path.write_bytes(gzip.compress(_idx(array)) if zipped else _idx(array))
    assert np.array_equal(safe_readers.read_idx(path), array)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("x", b"\x00\x00\x0d\x01" + bytes(8), "idx", id="floats"),
        pytest.param("x", b"\x89PNG" + bytes(20), "idx", id="magic"),
        pytest.param("x", b"", "idx", id="empty"),
        pytest.param("x", b"\x00\x00\x08\x03\x00", "idx", id="short header"),
        pytest.param("x", _idx(np.zeros((4, 4), np.uint8))[:-1], r"\b15\b", id="truncated"),
        pytest.param("x", _idx(np.zeros((4, 4), np.uint8)) + b"x", r"\b17\b", id="longer"),
        pytest.param("x.gz", gzip.compress(bytes(1000))[:-9], "idx", id="truncated gz"),
        pytest.param("x.gz", b"no gzip at all", "gzip", id="no gz"),
    ],
)
def test_read_idx_refuses(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: .*{message}") as raised:
        safe_readers.read_idx(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)


def test_read_npz_refuses_pickles(tmp_path: Path, write_npz_xz) -> None:
    path = tmp_path / "x.npz.xz"
    write_npz_xz(path, x=np.array([{"an": "object"}], dtype=object))
    with pytest.raises(InputError, match=r"x\.npz\.xz: .*pickled objects"):
        safe_readers.read_npz(path)


@pytest.mark.parametrize("cut", [0, 10, -10], ids=["empty", "head", "tail"])
def test_read_npz_refuses_truncation(tmp_path: Path, write_npz_xz, cut: int) -> None:
    path = tmp_path / "x.npz.xz"
    write_npz_xz(path, x=np.arange(1000))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"x\.npz\.xz:"):
        safe_readers.read_npz(path)


def test_all_streams_of_an_xz_file_are_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.xz"
    parts = [bytes(range(256)) * 9000, b"", b"the end\n"]
    path.write_bytes(b"".join(lzma.compress(part) + bytes(8) for part in parts))
    assert safe_readers.read_bytes(path) == b"".join(parts)
    path.write_bytes(lzma.compress(b"one\ntwo") + lzma.compress(b"\nthree\n"))
    assert [line for _, line in safe_readers.read_lines(path)] == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    "second",
    [b"junk", *(lzma.compress(b"two\n")[part] for part in (slice(1, None), slice(-1), slice(6)))],
    ids=["no stream", "a damaged head", "cut at the end", "cut at the head"],
)
def test_a_damaged_second_stream_of_an_xz_file(tmp_path: Path, second: bytes) -> None:
    """Check the error, because lzma's own reader silently drops a damaged second stream."""
    path = tmp_path / "x.txt.xz"
    path.write_bytes(lzma.compress(b"one\n") + second)
    with pytest.raises(InputError, match=r"x\.txt\.xz:"):
        list(safe_readers.read_lines(path))


def test_missing_file_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone:"):
        safe_readers.read_idx(tmp_path / "gone")


@pytest.mark.timeout(20)
def test_cache_without_locks_keeps_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a network file system without locks."""

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    folder = tmp_path / "cache" / "x"
    monkeypatch.setattr("fcntl.flock", refuse)
    arrays = files.cached_arrays(folder, lambda: {"a": np.arange(3)})
    assert arrays["a"].values.tolist() == [0, 1, 2]
    arrays = files.cached_arrays(folder, lambda: _make([]), must_keep=True)
    assert arrays["a"].path == folder / "a.npy"


def test_cache_written_by_another_process_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = files.store_arrays

    def late(folder: Path, arrays: files.Arrays) -> None:
        store(folder, arrays)
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr(files, "store_arrays", late)
    arrays = files.cached_arrays(tmp_path / "key", lambda: _make([]), must_keep=True)
    assert arrays["a"].path == tmp_path / "key" / "a.npy"
