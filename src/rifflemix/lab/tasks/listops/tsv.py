"""Reader and checks for the Long Range Arena's ListOps files with Source<tab>Target lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rifflemix.lab.tasks.core.base import Progress
from rifflemix.lab.tasks.data_io.bounded import read_lines
from rifflemix.lab.tasks.data_io.file_task import Form, Paths, find_source
from rifflemix.lab.tasks.data_io.files import Arrays, Source, damaged
from rifflemix.lab.tasks.data_io.packed import pack_parts
from rifflemix.lab.tasks.listops.grammar import evaluate, from_source

FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
"""File of each split."""

_FOLDERS = (".", "listops-1000", "lra_release/listops-1000")


def find_tsv(data_dir: Path | None) -> Source | None:
    """Find the three files of the Long Range Arena.

    They are in `data_dir`, or in a subfolder as in the Long Range Arena's archive.

    Raises:
        InputError: Some of the three files are missing.
    """
    form = Form("basic_*.tsv", FILES, _decode, _FOLDERS)
    return None if data_dir is None else find_source((form,), data_dir)


def _decode(paths: Paths, progress: Progress) -> Arrays:
    return pack_parts({split: _read(path, progress) for split, path in paths.items()})


def _read(path: Path, progress: Progress) -> Iterator[tuple[bytes, int]]:
    lines = read_lines(path)
    if next(lines, (0, b""))[1].rstrip(b"\r") != b"Source\tTarget":
        raise damaged(path, "its first line is not Source<tab>Target")
    for number, line in lines:
        if number % 1000 == 0:
            progress(f"reading {path.name}", number, None)
        source, _, target = line.rstrip(b"\r").partition(b"\t")
        yield _expression(source, target, path, number)


def _expression(source: bytes, target: bytes, path: Path, number: int) -> tuple[bytes, int]:
    try:
        row = from_source(source)
        value = evaluate(row)
    except ValueError as error:
        raise damaged(path, f"line {number}: {error}") from None
    if target != b"%d" % value:
        raise damaged(path, f"line {number}: the target is not the value of the source")
    return row, value
