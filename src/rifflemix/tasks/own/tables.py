"""Tables of the user's own: .csv, .tsv and .jsonl files."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.files import parse_json, user_path
from rifflemix.tasks.core.base import Task
from rifflemix.tasks.core.own_data import DEFAULT_SPLIT
from rifflemix.tasks.data_io.bounded import MOST_BYTES, read_csv_lines, read_lines, too_large
from rifflemix.tasks.data_io.files import damaged, reading
from rifflemix.tasks.own.arrays import Origin, from_arrays
from rifflemix.tasks.own.parts import NAMES, Part

ENDINGS = (".csv", ".tsv", ".jsonl")
_PACKED = (".gz", ".xz")
_LONGEST_FIELD = 1 << 26

Columns = dict[str, list[Any]]


def from_csv(
    path: str | PathLike[str],
    *,
    input: str | Sequence[str],
    label: str,
    group: str | None = None,
    split: Any = DEFAULT_SPLIT,
    origin: Origin | None = None,
    **options: Any,
) -> Task:
    """See `Task.from_csv`."""
    file = data_file("path", path)
    wanted = wanted_columns(input, label, group)
    if isinstance(split, str):
        wanted.append(split)
    columns = read_table(file, wanted)
    part = table_part(file, columns, input, label, group)
    if isinstance(split, str):
        split = _split_names(file, split, columns[split])
    origin = origin or Origin(ending(file).strip("."), title=file.name, data_source=file.name)
    options = {"name": origin.name, **options}
    return from_arrays(part.x, part.y, groups=part.groups, split=split, **options, origin=origin)


def wanted_columns(input: Any, label: Any, group: Any) -> list[Any]:
    """The columns that these name; the label may not be an input."""
    if not isinstance(input, str | list | tuple):
        raise bad_argument("input", "the name of a column, or a list of them", repr(input))
    inputs = [input] if isinstance(input, str) else list(input)
    if label in inputs:
        raise bad_argument("input", f"columns beside the label {label!r}", repr(input))
    return [*inputs, label, *([] if group is None else [group])]


def data_file(name: str, path: str | PathLike[str]) -> Path:
    """The path of a file that is there."""
    file = user_path(name, path)
    if not file.is_file():
        raise bad_argument(name, "an existing file", repr(str(path)))
    return file


def ending(file: Path) -> str:
    """The ending of a file's name, without that of its compression."""
    return Path(file.stem).suffix if file.suffix in _PACKED else file.suffix


def table_part(
    file: Path, columns: Columns, input: str | Sequence[str], label: str, group: str | None
) -> Part:
    """Inputs, labels and groups of a table."""
    if isinstance(input, str):
        x: Any = columns[input]
    else:
        x = np.array([_floats(file, name, columns[name]) for name in input]).T
    y = _labels(columns[label]) if ending(file) != ".jsonl" else columns[label]
    return Part(x, y, groups=None if group is None else columns[group])


def read_table(file: Path, wanted: Sequence[str]) -> Columns:
    """The wanted columns of a table; every row has a value in each.

    Raises:
        InputError: another kind of file, a damaged one, a missing column or value, no rows.
    """
    kind = ending(file)
    if kind not in ENDINGS:
        raise bad_argument(
            "path", f"a file {', '.join(ENDINGS)}, or one packed as .gz or .xz", file
        )
    for name in wanted:
        if not isinstance(name, str) or not name:
            raise bad_argument("input, label and group", "names of columns", repr(name))
    read = _json_rows if kind == ".jsonl" else _csv_rows
    columns: Columns = {name: [] for name in wanted}
    with reading(file):
        for line, row in read(file):
            for name in columns:
                value = row.get(name)
                if value is None or value == "":
                    if name not in row and kind != ".jsonl":
                        raise unknown_name(f"column of {file.name}", name, row)
                    raise InputError(
                        f"{file}, line {line}: expected a value of column {name!r}, got none"
                    )
                columns[name].append(value)
    if not columns[wanted[0]]:
        raise InputError(f"{file}: expected rows below the header, got none")
    return columns


def _csv_rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    delimiter = "\t" if ending(file) == ".tsv" else ","
    with _long_fields():
        rows = csv.reader(read_csv_lines(file), delimiter=delimiter, strict=True)
        header = next(rows, [])
        others = [mark for mark in ";\t|," if mark != delimiter and mark in "".join(header)]
        if len(header) == 1 and others:
            raise InputError(
                f"{file}: expected columns separated by {delimiter!r}, got {others[0]!r} in the "
                "header; .csv has commas, .tsv tabs"
            )
        if len(set(header)) != len(header):
            raise damaged(file, "two columns of its header have one name")
        for row in rows:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                raise damaged(
                    file, f"line {rows.line_num} has {len(row)} fields, the header {len(header)}"
                )
            yield rows.line_num, dict(zip(header, row, strict=True))


@contextmanager
def _long_fields() -> Iterator[None]:
    """Texts may be longer than the csv module expects."""
    before = csv.field_size_limit(min(_LONGEST_FIELD, sys.maxsize))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _json_rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    left = MOST_BYTES
    for line, content in read_lines(file):
        left -= len(content)
        if left < 0:
            raise too_large(file, MOST_BYTES)
        if content.strip():
            try:
                row = parse_json(content)
            except ValueError as error:
                raise damaged(file, f"line {line}: {error}") from error
            if not isinstance(row, dict):
                raise damaged(file, f"line {line} is no JSON object")
            yield line, row


def _labels(texts: list[str]) -> list[Any]:
    """Whole numbers, else numbers, else the texts."""
    for convert in (int, float):
        try:
            return [convert(text) for text in texts]
        except ValueError:
            continue
    return texts


def _floats(file: Path, name: str, values: list[Any]) -> list[float]:
    for row, value in enumerate(values):
        try:
            float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"{file}: expected numbers in column {name!r}, got {value!r} in row {row + 1}"
            ) from None
    return [float(value) for value in values]


def _split_names(file: Path, name: str, values: list[Any]) -> list[str]:
    for row, value in enumerate(values):
        if value not in NAMES:
            raise InputError(
                f"{file}: expected train, validation or test in column {name!r}, got {value!r} in "
                f"row {row + 1}"
            )
    return [NAMES[value] for value in values]
