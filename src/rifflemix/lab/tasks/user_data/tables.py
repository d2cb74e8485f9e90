"""Tasks from user tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.files import user_path
from rifflemix.lab.tasks.core.arrays import plain_array
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.core.from_user_data import DEFAULT_SPLIT
from rifflemix.lab.tasks.core.kinds import (
    CLASSIFICATION,
    FORECAST,
    MULTILABEL,
    REGRESSION,
    SEQ2SEQ,
    TOKENS,
)
from rifflemix.lab.tasks.data_io import columns
from rifflemix.lab.tasks.data_io.columns import (
    MOST_IN_MEMORY,
    ArrowFile,
    FileColumn,
    is_recording,
    is_sound,
    read_cell,
)
from rifflemix.lab.tasks.data_io.files import reading
from rifflemix.lab.tasks.user_data.arrays import from_arrays
from rifflemix.lab.tasks.user_data.choose_kind import AUTO, Origin
from rifflemix.lab.tasks.user_data.labels import split_cell
from rifflemix.lab.tasks.user_data.parts import NAMES, Part
from rifflemix.lab.tasks.user_data.rows import (
    ENDINGS,
    TYPED,
    are_numbers,
    check_none_missing,
    ending,
    place_of,
    read_label_texts,
    read_numbers,
    table_rows,
)

ON_DISK = (AUTO, CLASSIFICATION.name, REGRESSION.name)
"""Kinds whose samples can stay on disk."""


_EMPTY = "drop_empty=true leaves out rows with an empty text, missing=mask marks missing numbers"


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Several labels per row, with the names of their columns."""

    values: NDArray[Any]
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def to_numpy(self) -> NDArray[Any]:
        """Return the values (M, T)."""
        return self.values


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of a file.

    Attributes:
        file: Source file.
        columns: Values of each column, one per row.
        lines: First line of each row, from 1, or the number of the row.
    """

    file: Path
    columns: Mapping[str, list[Any]]
    lines: list[int]

    def where(self, row: int) -> str:
        """Return the file and line of a row, for errors."""
        return place_of(self.file, self.lines[row])


def from_csv(
    path: str | PathLike[str],
    *,
    input: str | Sequence[str],
    label: str | Sequence[str] | None = None,
    group: str | None = None,
    time: str | None = None,
    split: Any = DEFAULT_SPLIT,
    origin: Origin | None = None,
    **options: Any,
) -> Task:
    """Implement `Task.from_csv`."""
    file = data_file("path", path)
    wanted = wanted_columns(input, label, group, time)
    if isinstance(split, str):
        wanted.append(split)
    part = large_part(file, input, label, group, time, options.get("kind", "auto"))
    if part is None:
        table = read_table(file, wanted, empty=columns_with_gaps(input, options))
        [part] = table_parts([table], input, label, group, time, options)
        if isinstance(split, str):
            split = _split_names(table, split)
    elif isinstance(split, str):
        split = [NAMES.get(name, name) for name in ArrowFile(file).values(split)]
    origin = origin or Origin(ending(file).strip("."), title=file.name, data_source=file.name)
    origin = replace(origin, columns=input_columns(input), group=group or "")
    options = {"name": origin.name, **options}
    return from_arrays(
        part.x, part.y, groups=part.groups, times=part.times, split=split, **options, origin=origin
    )


def input_columns(input: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the input columns."""
    return (input,) if isinstance(input, str) else tuple(input)


def columns_with_gaps(input: str | Sequence[str], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the input columns that can have empty cells."""
    is_text = isinstance(input, str)
    can_be_empty = options.get("drop_empty") if is_text else options.get("missing") == "mask"
    return input_columns(input) if can_be_empty else ()


def wanted_columns(input: Any, label: Any, group: Any, time: Any = None) -> list[Any]:
    """List the columns to read. The label must not be an input."""
    if not isinstance(input, str | list | tuple):
        raise bad_argument("input", "the name of a column, or a list of them", repr(input))
    inputs, labels = input_columns(input), label_columns(label)
    if not inputs or len(set(inputs)) < len(inputs):
        raise bad_argument("input", "different columns, at least one", repr(input))
    for name in labels:
        if name in inputs:
            raise bad_argument("input", f"columns other than the label {name!r}", repr(input))
    return [*inputs, *labels, *(name for name in (group, time) if name is not None)]


def label_columns(label: Any) -> tuple[str, ...]:
    """Return the names of the label columns."""
    if label is None:
        return ()
    if not isinstance(label, str | list | tuple):
        raise bad_argument("label", "the name of a column, or a list of them", repr(label))
    return (label,) if isinstance(label, str) else tuple(label)


def data_file(name: str, path: str | PathLike[str]) -> Path:
    """Return the path of an existing file, or raise."""
    file = user_path(name, path)
    if not file.is_file():
        raise bad_argument(name, "an existing file", repr(str(path)))
    return file


def table_parts(
    tables: Sequence[Table],
    input: str | Sequence[str],
    label: str | Sequence[str] | None,
    group: str | None,
    time: str | None,
    options: Mapping[str, Any],
) -> list[Part]:
    """Return inputs, labels, groups and times of each table.

    The labels of all tables together determine the label type. The kind and the treatment of
    missing values are in `options`.
    """
    kind, has_gaps = options.get("kind", AUTO), options.get("missing") == "mask"
    return [
        Part(
            _series(table, input) if kind == FORECAST.name else _inputs(table, input, has_gaps),
            y,
            groups=None if group is None else table.columns[group],
            source=table.file.name,
            times=None if time is None else table.columns[time],
        )
        for table, y in zip(tables, _labels(tables, label, kind), strict=True)
    ]


def read_table(file: Path, wanted: Sequence[str], *, empty: Sequence[str] = ()) -> Table:
    """Read columns of a table.

    Every row needs a value in each column.

    Args:
        file: Path of the table.
        wanted: Names of columns.
        empty: Names of columns that can have empty cells.

    Raises:
        InputError: Unsupported file type, unreadable row, missing column or value, or no rows.
    """
    kind = ending(file)
    if kind not in ENDINGS:
        raise bad_argument(
            "path", f"a file {', '.join(ENDINGS)}, or a text file as .gz or .xz", file
        )
    for name in wanted:
        if not isinstance(name, str) or not name:
            raise bad_argument("input, label and group", "names of columns", repr(name))
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    lines = []
    with reading(file):
        for line, row in table_rows(file, wanted):
            for name in columns:
                value = row.get(name)
                if name not in row and kind not in TYPED:
                    raise unknown_name(f"column of {file.name}", name, row)
                if value in (None, "") and name not in empty:
                    raise InputError(
                        f"{place_of(file, line)}: expected a value of column {name!r}, got none; "
                        + (_EMPTY if name == wanted[0] else "fill it in, or leave the row out")
                    )
                columns[name].append("" if value is None else value)
            lines.append(line)
    if not lines:
        where = " below the header" if kind in (".csv", ".tsv") else ""
        raise InputError(f"{file}: expected rows{where}, got none")
    return Table(file, columns, lines)


def large_part(
    file: Path, input: Any, label: Any, group: str | None, time: str | None, kind: str
) -> Part | None:
    """Return the columns of a large Parquet or Arrow file, without reading the inputs.

    Return None for other files, and for kinds whose samples have to be in memory.
    """
    if ending(file) not in columns.ENDINGS or kind not in ON_DISK:
        return None
    table = ArrowFile(file)
    if len(table) <= MOST_IN_MEMORY or not isinstance(input, str) or not isinstance(label, str):
        return None
    table.check([name for name in (input, label, group, time) if name is not None])
    if table.has_fields(input) or table.is_nested(label):  # recordings, several labels
        return None
    groups, times = (None if name is None else table.values(name) for name in (group, time))
    x, y = FileColumn(file, input), table.values(label)
    return Part(x, y, groups=groups, source=file.name, times=times)


def _inputs(table: Table, input: str | Sequence[str], has_gaps: bool) -> Any:
    if isinstance(input, str):
        values = table.columns[input]
        if values and all(isinstance(v, str) and is_recording(v) for v in values):
            return [table.file.parent / name for name in values]
        if values and all(map(is_sound, values)):
            cells = enumerate(values)
            return [read_cell(cell, table.file.parent, table.where(row)) for row, cell in cells]
        if ending(table.file) not in TYPED and are_numbers([text for text in values if text]):
            raise InputError(
                f"{table.file}: expected texts in column {input!r}, got numbers alone; for a "
                f"vector of one number give --input {input}, (in Python input=[{input!r}]), texts "
                "of digits are strings in a .jsonl file"
            )
        return values
    return np.array(
        [read_numbers(name, table.columns[name], table.where, has_gaps=has_gaps) for name in input]
    ).T


def _series(table: Table, input: str | Sequence[str]) -> Any:
    """Return the steps (time, channels) of a table, or the series if a cell has a whole series."""
    names = input_columns(input)
    cells = table.columns[names[0]]
    if len(names) == 1 and ending(table.file) in TYPED and isinstance(cells[0], list):
        return [plain_array(cell) for cell in cells]
    return np.array([read_numbers(name, table.columns[name], table.where) for name in names]).T


def _labels(tables: Sequence[Table], label: str | Sequence[str] | None, kind: str) -> Sequence[Any]:
    """Read the labels of each table."""
    if label is None:
        return [None] * len(tables)
    if not isinstance(label, str):
        return [_label_table(table, label_columns(label), kind) for table in tables]
    name = label
    columns = [table.columns[name] for table in tables]
    if kind == SEQ2SEQ.name:
        return columns
    is_json = ending(tables[0].file) in TYPED
    if kind in (MULTILABEL.name, TOKENS.name) and not is_json:
        return [
            [split_cell(text, table.where(row)) for row, text in enumerate(column)]
            for table, column in zip(tables, columns, strict=True)
        ]
    places = [(table, row) for table in tables for row in range(len(table.lines))]

    def where(number: int) -> str:
        table, row = places[number]
        return table.where(row)

    values = [value for column in columns for value in column]
    if is_json:  # the file separates numbers from texts
        check_none_missing(name, values, where)
        return columns
    labels = read_label_texts(name, values, where, kind)
    ends = np.cumsum([len(column) for column in columns]).tolist()
    return [labels[end - len(column) : end] for column, end in zip(columns, ends, strict=True)]


def _label_table(table: Table, names: tuple[str, ...], kind: str) -> LabelTable:
    """Read several columns of numbers. Columns of integers alone stay integers."""
    columns = [read_numbers(name, table.columns[name], table.where) for name in names]
    values = np.array(columns).T
    texts = (str(cell) for name in names for cell in table.columns[name])
    has_points = any("." in text or "e" in text.lower() for text in texts)
    if kind != REGRESSION.name and not has_points:
        values = values.astype(np.int64)
    return LabelTable(values, names)


def _split_names(table: Table, name: str) -> list[str]:
    for row, value in enumerate(table.columns[name]):
        if not isinstance(value, str) or value not in NAMES:
            raise InputError(
                f"{table.where(row)}: expected train, validation or test in column {name!r}, got "
                f"{value!r}"
            )
    return [NAMES[value] for value in table.columns[name]]
