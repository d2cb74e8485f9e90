"""Read user data from columns of Arrow tables, from sound files and from .npy files.

A sound file or an .npy file contains one sequence.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, require_packages, unknown_name
from rifflemix.files import check_regular
from rifflemix.lab.tasks.data_io.files import damaged, reading, stat_key
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes, read_npy

ENDINGS = (".parquet", ".arrow", ".feather")

_BATCH = 16_384


class ArrowFile:
    """Parquet or Arrow file.

    Args:
        path: Path of the file. An .arrow file has the file or the stream format, as the `datasets`
            library writes it.

    Raises:
        InputError: pyarrow is missing, or the file is damaged or of another kind.
    """

    def __init__(self, path: Path) -> None:
        require_packages(path.name, "data", "pyarrow")
        self.path = path
        with self._errors():
            self._open()

    def _open(self) -> None:
        import pyarrow
        from pyarrow import ipc, parquet

        self._parquet: Any = None
        self._schema: Any
        if self.path.suffix == ".parquet":
            self._parquet = parquet.ParquetFile(self.path, memory_map=True)
            self._schema = self._parquet.schema_arrow
            self._count = int(self._parquet.metadata.num_rows)
            return
        source = pyarrow.memory_map(str(self.path))
        try:
            reader = ipc.open_file(source)
            batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        except pyarrow.ArrowInvalid:
            source.seek(0)
            reader = ipc.open_stream(source)
            batches = list(reader)
        self._batches = batches  # mapped from the file, not copied
        self._schema = reader.schema
        self._count = sum(batch.num_rows for batch in batches)

    def __len__(self) -> int:
        return self._count

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._schema.names)

    def has_fields(self, name: str) -> bool:
        """Return whether cells have named fields, such as bytes and path of audio."""
        return self.is_nested(name) and not hasattr(self._schema.field(name).type, "value_type")

    def is_nested(self, name: str) -> bool:
        """Return whether the cells of a column have several values."""
        return bool(self._schema.field(name).type.num_fields)

    def check(self, wanted: Sequence[str]) -> None:
        """Raise if a column is missing."""
        for name in wanted:
            if name not in self.columns:
                raise unknown_name(f"column of {self.path.name}", name, self.columns)

    def batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of some columns."""
        with self._errors():
            if self._parquet is not None:
                yield from self._parquet.iter_batches(_BATCH, columns=list(wanted))
                return
            for batch in self._batches:
                chosen = batch.select(list(wanted))
                for start in range(0, chosen.num_rows, _BATCH):
                    yield chosen.slice(start, _BATCH)

    def rows(self, wanted: Sequence[str] | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield each row as Python values by column."""
        for batch in self.batches(self.columns if wanted is None else wanted):
            yield from batch.to_pylist()

    def values(self, name: str) -> NDArray[Any]:
        """Read a column of numbers or texts as an array (M,).

        Raises:
            InputError: A value is missing.
        """
        arrays, rows = [], 0
        for batch in self.batches([name]):
            column = batch.column(0)
            if column.null_count:
                row = rows + column.is_null().to_pylist().index(True) + 1
                raise InputError(
                    f"{self.path}, row {row}: expected a value of column {name!r}, got none."
                )
            arrays.append(_values(column))
            rows += len(column)
        return np.concatenate(arrays)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, OSError) as error:
            raise damaged(self.path, str(error).splitlines()[0][:200]) from error


def _values(column: Any) -> NDArray[Any]:
    """Convert a column to an array. Equal texts of a batch share one Python object."""
    import pyarrow

    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        coded = column.dictionary_encode()
        texts = np.array(coded.dictionary.to_pylist(), dtype=object)
        return np.asarray(texts[coded.indices.to_numpy()])
    if pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type):
        return np.from_dlpack(column)  # to_numpy imports pandas
    return np.asarray(column.to_numpy(zero_copy_only=False))


MOST_IN_MEMORY = 200_000
"""Maximum number of samples that are read into memory. Larger columns stay on disk."""


class Column(ABC):
    """Texts or sequences on disk, one per sample."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Hash that changes with the data."""

    @abstractmethod
    def batches(self) -> Iterator[list[Any]]:
        """Yield all samples in order, in lists of at most some thousand."""


@dataclass(frozen=True)
class FileColumn(Column):
    """Column of a Parquet or Arrow file."""

    file: Path
    name: str

    def __len__(self) -> int:
        return len(ArrowFile(self.file))

    @property
    def key(self) -> str:
        return stat_key([self.file], self.name)

    def batches(self) -> Iterator[list[Any]]:
        for batch in ArrowFile(self.file).batches([self.name]):
            yield batch.column(0).to_pylist()


@dataclass(frozen=True, eq=False)
class DatasetColumn(Column):
    """Column of a `Dataset` of the `datasets` library."""

    data: Any
    name: str

    def __len__(self) -> int:
        return len(self.data)

    @property
    def key(self) -> str:
        return f"{self.data._fingerprint}|{self.name}"  # the library has no public name for it

    def batches(self) -> Iterator[list[Any]]:
        for table in self.data.select_columns([self.name]).with_format("arrow").iter(_BATCH):
            yield table.column(0).to_pylist()


@dataclass(frozen=True, eq=False)
class JoinedColumn(Column):
    """Several columns, one after another."""

    parts: Sequence[Column]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def key(self) -> str:
        return "+".join(part.key for part in self.parts)

    def batches(self) -> Iterator[list[Any]]:
        for part in self.parts:
            yield from part.batches()


RECORDINGS = (".wav", ".flac", ".npy")


@dataclass(frozen=True, eq=False)
class Recording:
    """Values of a file.

    Attributes:
        values: (T, C) float32.
        rate: Steps per second. None if the file does not contain it.
    """

    values: NDArray[np.float32]
    rate: int | None


def is_recording(path: object) -> bool:
    """Return whether a text or path ends in one of `RECORDINGS`."""
    return str(path).lower().endswith(RECORDINGS)


def read_recording(path: Path) -> Recording:
    """Read a .wav, .flac or .npy file.

    Raises:
        InputError: The file is missing, damaged or empty, or the soundfile library is missing.
    """
    with reading(path):
        check_regular(path)
        if path.suffix.lower() == ".npy":
            return Recording(_steps(path, read_npy(path, read_bytes(path))), None)
        return _sound(path, path)


def read_sound(content: bytes, path: Path) -> Recording:
    """Read the content of a .wav, .flac or other file of the soundfile library.

    `path` names the content in errors.
    """
    with reading(path):
        return _sound(io.BytesIO(content), path)


def is_sound(cell: object) -> bool:
    """Return whether a cell has the form of audio in `datasets`: the bytes and path of a file."""
    return isinstance(cell, Mapping) and {"bytes", "path"} <= set(cell)


def read_cell(cell: Mapping[str, Any], folder: Path, name: str) -> Recording:
    """Read the recording of a cell.

    Args:
        cell: See `is_sound`.
        folder: Folder of files without bytes.
        name: Name of the cell, for errors.

    Raises:
        InputError: The cell has neither bytes nor a path, or any case of `read_recording`.
    """
    path = cell["path"]
    if cell["bytes"] is not None:
        return read_sound(cell["bytes"], Path(path or name))
    if path is None:
        raise InputError(f"{name}: expected the bytes or the path of a recording, got none.")
    return read_recording(folder / path)


def _sound(source: Path | io.BytesIO, path: Path) -> Recording:
    require_packages(f"{path.name}", "data", "soundfile")
    import soundfile

    try:
        values, rate = soundfile.read(source, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise damaged(path, error.error_string) from error
    return Recording(_steps(path, values), int(rate))


def values_of(
    recordings: Sequence[Recording], names: Sequence[object]
) -> tuple[list[NDArray[np.float32]], int | None]:
    """Return the values (T, C) of each recording, and their rate.

    Raises:
        InputError: The recordings differ in channels or rate. The error names a recording.
    """
    first = recordings[0]
    for name, one in zip(names, recordings, strict=True):
        check_alike(name, one, first.values.shape[1], first.rate)
    return [one.values for one in recordings], first.rate


def check_alike(path: object, one: Recording, channels: int, rate: int | None) -> None:
    """Raise unless a recording has this number of channels and this rate."""
    if one.values.shape[1] != channels:
        raise InputError(f"{path}: expected {channels} channels, got {one.values.shape[1]}")
    if one.rate != rate:
        advice = "Resample the files to one rate."
        raise InputError(f"{path}: expected {_rate(rate)}, got {_rate(one.rate)}. {advice}")


def _rate(rate: int | None) -> str:
    return "no sample rate" if rate is None else f"{rate:,} samples per second"


def _steps(path: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        got = f"{values.dtype} of shape {values.shape}"
        raise InputError(f"{path}: expected numbers (T,) or (T, C), got {got}")
    if not values.size:
        raise damaged(path, "it has no values")
    with np.errstate(over="ignore"):
        return values.astype(np.float32).reshape(len(values), -1)
