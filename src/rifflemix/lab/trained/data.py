"""Read raw inputs from files, and write predictions as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.files import user_path, write_bytes
from rifflemix.lab.tasks.core.arrays import SequenceInputs, bad_input, plain_array
from rifflemix.lab.tasks.core.card import InputSpec
from rifflemix.lab.tasks.core.forecasts import SeriesInputs
from rifflemix.lab.tasks.core.kinds import FORECAST
from rifflemix.lab.tasks.data_io.columns import RECORDINGS, is_recording, is_sound, read_cell
from rifflemix.lab.tasks.data_io.files import reading
from rifflemix.lab.tasks.data_io.safe_readers import read_npz, read_text_lines
from rifflemix.lab.tasks.images.image_files import PixelInputs
from rifflemix.lab.tasks.images.image_listing import image_files
from rifflemix.lab.tasks.text.next_token import ByteInputs, SymbolInputs
from rifflemix.lab.tasks.user_data.folders import tables_of
from rifflemix.lab.tasks.user_data.rows import (
    ENDINGS,
    TYPED,
    ending,
    place_of,
    read_numbers,
    table_rows,
)
from rifflemix.lab.tasks.user_data.splits import FrameInputs
from rifflemix.lab.trained.run import TrainedRun

_LENGTHS = "lengths"
_OF_INTEGERS = (SequenceInputs, SymbolInputs, ByteInputs)


@dataclass(frozen=True, eq=False)
class RawInputs:
    """Raw inputs of a file or folder.

    Attributes:
        values: the inputs, for `TrainedRun.predict`.
        key: name of what `labels` are: "line", "row", "file" or "series".
        labels: label of each input in the table of predictions.
    """

    values: Any
    key: str
    labels: Sequence[Any]


def read_inputs(spec: InputSpec | None, data: Path, column: str | None = None) -> RawInputs:
    """Read the raw inputs of a model.

    Args:
        spec: conversion of the inputs.
        data: a table (see `rows.ENDINGS`), arrays (.npz), a text with an input per line (.txt),
            an image file, a folder of images or recordings, or a folder with a table per series.
        column: column of a table, or several with commas between; array of an .npz file. None
            uses the columns of the training, or the only one.

    Raises:
        InputError: the file cannot be read, or has no such column.
    """
    data = user_path("data", data)
    if not data.exists():
        raise bad_argument("data", "an existing file or folder", str(data))
    kind = ending(data)
    if data.is_file() and kind in ENDINGS:
        return _table(spec, data, column)
    if data.is_file() and kind == ".npz":
        return _arrays(data, column)
    if data.is_dir() and isinstance(spec, SeriesInputs):
        return _series_of_files(spec, data, column)
    if column is not None:
        raise bad_argument("column", f"none with {data.name}", column)
    if data.is_file() and kind == ".txt":
        lines = dict(read_text_lines(data))
        return RawInputs(parse_lines(spec, list(lines.values())), "line", list(lines))
    if isinstance(spec, FrameInputs):
        return _recordings(data)
    if not isinstance(spec, PixelInputs):
        expected = f"a file {', '.join((*ENDINGS, '.npz', '.txt'))}"
        raise bad_argument("data", expected, data.name, "the model does not read images")
    files = sorted(Path(e.path) for e in image_files(data)) if data.is_dir() else [data]
    if not files:
        raise bad_argument("data", "a folder with images", f"{data} without images")
    names = [path.relative_to(data).as_posix() if data.is_dir() else path.name for path in files]
    return RawInputs(files, "file", names)


def check_not_input(out: Path, data: Path) -> None:
    """Raise if the file to write is the file to read."""
    if out.resolve() == data.resolve():
        raise bad_argument("--out", "another file than the inputs", str(out))


def parse_lines(spec: InputSpec | None, lines: Sequence[str]) -> list[Any]:
    """Convert lines to raw inputs: texts, or whole numbers with spaces if the model reads these.

    Raises:
        InputError: a line has something other than whole numbers.
    """
    of_texts = isinstance(spec, SymbolInputs) and spec.vocabulary is not None
    of_vectors = isinstance(spec, SequenceInputs) and spec.of == "vectors"
    if of_texts or of_vectors or not isinstance(spec, _OF_INTEGERS):
        return list(lines)
    return [_whole_numbers(line, number) for number, line in enumerate(lines)]


def _whole_numbers(line: str, number: int) -> list[int]:
    try:
        return [int(word) for word in line.split()]
    except ValueError:
        raise bad_input("whole numbers with spaces", repr(line), number) from None


def _recordings(data: Path) -> RawInputs:
    """List the recordings in a folder, or one recording."""
    files = sorted(path for path in data.rglob("*") if is_recording(path)) if data.is_dir() else []
    files = files or [data]
    if not is_recording(files[0]):
        raise bad_argument("data", f"recordings ({', '.join(RECORDINGS)})", str(data))
    names = [path.relative_to(data).as_posix() if data.is_dir() else path.name for path in files]
    return RawInputs(files, "file", names)


def _arrays(data: Path, column: str | None) -> RawInputs:
    arrays = read_npz(data)
    name = column or "x"
    if name not in arrays:
        raise unknown_name(f"array of {data.name}", name, arrays)
    values: Any = arrays[name]
    if column is None and _LENGTHS in arrays and values.ndim < 4:
        lengths = arrays[_LENGTHS]
        if lengths.shape != values.shape[:1] or lengths.dtype.kind not in "iu":
            got = f"{lengths.dtype} of shape {lengths.shape}"
            raise bad_argument(_LENGTHS, f"{len(values)} integers", got)
        values = [row[:length] for row, length in zip(values, lengths.tolist(), strict=True)]
    return RawInputs(values, "row", range(len(values)))


def _table(spec: InputSpec | None, data: Path, column: str | None) -> RawInputs:
    names = column.removesuffix(",").split(",") if column else getattr(spec, "columns", ())
    if isinstance(spec, SeriesInputs):
        return _series(spec, data, names)
    lines, rows, names = _cells(data, names)
    is_csv = ending(data) not in TYPED
    if isinstance(spec, FrameInputs) and all(is_recording(row[0]) for row in rows):
        values: Any = [data.parent / str(row[0]) for row in rows]
    elif isinstance(spec, FrameInputs) and all(is_sound(row[0]) for row in rows):
        cells = zip(lines, rows, strict=True)
        values = [read_cell(row[0], data.parent, place_of(data, line)) for line, row in cells]
    elif isinstance(spec, SequenceInputs | FrameInputs) and (is_csv or len(names) > 1):
        has_gaps = isinstance(spec, FrameInputs) and spec.missing == "mask"
        values = _numbers(data, lines, rows, names, has_gaps=has_gaps)
        if isinstance(spec, SequenceInputs) and spec.of == "tokens":
            values = _whole(data, lines, values)
    elif isinstance(spec, PixelInputs):
        values = [data.parent / str(row[0]) for row in rows]
    else:
        values = [row[0] if len(row) == 1 else tuple(row) for row in rows]
    return RawInputs(values, "line", lines)


def _cells(
    data: Path, names: Sequence[str], others: Sequence[str] = ()
) -> tuple[list[int], list[list[Any]], tuple[str, ...]]:
    """Read the line and the cells of each row, and return the names of the input columns.

    Args:
        data: a table.
        names: columns of the inputs. If empty, the only column.
        others: columns that follow them, if the table has them.
    """
    lines, rows = [], []
    with reading(data):
        for line, row in table_rows(data):
            names = tuple(names) or _only(data, row)
            for name in names:
                if name not in row:
                    raise unknown_name(f"column of {data.name}", name, row)
            lines.append(line)
            rows.append([row[name] for name in (*names, *(o for o in others if o in row))])
    if not rows:
        raise InputError(f"{data}: expected rows, got none")
    return lines, rows, tuple(names)


def _numbers(
    data: Path,
    lines: Sequence[int],
    rows: Sequence[Sequence[Any]],
    names: Sequence[str],
    *,
    has_gaps: bool = False,
) -> Any:
    """Convert columns of numbers to an array (rows, columns)."""
    columns = list(zip(*rows, strict=True))[: len(names)]
    numbers = [
        read_numbers(name, column, lambda row: place_of(data, lines[row]), has_gaps=has_gaps)
        for name, column in zip(names, columns, strict=True)
    ]
    return np.array(numbers).T


def _whole(data: Path, lines: Sequence[int], values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert numbers (rows, columns) to integers, or raise at a fraction."""
    wrong = np.flatnonzero((values != np.round(values)).any(axis=1))
    if len(wrong):
        where = place_of(data, lines[int(wrong[0])])
        raise InputError(f"{where}: expected whole numbers, the ids of tokens, got a fraction")
    return values.astype(np.int64)


def _series(spec: SeriesInputs, data: Path, names: Sequence[str]) -> RawInputs:
    """Read the series of a table: all rows, the rows of each group, or one series per row."""
    lines, rows, names = _cells(data, names, [spec.group] if spec.group else [])
    if isinstance(rows[0][0], list):
        return RawInputs([plain_array(row[0]) for row in rows], "line", lines)
    values = _numbers(data, lines, rows, names, has_gaps=True)  # unknown future values
    if len(rows[0]) == len(names):
        return RawInputs([values], "series", [data.name])
    groups = np.array([str(row[-1]) for row in rows])
    found = np.unique(groups).tolist()
    return RawInputs([values[groups == name] for name in found], "series", found)


def _series_of_files(spec: SeriesInputs, data: Path, column: str | None) -> RawInputs:
    """Read the series of all tables in a folder."""
    found = [_table(spec, file, column) for file in tables_of(data)]
    if not found:
        raise bad_argument("data", f"a folder with tables ({', '.join(ENDINGS)})", str(data))
    values = [values for one in found for values in one.values]
    return RawInputs(values, "series", [label for one in found for label in one.labels])


def _only(data: Path, row: Iterable[str]) -> tuple[str, ...]:
    """Return the only column of a table."""
    names = tuple(row)
    if len(names) != 1:
        raise bad_argument(
            "column", "the column of the inputs", "none", f"{data.name} has {', '.join(names)}"
        )
    return names


def write_predictions(out: Path, run: TrainedRun, inputs: RawInputs) -> list[Any]:
    """Predict and write a .csv table, with the probability of each predicted class.

    Returns:
        The predictions.

    Raises:
        InputError: an input is wrong, or the file cannot be written.
    """
    found = list(run.predict(inputs.values))
    columns = {inputs.key: inputs.labels, "prediction": [_cell(value) for value in found]}
    if run.task.kind == FORECAST.name:
        columns = _steps(inputs, found)
    if run.task.output == "classes":
        shares = np.asarray(run.predict_proba(inputs.values)).max(axis=1)
        columns["probability"] = [f"{share:.6g}" for share in shares]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_bytes(out, text.getvalue().encode())
    return found


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | np.ndarray) else value


def _steps(inputs: RawInputs, found: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return columns with one row per predicted step, and a column per channel."""
    horizon, channels = found[0].shape
    columns: dict[str, Sequence[Any]] = {
        inputs.key: [label for label in inputs.labels for _ in range(horizon)],
        "step": [step for _ in found for step in range(1, horizon + 1)],
    }
    steps = np.concatenate(found)
    names = [f"prediction_{channel}" for channel in range(channels)]
    return columns | dict(zip(names, steps.T.tolist(), strict=True))
