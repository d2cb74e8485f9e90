"""Rows of tables: .csv, .tsv and .jsonl."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.json_values import parse_json
from rifflemix.lab.tasks.data_io.bounded import MOST_BYTES, read_csv_lines, read_lines, too_large

_PACKED = (".gz", ".xz")
_LONGEST_FIELD = 1 << 26
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')  # fully quoted field, as pandas writes it

Row = tuple[int, list[str]]
"""First line of the row (from 1) and its fields."""


def ending(file: Path) -> str:
    """Return the file extension without the compression extension."""
    return Path(file.stem).suffix if file.suffix in _PACKED else file.suffix


def table_rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Read line number and values by column of each row.

    The file is a .csv, .tsv or .jsonl file.

    Raises:
        InputError: A row is unreadable, or its columns differ from the header.
    """
    return _json_rows(file) if ending(file) == ".jsonl" else _text_rows(file)


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
        "that holds the separator or a line end stands in quotes"
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
    before = csv.field_size_limit(min(_LONGEST_FIELD, sys.maxsize))
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
    left = MOST_BYTES
    for line, content in read_lines(file):
        left -= len(content)
        if left < 0:
            raise too_large(file, MOST_BYTES)
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
