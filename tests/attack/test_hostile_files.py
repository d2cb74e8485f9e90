"""Every loader, with damaged files, gives one error line or the original data."""

from __future__ import annotations

import csv
import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.files import read_json, read_json_lines, read_tensors, write_tensors
from rifflemix.lab.reproduction import load_results
from rifflemix.lab.tasks.data_io.files import load_arrays, store_arrays
from rifflemix.lab.tasks.data_io.safe_readers import (
    read_bytes,
    read_idx,
    read_lines,
    read_npy,
    read_npz,
)
from rifflemix.lab.tasks.graphs.smiles import read_csv
from rifflemix.lab.tasks.synthetic.pathfinder_files import read_gray_png
from rifflemix.models import from_pretrained

ROWS = [[f"word {n} and {n * 7 % 5}", n % 2] for n in range(40)]


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "y"], *ROWS])


def write_lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": t, "y": y}) + "\n" for t, y in ROWS))


def write_npz(path: Path) -> None:
    np.savez(path, x=np.arange(160.0, dtype=np.float32).reshape(40, 4), y=np.arange(40) % 2)


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(t for t, _ in ROWS).encode()))


def write_idx(path: Path) -> None:
    content = b"\0\0\x08\x03" + struct.pack(">III", 2, 3, 4) + bytes(range(24))
    path.write_bytes(gzip.compress(content))


def write_png(path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(range(n, n + 8)) for n in range(8))
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


def write_molecules(path: Path) -> None:
    path.write_text("smiles,y\n" + "".join(f"CC{'O' * n},{n / 3}\n" for n in range(9)))


def write_model(path: Path) -> None:
    model = rm.create_model(
        "encoder", mixer="average", dim=8, num_layers=1, num_heads=1, vocab_size=5, max_length=4,
        num_classes=2,
    )  # fmt: skip
    model.save_pretrained(path.parent / "model")
    path.write_bytes((path.parent / "model" / "config.json").read_bytes())


def model_of(path: Path) -> Any:
    (path.parent / "model" / "config.json").write_bytes(path.read_bytes())
    return from_pretrained(path.parent / "model")


def write_weights(path: Path) -> None:
    write_model(path)
    path.write_bytes(weights(path).read_bytes())


def weights(path: Path) -> Path:
    return next((path.parent / "model").glob("*.safetensors"))


def model_with(path: Path) -> Any:
    weights(path).write_bytes(path.read_bytes())
    return from_pretrained(path.parent / "model")


def write_cache(path: Path) -> None:
    store_arrays(path.parent / "cache", {"a": np.arange(99), "b": np.zeros((3, 3))})
    path.write_bytes((path.parent / "cache" / "a.npy").read_bytes())


def cache_of(path: Path) -> Any:
    (path.parent / "cache" / "a.npy").write_bytes(path.read_bytes())
    found = load_arrays(path.parent / "cache")
    if found is not None:  # a loader must not return changed data
        assert np.array_equal(found["a"].values, np.arange(99))


def task_of(path: Path, kind: str, **options: Any) -> Any:
    return rm.tasks.load_task(kind, data=str(path), **options)


LOADERS: dict[str, tuple[str, Callable[[Path], Any], Callable[[Path], Any]]] = {
    "csv task": ("x.csv", write_csv, lambda p: task_of(p, "csv", input="text", label="y")),
    "jsonl task": ("x.jsonl", write_lines, lambda p: task_of(p, "jsonl", input="text", label="y")),
    "npz task": ("x.npz", write_npz, lambda p: task_of(p, "npz", input="x", label="y")),
    "npz": ("x.npz", write_npz, read_npz),
    "npy": (
        "x.npy",
        lambda p: np.save(p, np.arange(12).reshape(3, 4)),
        lambda p: read_npy(p, p.read_bytes()),
    ),
    "gzip": ("x.gz", write_gzip, read_bytes),
    "lines": ("x.gz", write_gzip, lambda p: list(read_lines(p))),
    "idx": ("x.gz", write_idx, read_idx),
    "png": ("x.png", write_png, lambda p: read_gray_png(p, 8)),
    "molecules": ("x.csv", write_molecules, lambda p: list(read_csv(p, "smiles", "y"))),
    "json": ("x.json", lambda p: p.write_text(json.dumps({"a": [1, 2.5, None, "x"]})), read_json),
    "json lines": ("x.jsonl", write_lines, read_json_lines),
    "results": ("x.json", lambda p: p.write_text('{"format": 1}'), lambda p: load_results([p])),
    "tensors": (
        "x.safetensors",
        lambda p: write_tensors(p, {"a": torch.arange(9.0)}, {"step": 1}),
        lambda p: assert_whole(*read_tensors(p)),
    ),
    "configuration": ("x.json", write_model, model_of),
    "weights": ("x.bin", write_weights, model_with),
    "cache": ("x.npy", write_cache, cache_of),
}


def assert_whole(tensors: Any, meta: Any) -> None:
    assert torch.equal(tensors["a"], torch.arange(9.0))
    assert meta == {"step": 1}


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Cut, flip, insert, delete, repeat or replace bytes of a file."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(data) + 1)
        match draw.choice(("cut", "flip", "insert", "delete", "repeat", "huge", "junk", "text")):
            case "cut":
                del data[at:]
            case "flip" if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case "insert":
                data[at:at] = draw.randbytes(draw.randint(1, 9))
            case "delete":
                del data[at : at + draw.randint(1, 20)]
            case "repeat":
                data[at:at] = data[: draw.randint(0, 200)]
            case "huge":  # may overwrite a length field
                data[at : at + 4] = draw.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4))
            case "junk":
                data = bytearray(draw.randbytes(draw.randint(0, 300)))
            case "text":
                text = (
                    b"9" * 400,
                    b'"',
                    b"[" * 5000,
                    b"NaN",
                    b"\xef\xbb\xbf",
                    b"\r",
                    b"1e999",
                    b",",
                )
                data[at:at] = draw.choice(text)
    return bytes(data)


@pytest.mark.filterwarnings("ignore::rifflemix.errors.InputWarning")  # e.g. about duplicates
@pytest.mark.parametrize("name", LOADERS)
def test_loaders(name: str, attack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "kept"))
    file, write, load = LOADERS[name]
    path = tmp_path / file
    write(path)
    content = path.read_bytes()

    def case(draw: random.Random) -> None:
        path.write_bytes(damaged(draw, content))
        try:
            load(path)
        except InputError as error:
            attack.refused(error)

    attack.each(30, case)


def test_the_files_are_good_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All loaders accept the undamaged files; otherwise every case would be a trivial error."""
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "kept"))
    for name, (file, write, load) in LOADERS.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        write(folder / file)
        if name != "results":
            load(folder / file)
