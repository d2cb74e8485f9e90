"""Reading, verifying and caching data files, without pickles and without unpacking to disk."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import lzma
import os
import shutil
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError
from rifflemix.files import read_text, user_path
from rifflemix.json_values import check_json, parse_json
from rifflemix.lab.tasks.core.base import Progress
from rifflemix.lab.tasks.core.builder import Request
from rifflemix.lab.tasks.core.card import TaskCard, TaskStatus
from rifflemix.locks import delete_leftovers, scratch_folder

Arrays = dict[str, NDArray[Any]]

_CONTENTS = "contents.json"


class Array:
    """Array in memory, or mapped from a .npy file.

    A mapped array is pickled as its path.
    """

    def __init__(self, source: NDArray[Any] | Path) -> None:
        if isinstance(source, Path):
            self.path: Path | None = source
            # np.asarray, because a memmap creates a Python object for every row access.
            self.values = np.asarray(np.load(source, mmap_mode="r", allow_pickle=False))
        else:
            self.path = None
            self.values = source

    def __reduce__(self) -> tuple[type[Array], tuple[Any, ...]]:
        return Array, (self.values if self.path is None else self.path,)

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[row]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.values.shape[1:]

    def content(self, rows: NDArray[np.int64]) -> Iterator[bytes]:
        """Iterate over the bytes of each row."""
        return (self.values[row].tobytes() for row in rows.tolist())


@dataclass(frozen=True)
class Source:
    """Source of a task's data.

    Attributes:
        name: File name, or name of the download.
        key: Name of the decoded copy in the cache. It changes when the data changes.
        read: Function that decodes the data to named arrays. Raises InputError for damaged data.
        note: Note on this source for readers of results.
        paths: Path of the file of each part. Empty for other sources.
    """

    name: str
    key: str
    read: Callable[[Progress], Arrays]
    note: str = ""
    paths: Mapping[str, Path] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """Name of the source, and its note if it has a note."""
        return f"{self.name} ({self.note})" if self.note else self.name


def cache_root() -> Path:
    """Return the cache folder: $RIFFLEMIX_CACHE or ~/.cache/rifflemix."""
    chosen = os.environ.get("RIFFLEMIX_CACHE")
    if chosen:
        return user_path("RIFFLEMIX_CACHE", chosen)
    return user_path("the cache folder", "~/.cache/rifflemix")


def stat_key(paths: Iterable[Path], *extra: object) -> str:
    """Compute a cache key from path, size and modification time of files."""
    total = hashlib.blake2b(repr(extra).encode(), digest_size=12)
    for path in paths:
        stat = path.stat()
        total.update(f"{os.path.abspath(path)}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return total.hexdigest()


def source_folder(card: TaskCard, source: Source) -> Path:
    """Return the cache folder of the decoded copy of a source."""
    return cache_root() / card.name / source.key


def load_source(card: TaskCard, source: Source, request: Request) -> dict[str, Array]:
    """Load the arrays of a source, from the cache if possible."""
    return cached_arrays(
        source_folder(card, source),
        lambda: source.read(request.progress),
        must_keep=request.must_keep,
    )


def cached_arrays(
    folder: Path, make: Callable[[], Arrays], *, must_keep: bool = False
) -> dict[str, Array]:
    """Map arrays from `folder`.

    If the folder is incomplete, make and store the arrays first.

    Args:
        folder: Folder that contains only these arrays.
        make: Function that makes the arrays.
        must_keep: If True, raise if the arrays cannot be stored. If False, return them in memory.

    Raises:
        InputError: The arrays cannot be stored although `must_keep` is True.
    """
    delete_leftovers(folder.parent)
    stored = load_arrays(folder)
    if stored is not None:
        return stored
    arrays = make()
    try:
        store_arrays(folder, arrays)
    except OSError as error:
        if must_keep and load_arrays(folder) is None:  # another process may have stored them
            raise cannot_keep(folder, error) from error
    return load_arrays(folder) or {name: Array(values) for name, values in arrays.items()}


def cannot_keep(folder: Path, error: OSError) -> InputError:
    """Return the error for prepared data that cannot be written."""
    return InputError(
        f"cannot write to {folder}: {error.strerror or error}; RIFFLEMIX_CACHE can name another "
        "folder"
    )


def load_arrays(folder: Path, *, is_trusted: bool = False) -> dict[str, Array] | None:
    """Load the arrays from `store_arrays`.

    Return None if they are missing or damaged.

    Args:
        folder: Folder of the arrays.
        is_trusted: If True, skip the checksums. Use it if other code checks the data.
    """
    try:
        contents = parse_json(read_text(folder / _CONTENTS))
        check_json(contents, dict[str, str], "contents")
        for name, sha256 in contents.items():
            if not is_trusted and _sha256(folder / f"{name}.npy") != sha256:
                return None
        return {name: Array(folder / f"{name}.npy") for name in contents}
    except _OF_DECODERS:
        # A damaged cache counts as missing and is created again.
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_ids(path: Path, name: str, values: NDArray[Any], below: int) -> None:
    """Raise InputError unless stored ids are 0 to `below` - 1."""
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < below:
        raise InputError(
            f"{path}: expected {name} from 0 to {below - 1:,}, got {values.min():,} to "
            f"{values.max():,}; remove the folder, it is made again"
        )


def store_arrays(folder: Path, arrays: Arrays) -> None:
    """Write a folder of .npy files and their checksums atomically."""
    contents = {}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder.parent) as scratch:
        part = scratch / "part"
        part.mkdir()
        for name, values in arrays.items():
            with (part / f"{name}.npy").open("wb") as stream:
                np.save(stream, values, allow_pickle=False)
                stream.flush()
                os.fsync(stream.fileno())
            contents[name] = _sha256(part / f"{name}.npy")
        (part / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")
        if folder.exists() and load_arrays(folder) is None:
            shutil.rmtree(folder)
        # Another process may have stored an identical copy.
        if not folder.exists():
            part.rename(folder)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert decoding errors of a data file to InputErrors with its path."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        if advice is None:  # error of a decoder
            raise damaged(path, _reason(error)) from error
        raise InputError(f"{path}: {advice}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the file is damaged, or its text is not UTF-8 ({error.reason}); get a fresh "
            "copy, or save it as UTF-8"
        ) from error
    except _OF_DECODERS as error:
        raise damaged(path, _reason(error)) from error


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


# Errors of the system, unrelated to the content of the file.
_ADVICE = {
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n), and read the file again",
    errno.ENOMEM: "there is not enough memory to read the file",
    errno.ENOENT: "the file is missing",
    errno.EACCES: "there is no permission to read the file; change it, or ask the owner",
    errno.EPERM: "there is no permission to read the file; change it, or ask the owner",
    errno.EISDIR: "expected a file, got a folder; name a file in it",
    errno.ENOSPC: "there is no space left on the disk; make room, and read the file again",
}

# Errors of the standard library, NumPy and Pillow for damaged or malicious files.
_OF_DECODERS = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    SyntaxError,
    ArithmeticError,
    MemoryError,
    RuntimeError,  # includes RecursionError
    csv.Error,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
)


def damaged(path: Path, why: str) -> InputError:
    """Return the error for a damaged data file."""
    return InputError(f"{path}: the file is damaged or truncated ({why}); get a fresh copy")


def missing_data(
    card: TaskCard, data_dir: Path | None, looked_for: Sequence[str], get_it: str, why: str = ""
) -> InputError:
    """Return the error for missing data, with instructions to get it."""
    where = f"in {data_dir}" if data_dir else "without --data-dir"
    reason = f" ({why})" if why else ""
    return InputError(
        f"task {card.name}: found no {card.title} files {where}{reason}; get {get_it}, and give "
        f"the folder that holds it with --data-dir (it may hold {', '.join(looked_for)})"
    )


def source_status(card: TaskCard, source: Source | None, data_dir: Path | None) -> TaskStatus:
    """Report whether `data_dir` contains the files, or the cache contains a download."""
    if source is None:
        return absent(card, data_dir)
    cached = source_folder(card, source).is_dir()
    if data_dir is not None:
        state = "decoded" if cached else "not yet decoded"
        return TaskStatus(card.name, True, f"{source.description} in {data_dir}, {state}")
    if cached:
        return TaskStatus(card.name, True, f"{source.name}, fetched before")
    return TaskStatus(
        card.name, False, f"give --data-dir, or {source.name} is downloaded if there is a network"
    )


def absent(card: TaskCard, data_dir: Path | None) -> TaskStatus:
    """Return the status of a task without its files."""
    where = "give --data-dir" if data_dir is None else f"no {card.title} files in {data_dir}"
    return TaskStatus(card.name, False, where)


def check_sha256(path: Path, expected: str) -> None:
    """Raise unless the file exists and has this sha256."""
    if not path.is_file():
        raise InputError(f"{path}: the file is missing; install rifflemix again")
    got = _sha256(path)
    if got != expected:
        raise InputError(f"{path}: expected sha256 {expected}, got {got}; install rifflemix again")
