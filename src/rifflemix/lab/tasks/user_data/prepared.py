"""Samples, labels and splits of large data sets: stored in files, and mapped into memory."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import make_folder, read_json, write_json
from rifflemix.json_values import check_json, parse_json
from rifflemix.lab.tasks.core.arrays import cut
from rifflemix.lab.tasks.core.base import SPLITS, PreparationStopped, Progress
from rifflemix.lab.tasks.core.kinds import Kind
from rifflemix.lab.tasks.data_io.columns import Column
from rifflemix.lab.tasks.data_io.files import Arrays, cache_root, cached_arrays, cannot_keep
from rifflemix.lab.tasks.text.encoder import TextEncoder
from rifflemix.lab.tasks.user_data.labels import Labels, read_labels
from rifflemix.lab.tasks.user_data.samples import (
    MOST_IDS,
    Reading,
    Samples,
    check_sequence,
    count_samples,
)
from rifflemix.lab.tasks.user_data.splitting import Division, Given, divide
from rifflemix.locks import locked

_STATE, _DONE = "state.json", "done.json"
_FILES = ("values", "ends", "hashes")
_SAVE_SECONDS = 2.0

_progress: ContextVar[Progress] = ContextVar("progress", default=lambda *work: None)


@contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Report the preparation of large data to a callback during the context."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


@dataclass(frozen=True)
class State:
    """Progress of a preparation.

    Attributes:
        rows: Number of encoded samples.
        values: Number of stored values.
        width: Features per vector. 0 for tokens.
        largest: Largest token id.
        cut: Number of samples that were cut.
    """

    rows: int = 0
    values: int = 0
    width: int = 0
    largest: int = -1
    cut: int = 0


class MappedSamples(Samples):
    """Samples in files. A pickle contains the folder, not the samples."""

    folder: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return open_samples, (self.folder, self.encoder)


def prepared_samples(column: Column, how: Reading) -> Samples:
    """Encode a column into files in the cache, or continue, and map the files.

    Memory does not grow with the number of samples. An interrupted preparation continues after the
    last stored samples.

    Args:
        column: Texts, lists of token ids, or lists of vectors.
        how: How to read samples.

    Raises:
        InputError: A sample is empty, missing or of another type, or the cache cannot be written.
        PreparationStopped: The progress callback stopped the preparation.
    """
    is_text = isinstance(_first(column), str)
    encoder = _encoder(column, how) if is_text else None
    described = repr(
        (column.key, encoder, how.max_length, how.truncate, how.is_series, how.has_gaps)
    )
    key = hashlib.blake2b(described.encode(), digest_size=12).hexdigest()
    folder = cache_root() / "user_data" / key
    if not (folder / _DONE).is_file():
        try:
            make_folder(folder)
            with locked(folder):
                _Writer(folder, column, how, encoder).write()
        except OSError as error:
            raise cannot_keep(folder, error) from error
    return open_samples(folder, encoder)


def _encoder(column: Column, how: Reading) -> TextEncoder:
    """Create the encoder of texts. A learned one is stored in the cache."""
    if how.learned is None:
        return how.encoder(ColumnTexts(column).chosen)
    level, rule, rows = how.learned
    key = hashlib.blake2b(f"{column.key}{rows}".encode(), digest_size=12).hexdigest()
    folder = cache_root() / "user_data" / f"tokenizer-{key}"
    arrays = cached_arrays(folder, lambda: how.encoder(ColumnTexts(column).chosen).to_arrays())
    return TextEncoder.from_arrays(level, rule, arrays)


def open_samples(folder: Path, encoder: TextEncoder | None) -> Samples:
    """Map the files of prepared samples."""
    state = _read_state(folder / _DONE)
    width = (state.width,) if state.width else ()
    dtype = _value_type(encoder, is_float=state.width > 0)
    values = np.memmap(folder / "values", dtype, "r", shape=(state.values, *width))
    ends = np.memmap(folder / "ends", np.int64, "r", shape=(state.rows,))
    hashes = np.memmap(folder / "hashes", np.int64, "r", shape=(state.rows,))
    samples = MappedSamples(
        "vectors" if state.width else "tokens",
        np.asarray(values),  # a memmap creates a Python object for every access
        np.asarray(ends),
        None if state.width else len(encoder) if encoder else state.largest + 1,
        state.cut,
        encoder,
        np.asarray(hashes),
    )
    object.__setattr__(samples, "folder", folder)
    return samples


def _read_state(path: Path) -> State:
    advice = f"remove the folder {path.parent}"
    values = read_json(path, advice)
    try:
        check_json(values, dict[str, int], "state")
        return State(**values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged: {error}; {advice}") from error


def _value_type(encoder: TextEncoder | None, *, is_float: bool) -> Any:
    if is_float:
        return np.float32
    return np.uint16 if encoder is not None and len(encoder) <= 1 << 16 else np.int32


def _first(column: Column) -> Any:
    for batch in column.batches():
        if batch:
            return batch[0]
    raise bad_argument("x", "at least one sample", "none")


@dataclass(frozen=True, eq=False)
class ColumnTexts:
    """Texts of a column."""

    column: Column

    def __len__(self) -> int:
        return len(self.column)

    def chosen(self, rows: NDArray[np.int64]) -> Iterator[str]:
        """Yield the texts of some rows, in the order of the column."""
        wanted, start = np.sort(rows), 0
        for batch in self.column.batches():
            first, last = np.searchsorted(wanted, (start, start + len(batch)))
            for row in wanted[first:last].tolist():
                yield batch[row - start]
            start += len(batch)


class _Writer:
    """Writer of one preparation."""

    def __init__(
        self, folder: Path, column: Column, how: Reading, encoder: TextEncoder | None
    ) -> None:
        self.folder, self.column, self.how, self.encoder = folder, column, how, encoder
        stored = folder / _STATE
        self.state = _read_state(stored) if stored.is_file() else State()

    def write(self) -> None:
        """Encode the samples that are not stored yet."""
        total, saved, before = len(self.column), time.monotonic(), 0
        with ExitStack() as stack:
            files = [stack.enter_context(self._open(name)) for name in _FILES]
            for batch in self.column.batches():
                skipped = min(max(self.state.rows - before, 0), len(batch))
                before += len(batch)
                if skipped == len(batch):
                    continue
                self._add(batch[skipped:], files)
                stops = _progress.get()("encoding samples", self.state.rows, total)
                if stops is True or time.monotonic() - saved > _SAVE_SECONDS:
                    self._save(files)
                    saved = time.monotonic()
                if stops is True and self.state.rows < total:
                    raise PreparationStopped("encoding samples", self.state.rows, total)
            self._save(files)
        write_json(self.folder / _DONE, asdict(self.state))

    def _open(self, name: str) -> Any:
        """Open a file after its stored part."""
        width = max(self.state.width, 1)
        value = np.dtype(_value_type(self.encoder, is_float=self.state.width > 0)).itemsize
        size = self.state.values * width * value if name == "values" else self.state.rows * 8
        stream = (self.folder / name).open("ab")
        stream.truncate(size)
        return stream

    def _save(self, files: Sequence[Any]) -> None:
        for stream in files:
            stream.flush()
            os.fsync(stream.fileno())
        write_json(self.folder / _STATE, asdict(self.state))

    def _add(self, batch: Sequence[Any], files: Sequence[Any]) -> None:
        rows = [self._row(sample, self.state.rows + n) for n, sample in enumerate(batch)]
        most = None if self.how.is_series else self.how.max_length
        kept = [cut(row, most or len(row), self.how.truncate) for row in rows]
        values = np.concatenate(kept)
        ends = self.state.values + np.cumsum([len(row) for row in kept])
        hashes = [_hash(row) for row in kept]
        files[0].write(values.tobytes())
        files[1].write(ends.astype(np.int64).tobytes())
        files[2].write(np.array(hashes, dtype=np.int64).tobytes())
        is_token = values.dtype.kind in "iu"
        self.state = replace(
            self.state,
            rows=self.state.rows + len(batch),
            values=self.state.values + len(values),
            largest=max(self.state.largest, int(values.max())) if is_token else -1,
            cut=self.state.cut + sum(len(a) > len(b) for a, b in zip(rows, kept, strict=True)),
        )

    def _row(self, sample: Any, number: int) -> NDArray[Any]:
        """Encode a sample as tokens (N,) or vectors (N, F)."""
        if self.encoder is not None:
            if not isinstance(sample, str):
                raise bad_argument("x", "texts alone", f"{type(sample).__name__} as {number}")
            row: NDArray[Any] = self.encoder.ids(sample)
        else:
            row = check_sequence(sample, number)
        if not len(row):
            raise bad_argument("x", "at least one token a sample", f"none in sample {number}")
        if row.dtype.kind != "f":
            if not 0 <= int(row.min()) <= int(row.max()) < MOST_IDS:
                raise bad_argument("x", f"tokens from 0 to {MOST_IDS - 1:,}", f"others in {number}")
            self._check_width(0, number)
            return row.astype(_value_type(self.encoder, is_float=False))
        row = row.reshape(len(row), -1).astype(np.float32)
        if not (np.isfinite(row) | (self.how.has_gaps & np.isnan(row))).all():
            raise bad_argument("x", "finite numbers", f"NaN or infinity in sample {number}")
        self._check_width(row.shape[1], number)
        return row

    def _check_width(self, width: int, number: int) -> None:
        if number == 0:
            self.state = replace(self.state, width=width)
        elif width != self.state.width:
            kinds = [f"{w} features" if w else "tokens" for w in (self.state.width, width)]
            raise InputError(f"x: expected {kinds[0]} in sample {number}, got {kinds[1]}.")


def _hash(row: NDArray[Any]) -> int:
    digest = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def labels_and_splits(given: Given, kind: Kind, seed: int) -> tuple[Labels, Division]:
    """Read the labels and divide the samples.

    Labels and splits of samples on disk are stored in the cache, and mapped into memory.
    """
    if not isinstance(given.x, Column):
        return _made(given, kind, seed)

    def arrays() -> Arrays:
        labels, division = _made(given, kind, seed)
        # NumPy drops zeros at the end of a text; JSON escapes them.
        texts = {"classes": np.array(json.dumps(labels.classes)), "note": np.array(division.note)}
        return {"labels": labels.values, **texts, **division.rows}

    folder = cache_root() / "user_data" / f"splits-{_key(given, kind, seed)}"
    found = {name: array.values for name, array in cached_arrays(folder, arrays).items()}
    labels = Labels(kind, found["labels"], tuple(parse_json(str(found["classes"]))))
    return labels, Division({name: found[name] for name in SPLITS}, str(found["note"]))


def _made(given: Given, kind: Kind, seed: int) -> tuple[Labels, Division]:
    labels = read_labels(given.y, count_samples(given.x), kind)
    return labels, divide(given.split, labels, given.groups, seed)


def _key(given: Given, kind: Kind, seed: int) -> str:
    """Hash everything that the labels and splits depend on."""
    buffers: list[pickle.PickleBuffer] = []
    wanted = given.x.key, given.y, given.groups, given.split, kind.name, seed
    head = pickle.dumps(wanted, protocol=5, buffer_callback=buffers.append)
    total = hashlib.blake2b(head, digest_size=12)
    for buffer in buffers:
        total.update(buffer.raw())
    return total.hexdigest()
