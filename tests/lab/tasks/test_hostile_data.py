"""Check that damaged or hostile data gives one sentence and needs bounded memory."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import json
import lzma
import os
import re
import shutil
import struct
import tarfile
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.data_io import file_task, safe_readers
from rifflemix.lab.tasks.data_io.file_task import Remote
from rifflemix.lab.tasks.data_io.files import check_ids, load_arrays, store_arrays
from rifflemix.lab.tasks.data_io.safe_readers import (
    read_bytes,
    read_idx,
    read_lines,
    read_npy,
    read_npz,
)
from rifflemix.lab.tasks.graphs.smiles import read_csv
from rifflemix.lab.tasks.synthetic.pathfinder_files import read_gray_png

# CSV.


@pytest.mark.parametrize(
    "rows",
    ['"CCO,1.0\n', "CCO," + "1" * 140_000 + "\n", '"C"C,1\n', "C,\x00\n"],
    ids=["cut inside a quote", "a long field", "a quote inside", "a null"],
)
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_malformed_csv_files_are_refused(rows: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ending}"
    content = ("smiles,y\n" + rows).encode()
    path.write_bytes(gzip.compress(content) if ending == "csv.gz" else content)
    with pytest.raises(InputError, match=r"x.csv"):
        list(read_csv(path, "smiles", "y"))


@pytest.mark.parametrize("target", ["1e39", "1e30", "-1e300", "nan", "1" * 400])
def test_targets_that_overflow(target: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"smiles,y\nCCO,{target}\n")
    with pytest.raises(InputError, match=r"float32\b"):
        list(read_csv(path, "smiles", "y"))


# Bombs.


@contextlib.contextmanager
def little_memory(most: int = 1 << 24) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_pipe_is_refused_as_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gz")
    with pytest.raises(InputError, match=r"x\.gz"):
        read_bytes(tmp_path / "x.gz")


def test_lines_end_with_a_line_feed(tmp_path: Path) -> None:
    path = tmp_path / "x.xz"
    path.write_bytes(lzma.compress(b"a\r\n\nb"))
    assert list(read_lines(path)) == [(1, b"a\r"), (2, b""), (3, b"b")]


def test_idx_file_longer_than_its_header(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 4) + bytes(9), 1))
    with pytest.raises(InputError, match=r"x\.gz.*\b4\b.*\b9\b"):
        read_idx(path)
    path.write_bytes(gzip.compress(b"\0\0\x08\x04" + b"\xff" * 16))
    with pytest.raises(InputError, match=r"x\.gz"):
        read_idx(path)


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


NPY = {
    "large": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}"),
    "negative": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
    "nested": npy("(" * 5000),
    "list": npy("[]"),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (0,)}"),
    "type": npy("{'descr': 5, 'fortran_order': False, 'shape': (0,)}"),
    "version": b"\x93NUMPY\x09\x00",
    "empty": b"",
    "cut": b"\x93NUMPY\x01\x00\xff",
}


@pytest.mark.parametrize("content", NPY.values(), ids=NPY.keys())
def test_malformed_arrays(content: bytes, tmp_path: Path) -> None:
    with (
        little_memory(),
        pytest.raises(InputError, match=r"x.npy: .*(damaged|pickled)"),
    ):
        read_npy(tmp_path / "x.npy", content)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("train_x.npy", content)
    path = tmp_path / "x.npz.xz"
    path.write_bytes(lzma.compress(archive.getvalue(), preset=0))
    with pytest.raises(InputError, match=r"x.npz.xz: .*(damaged|pickled)"):
        read_npz(path)


def test_archives_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz.xz"
    np.savez(archive := io.BytesIO(), x=np.arange(3), y=np.zeros((2, 0)))
    path.write_bytes(lzma.compress(archive.getvalue()))
    assert read_npz(path)["x"].tolist() == [0, 1, 2]
    assert read_npz(path)["y"].shape == (2, 0)


def test_tar_with_a_header_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    info = tarfile.TarInfo("name")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    path.write_bytes(gzip.compress(info.tobuf() + bytes(1 << 24), 1))
    with little_memory(), pytest.raises(InputError, match=r"x\.tar\.gz.*\b4,294,967,296\b"):
        list(safe_readers.tar_members(path))


def test_tar_with_a_member_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("a")
        info.size = 1 << 20
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    monkeypatch.setattr(safe_readers, "_MOST_MEMBER", 1000)
    with pytest.raises(InputError, match=r"x\.tar\.gz"):
        list(safe_readers.read_tar_members(path, lambda name: True))
    monkeypatch.setattr(safe_readers, "_MOST_ARCHIVE", 1000)
    with pytest.raises(InputError, match=r"x\.tar\.gz"):
        list(safe_readers.read_tar_members(path, lambda name: False))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + body


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((60_000, 60_000), r"x\.png.*\bPillow\b"),
        ((2**31 - 1, 2**31 - 1), r"x\.png.*\bPillow\b"),
        ((33, 32), r"\(33, 32\).*\(32, 32\)"),
        ((0, 0), r"x\.png: .*damaged"),
    ],
)
def test_images_of_another_size(size: tuple[int, int], words: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    path = tmp_path / "x.png"
    path.write_bytes(png(*size))
    with little_memory(), pytest.raises(InputError, match=words):
        read_gray_png(path, 32)
    path.write_bytes(png(2, 2, bytes(6)))
    assert read_gray_png(path, 2).shape == (2, 2)


# Texts.


@pytest.mark.parametrize("level", ["word", "byte", "character"])
@pytest.mark.parametrize("empty", ["train", "valid", "test"])
def test_empty_texts(level: str, empty: str, data: Path) -> None:
    for part in ("train", "valid", "test"):
        (data / f"ptb.{part}.txt").write_text("" if part == empty else "a b c\n")
    with pytest.raises(InputError, match=r"task ptb: .*empty"):
        load_task("ptb", data_dir=data, level=level)


def test_deeply_nested_json_lines(data: Path) -> None:
    for part in ("train", "test"):
        (data / f"imdb_{part}.jsonl.xz").write_bytes(lzma.compress(b"[" * 100_000))
    with pytest.raises(InputError, match="imdb_"):
        load_task("text", data_dir=data)


@pytest.mark.parametrize("name", [["digits"], {"a": 1}, 5, None])
def test_invalid_names_are_refused(name: Any) -> None:
    with pytest.raises(InputError, match=re.escape(repr(name))):
        load_task(name)


@pytest.mark.parametrize("folder", [5, b"x", ["x"]])
def test_invalid_folders_are_refused(folder: Any) -> None:
    with pytest.raises(InputError, match="data_dir: "):
        load_task("digits", data_dir=folder)


def test_cache_folder_of_an_unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", "~nosuchuser/cache")
    with pytest.raises(InputError, match=r"RIFFLEMIX_CACHE: .*~nosuchuser"):
        load_task("listops", num_train=2, num_validation=2, num_test=2)


def test_tokenizer_file_of_an_unknown_user(data: Path) -> None:
    pytest.importorskip("tokenizers")
    (data / "input.txt").write_text("a b c " * 100)
    with pytest.raises(InputError, match=r"tokenizer: .*~nosuchuser"):
        load_task("shakespeare", level="bpe", tokenizer="~nosuchuser/x.json", data_dir=data)


# Downloads.

Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def served() -> Iterator[Callable[[Answer], str]]:
    """Serve one answer on this machine and return its address."""
    servers: list[HTTPServer] = []

    def serve(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}/x.txt"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def raw(content: bytes) -> Answer:
    return lambda handler: handler.wfile.write(content) and None


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "breaks off": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"),
    "breaks off in a chunk": raw(CHUNKED + b"ff\r\nabc"),
    "chunks without a size": raw(CHUNKED + b"zz\r\nabc"),
    "no status line": raw(b"nonsense\r\n\r\n"),
    "a bad status": raw(b"HTTP/1.1 abc OK\r\n\r\n"),
    "nothing": raw(b""),
    "not found": raw(b"HTTP/1.1 404 Not Found\r\n\r\n"),
    "headers without end": raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"),
    "too large": raw(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(5000)),
    "another file": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
def test_failed_downloads(
    answer: Answer, served: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_task, "_MOST_BYTES", 4000)
    monkeypatch.setattr(file_task, "_BLOCK", 1000)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    remote = Remote(served(answer), "0" * 64)
    with pytest.raises(InputError, match=r"^why: .*http://127\.0\.0\.1:"):
        file_task.download(remote, lambda *_: None, lambda why: InputError(f"why: {why}"))


def test_errors_of_libraries_become_input_errors() -> None:
    assert issubclass(http.client.IncompleteRead, http.client.HTTPException)


# The cache.

ARRAYS = {"a": np.arange(5, dtype=np.int32), "b": np.zeros((2, 3), dtype=np.uint8)}


def test_a_changed_byte_in_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    store_arrays(folder, ARRAYS)
    assert load_arrays(folder) is not None
    path = folder / "a.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert load_arrays(folder) is None
    store_arrays(folder, ARRAYS)  # replaced
    stored = load_arrays(folder)
    assert stored is not None
    assert stored["a"].values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("text", ["[", "[" * 100_000, '["a"]', '{"a": 5}', '{"../x/a": ""}', "5"])
def test_changed_contents_of_the_cache(text: str, tmp_path: Path) -> None:
    store_arrays(tmp_path / "x", ARRAYS)
    (tmp_path / "x" / "contents.json").write_text(text)
    assert load_arrays(tmp_path / "x") is None


def test_ids_outside_the_vocabulary(data: Path, cache: Path) -> None:
    for part in ("train", "valid", "test"):
        (data / f"ptb.{part}.txt").write_text("a b c\n")
    load_task("ptb", data_dir=data)
    folder = next(path.parent for path in cache.rglob("contents.json"))
    stored = load_arrays(folder)
    assert stored is not None
    arrays = {name: np.array(array.values) for name, array in stored.items()}
    shutil.rmtree(folder)
    arrays["train"][0] = 99
    store_arrays(folder, arrays)
    with pytest.raises(InputError, match=r"\b0 to 3, got .* to 99\b"):
        load_task("ptb", data_dir=data)


def test_ids_below_zero(tmp_path: Path) -> None:
    check_ids(tmp_path, "ids", np.zeros(0, dtype=np.int32), 0)
    with pytest.raises(InputError, match=r"\b0\b.*\b3\b.*got -1\b.*\b2\b"):
        check_ids(tmp_path, "ids", np.array([-1, 2]), 4)


def test_contents_are_checksums(tmp_path: Path) -> None:
    store_arrays(tmp_path / "x", ARRAYS)
    contents = json.loads((tmp_path / "x" / "contents.json").read_text())
    assert {name: len(value) for name, value in contents.items()} == {"a": 64, "b": 64}
