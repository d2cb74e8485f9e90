"""Rows of Parquet and Arrow files, and columns of large data sets, read in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, require_packages, unknown_name
from rifflemix.lab.tasks.data_io.files import damaged, stat_key

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
        """Return whether the cells of a column have several fields, as audio of `datasets` has."""
        return bool(self._schema.field(name).type.num_fields) and not hasattr(
            self._schema.field(name).type, "value_type"
        )

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
        found: NDArray[Any] = np.concatenate(arrays)
        return found

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, OSError) as error:
            raise damaged(self.path, str(error).splitlines()[0][:200]) from error


def _values(column: Any) -> NDArray[Any]:
    """Convert a column to an array. Equal texts of a batch are one object."""
    import pyarrow

    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        coded = column.dictionary_encode()
        texts = np.array(coded.dictionary.to_pylist(), dtype=object)
        return np.asarray(texts[coded.indices.to_numpy()])
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
