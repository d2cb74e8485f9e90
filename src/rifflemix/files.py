"""Files that are either whole or absent: atomic writes, checked reads, a lock on a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rifflemix.errors import InputError

_HEADER = "rifflemix"  # the one header entry: safetensors writes several in random order
_TEMPORARY = ".tmp"
_LOCK = ".lock"
_held: set[int] = set()  # descriptors of the locks of this process


class FolderInUse(InputError):
    """Another process holds a folder."""


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents.

    Raises:
        InputError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot("make folder", folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to folder {folder}: permission denied")


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` on a temporary path beside `path`, flush it to disk, then rename.

    At any moment, even after a kill or a power cut, `path` holds the old content or the new.

    Raises:
        InputError: the file cannot be written (no permission, no space ...).
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors makes its files private
        write(temporary)
        temporary.chmod(mode)
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise _cannot("write", path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of processes killed while writing. Hold the lock."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON; NaN and infinity are refused."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: _write_text(temporary, text))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: it cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _cannot("read", path, error) from error
    except ValueError as error:
        raise InputError(
            f"{path} is damaged: it is not JSON ({error}); remove the folder"
        ) from error


def read_json_lines(path: Path) -> list[Any]:
    """Read a file with one JSON value a line.

    Raises:
        InputError: it cannot be read, or a line is not JSON.
    """
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise _cannot("read", path, error) from error
    except ValueError as error:
        _damaged(path, f"a line is not JSON: {error}")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Any) -> None:
    """Write CPU tensors and JSON values to one safetensors file, atomically.

    A checksum of both goes into its header: safetensors alone sees a short file but not
    a changed byte.
    """
    entry = {"meta": meta, "sha256": _digest(tensors, meta)}
    header = {_HEADER: json.dumps(entry, allow_nan=False)}
    write_atomically(path, lambda temporary: save_file(dict(tensors), temporary, header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read what `write_tensors` wrote.

    Raises:
        InputError: the file is missing, truncated or changed, or not one of ours.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except OSError as error:
        raise _cannot("read", path, error) from error
    except SafetensorError as error:
        _damaged(path, str(error))
    if _HEADER not in header:
        raise InputError(f"{path} was not written by rifflemix: no {_HEADER!r} entry in its header")
    try:
        entry = json.loads(header[_HEADER])
        is_whole = entry["sha256"] == _digest(tensors, entry["meta"])
    except (ValueError, KeyError):
        is_whole = False
    if not is_whole:
        _damaged(path, "its checksum does not match")
    return tensors, entry["meta"]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` against other processes; the system frees it however this one ends.

    Raises:
        FolderInUse: another process holds it.
        InputError: the lock cannot be made.
    """
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _cannot("write", folder / _LOCK, error) from error
    _held.add(descriptor)
    try:
        if not _try_lock(descriptor):
            raise FolderInUse(
                f"{folder} is in use by another process; wait for it or choose another folder"
            )
        yield
    finally:
        if descriptor in _held:
            _held.remove(descriptor)
            os.close(descriptor)


def _forget_locks() -> None:
    """In a forked child: a data loading process that outlives a kill must not keep the lock."""
    while _held:
        os.close(_held.pop())


if sys.platform == "win32":

    def _try_lock(descriptor: int) -> bool:
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def flush(path: Path) -> None:
        """Force a file to disk (a folder needs nothing here)."""
        if path.is_file():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())

else:
    import fcntl

    os.register_at_fork(after_in_child=_forget_locks)

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def flush(path: Path) -> None:
        """Force a file or a folder's entries to disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _digest(tensors: Mapping[str, Tensor], meta: Any) -> str:
    digest = hashlib.sha256(json.dumps(meta).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _cannot(verb: str, path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"cannot {verb} {path}: {reason}")


def _damaged(path: Path, reason: str) -> NoReturn:
    raise InputError(
        f"{path} is damaged ({reason}); remove the folder to start over, or choose another"
    )
