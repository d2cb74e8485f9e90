"""Rows of tables, and the labels, numbers and texts in their cells."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.json_values import parse_json
from rifflemix.lab.tasks.data_io import columns, safe_readers
from rifflemix.lab.tasks.data_io.columns import ArrowFile
from rifflemix.lab.tasks.data_io.safe_readers import fasta_rows, read_csv_lines, read_lines

TYPED = (".jsonl", *columns.ENDINGS)
"""Extensions of files that separate numbers from texts."""

ENDINGS = (".csv", ".tsv", *TYPED, *safe_readers.ENDINGS)
"""Extensions of tables."""

_PACKED = (".gz", ".xz")
_LONGEST_FIELD = (1 << 31) - 1  # the csv module has a smaller default
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')  # fully quoted field, as pandas writes it

Row = tuple[int, list[str]]
"""First line of the row (from 1) and its fields."""


def ending(file: Path) -> str:
    """Return the file extension without the compression extension."""
    return Path(file.stem).suffix if file.suffix in _PACKED else file.suffix


def table_rows(
    file: Path, wanted: Sequence[str] | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Read the number and the values by column of each row.

    The number is the line of the row, or the number of the row in a Parquet or Arrow file.

    Args:
        file: File with one of `ENDINGS`.
        wanted: Columns to read, if the format can skip columns.

    Raises:
        InputError: A row is unreadable, or its columns differ from the header.
    """
    kind = ending(file)
    if kind in columns.ENDINGS:
        table = ArrowFile(file)
        table.check(wanted or ())
        return enumerate(table.rows(wanted), start=1)
    if kind in safe_readers.ENDINGS:
        return fasta_rows(file)
    return _json_rows(file) if kind == ".jsonl" else _text_rows(file)


def place_of(file: Path, number: int) -> str:
    """Return the file and the number of a row, for errors."""
    return f"{file}, {'row' if ending(file) in columns.ENDINGS else 'line'} {number}"


def _text_rows(file: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    is_tsv = ending(file) == ".tsv"
    rows = _tab_rows(file) if is_tsv else _quoted_rows(file, ",")
    _, header = next(rows, (1, []))
    _check_header(file, header, "\t" if is_tsv else ",")
    for line, fields in rows:
        if len(fields) != len(header):
            raise _ragged(file, line, len(header), len(fields))
        if fields == header:
            raise InputError(
                f"{file}, line {line}: expected a row, got the header again; of tables that are "
                "joined the first alone keeps it"
            )
        yield line, dict(zip(header, fields, strict=True))


def _check_header(file: Path, header: list[str], delimiter: str) -> None:
    others = [mark for mark in ";\t|," if mark != delimiter and mark in "".join(header)]
    if len(header) == 1 and others:
        raise InputError(
            f"{file}: expected columns separated by {delimiter!r}, got {others[0]!r} in the "
            "header; .csv has commas, .tsv tabs"
        )
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"{file}: two columns of its header have one name, {name!r}")


def _ragged(file: Path, line: int, expected: int, got: int) -> InputError:
    return InputError(
        f"{file}, line {line}: expected {expected} fields, as in the header, got {got}; a field "
        "that contains the separator or a line end needs quotes"
    )


def _quoted_rows(file: Path, delimiter: str, instead: InputError | None = None) -> Iterator[Row]:
    """Read rows with optional quotes. Skip empty lines.

    Args:
        file: Text file.
        delimiter: Delimiter between fields.
        instead: Error about the raw lines. It is raised if quoted fields do not form rows.
    """
    lines: list[str] = []
    width = 0
    with _long_fields():
        reader = csv.reader(_noted(read_csv_lines(file), lines), delimiter=delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise instead or InputError(
                    f"{file}, line {line}: the row cannot be read ({error}); a field that begins "
                    "with a quote ends with one, and quotes within it are written twice"
                ) from error
            if fields is None:
                return
            width = width or len(fields)
            # Stray quotes joined several rows: this is not a field with line ends.
            if instead and sum(text.count(delimiter) == width - 1 for text in lines) > 1:
                raise instead
            lines.clear()
            if fields:
                yield line, fields


def _noted(lines: Iterable[str], seen: list[str]) -> Iterator[str]:
    for line in lines:
        seen.append(line)
        yield line


@contextmanager
def _long_fields() -> Iterator[None]:
    """Increase the field size limit of the csv module."""
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _tab_rows(file: Path) -> Iterator[Row]:
    """Read the rows of a .tsv file.

    If all lines have the same number of fields, each line is a row. Quotes are then ordinary
    characters, unless every field that starts with a quote is fully quoted. Otherwise quoted fields
    contain tabs or line ends.
    """
    width, are_quoted = 0, True
    for line, fields in _tab_lines(file):
        width = width or len(fields)
        if len(fields) != width:
            yield from _quoted_rows(file, "\t", _ragged(file, line, width, len(fields)))
            return
        are_quoted &= all(_QUOTED.fullmatch(field) for field in fields if field.startswith('"'))
    for line, fields in _tab_lines(file):
        yield line, [_unquoted(field) for field in fields] if are_quoted else fields


def _tab_lines(file: Path) -> Iterator[Row]:
    for line, text in enumerate(read_csv_lines(file), start=1):
        content = text.rstrip("\r\n")
        if content:
            yield line, content.split("\t")


def _unquoted(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field


def _json_rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, content in read_lines(file):
        if content.strip():
            text = content.decode("utf-8-sig")  # in UTF-16, the line feeds would split characters
            try:
                row = parse_json(text)
            except ValueError as error:
                raise InputError(
                    f"{file}, line {line}: it cannot be read as JSON: {error}"
                ) from error
            if not isinstance(row, dict):
                raise InputError(
                    f"{file}, line {line}: expected a JSON object, got {type(row).__name__}"
                )
            yield line, row


# Missing values as written by pandas, R, Excel, SQL and people.
_MISSING = frozenset(
    ("", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "null", "NULL", r"\N", "None", "?")
)
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")  # canonical form of 64-bit integers
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WITH_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")

Where = Callable[[int], str]
"""Function that returns the file and line of a row, for errors."""


def read_label_texts(name: str, texts: Sequence[str], where: Where, kind: str) -> list[Any]:
    """Parse a column of labels as integers, decimal numbers or texts.

    Args:
        name: Name of the column.
        texts: (M,) cells. Surrounding spaces are ignored.
        where: Function that returns the file and line of a row.
        kind: "classification", "regression", or "auto" to decide by the texts.

    Raises:
        InputError: A label is missing, is not a number although most labels are, or is ambiguous.
    """
    texts = [text.strip() for text in texts]
    check_none_missing(name, texts, where)
    if kind == "regression":
        return read_numbers(name, texts, where)
    if _are_whole(texts):
        return [int(text) for text in texts]
    if kind == "classification":
        return texts
    odd = [text for text in texts if not _NUMBER.fullmatch(text)]
    if not odd and _have_points(texts):
        _check_written_alike(name, texts, where)
    elif not odd or not (2 * len(odd) < len(texts) or all(map(_WITH_COMMA.fullmatch, odd))):
        return texts
    return read_numbers(name, texts, where, "; names of classes take kind 'classification'")


def check_none_missing(name: str, labels: Sequence[Any], where: Where) -> None:
    """Raise at the first text that marks a missing label."""
    for row, label in enumerate(labels):
        if isinstance(label, str) and label.strip() in _MISSING:
            raise InputError(
                f"{where(row)}: expected a label in column {name!r}, got {label!r}, a mark "
                "of missing values. Leave the row out, or rename a class of that name."
            )


def read_numbers(
    name: str, values: Iterable[Any], where: Where, hint: str = "", *, has_gaps: bool = False
) -> list[float]:
    """Parse a column of numbers.

    Raise at the first invalid cell and append `hint`. With `has_gaps`, missing values are NaN.
    """
    numbers = []
    for row, value in enumerate(values):
        text = str(value).strip()
        if has_gaps and text in _MISSING:
            numbers.append(math.nan)
            continue
        if not _NUMBER.fullmatch(text):
            point = "; write a decimal point, no comma" if _WITH_COMMA.fullmatch(text) else ""
            raise InputError(
                f"{where(row)}: expected a number in column {name!r}, got {value!r}{point}{hint}"
            )
        numbers.append(float(text))
    return numbers


def are_numbers(texts: Sequence[str]) -> bool:
    """Return whether all texts are integers or decimal numbers.

    Decimal numbers need at least one text with a decimal point. Codes such as 007
    are not integers.
    """
    return _are_whole(texts) or (
        _have_points(texts) and all(_NUMBER.fullmatch(text) for text in texts)
    )


def _are_whole(texts: Sequence[str]) -> bool:
    return all(_WHOLE.fullmatch(text) for text in texts)


def _have_points(texts: Sequence[str]) -> bool:
    return any("." in text for text in texts)


def _check_written_alike(name: str, texts: Sequence[str], where: Where) -> None:
    """Raise if two texts equal one number, such as 1.1 and 1.10.

    Such texts are probably versions or chapters.
    """
    seen: dict[float, str] = {}
    for row, text in enumerate(texts):
        number = float(text)
        before = seen.setdefault(number, text)
        if number and before != text:
            raise InputError(
                f"{where(row)}: expected labels that differ as numbers in column {name!r}, got "
                f"{before!r} and {text!r}; give kind 'regression' for numbers, 'classification' "
                "for names of classes"
            )
