"""Tasks from user tables: .csv, .tsv and .jsonl files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.files import user_path
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.core.own_data import DEFAULT_SPLIT
from rifflemix.lab.tasks.data_io.files import reading
from rifflemix.lab.tasks.own.arrays import Origin, from_arrays
from rifflemix.lab.tasks.own.cells import (
    are_numbers,
    check_none_missing,
    read_label_texts,
    read_numbers,
)
from rifflemix.lab.tasks.own.parts import NAMES, Part
from rifflemix.lab.tasks.own.rows import ending, table_rows

ENDINGS = (".csv", ".tsv", ".jsonl")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of a file.

    Attributes:
        file: Source file.
        columns: Values of each column, one per row.
        lines: First line of each row, from 1.
    """

    file: Path
    columns: Mapping[str, list[Any]]
    lines: list[int]

    def where(self, row: int) -> str:
        """Return the file and line of a row, for errors."""
        return f"{self.file}, line {self.lines[row]}"


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
    """Implement `Task.from_csv`."""
    file = data_file("path", path)
    wanted = wanted_columns(input, label, group)
    if isinstance(split, str):
        wanted.append(split)
    empty = input if options.get("drop_empty") else ""
    table = read_table(file, wanted, empty=empty)
    [part] = table_parts([table], input, label, group, options.get("kind", "auto"))
    if isinstance(split, str):
        split = _split_names(table, split)
    origin = origin or Origin(ending(file).strip("."), title=file.name, data_source=file.name)
    options = {"name": origin.name, **options}
    return from_arrays(part.x, part.y, groups=part.groups, split=split, **options, origin=origin)


def wanted_columns(input: Any, label: Any, group: Any) -> list[Any]:
    """List the columns to read. The label must not be an input."""
    if not isinstance(input, str | list | tuple):
        raise bad_argument("input", "the name of a column, or a list of them", repr(input))
    inputs = [input] if isinstance(input, str) else list(input)
    if label in inputs:
        raise bad_argument("input", f"columns beside the label {label!r}", repr(input))
    return [*inputs, label, *([] if group is None else [group])]


def data_file(name: str, path: str | PathLike[str]) -> Path:
    """Return the path of an existing file, or raise."""
    file = user_path(name, path)
    if not file.is_file():
        raise bad_argument(name, "an existing file", repr(str(path)))
    return file


def table_parts(
    tables: Sequence[Table], input: str | Sequence[str], label: str, group: str | None, kind: str
) -> list[Part]:
    """Return inputs, labels and groups of each table.

    The labels of all tables together determine the label type.
    """
    return [
        Part(
            _inputs(table, input),
            y,
            groups=None if group is None else table.columns[group],
            source=table.file.name,
        )
        for table, y in zip(tables, _labels(tables, label, kind), strict=True)
    ]


def read_table(file: Path, wanted: Sequence[str], *, empty: Any = "") -> Table:
    """Read columns of a table.

    Every row needs a value in each column.

    Args:
        file: Path of the table.
        wanted: Names of columns.
        empty: Name of the column that may contain empty texts.

    Raises:
        InputError: Unsupported file type, unreadable row, missing column or value, or no rows.
    """
    kind = ending(file)
    if kind not in ENDINGS:
        raise bad_argument(
            "path", f"a file {', '.join(ENDINGS)}, or one packed as .gz or .xz", file
        )
    for name in wanted:
        if not isinstance(name, str) or not name:
            raise bad_argument("input, label and group", "names of columns", repr(name))
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    lines = []
    with reading(file):
        for line, row in table_rows(file):
            for name in columns:
                value = row.get(name)
                if value is None or (value == "" and name != empty):
                    if name not in row and kind != ".jsonl":
                        raise unknown_name(f"column of {file.name}", name, row)
                    raise InputError(
                        f"{file}, line {line}: expected a value of column {name!r}, got none; "
                        "drop_empty=true leaves out rows whose input is an empty text"
                    )
                columns[name].append(value)
            lines.append(line)
    if not lines:
        where = "" if kind == ".jsonl" else " below the header"
        raise InputError(f"{file}: expected rows{where}, got none")
    return Table(file, columns, lines)


def _inputs(table: Table, input: str | Sequence[str]) -> Any:
    if isinstance(input, str):
        values = table.columns[input]
        if ending(table.file) != ".jsonl" and are_numbers([text for text in values if text]):
            raise InputError(
                f"{table.file}: expected texts in column {input!r}, got numbers alone; for a "
                f"vector of one number give --input {input}, (in Python input=[{input!r}]), texts "
                "of digits are strings in a .jsonl file"
            )
        return values
    return np.array([read_numbers(name, table.columns[name], table.where) for name in input]).T


def _labels(tables: Sequence[Table], name: str, kind: str) -> list[list[Any]]:
    """Read the labels of each table."""
    columns = [table.columns[name] for table in tables]
    places = [(table, row) for table in tables for row in range(len(table.lines))]

    def where(number: int) -> str:
        table, row = places[number]
        return table.where(row)

    values = [value for column in columns for value in column]
    if ending(tables[0].file) == ".jsonl":  # JSON separates numbers from texts
        check_none_missing(name, values, where)
        return columns
    labels = read_label_texts(name, values, where, kind)
    ends = np.cumsum([len(column) for column in columns]).tolist()
    return [labels[end - len(column) : end] for column, end in zip(columns, ends, strict=True)]


def _split_names(table: Table, name: str) -> list[str]:
    for row, value in enumerate(table.columns[name]):
        if not isinstance(value, str) or value not in NAMES:
            raise InputError(
                f"{table.where(row)}: expected train, validation or test in column {name!r}, got "
                f"{value!r}"
            )
    return [NAMES[value] for value in table.columns[name]]
