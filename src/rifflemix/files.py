"""Atomic file writes, checked reads, and the output folder of a run."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rifflemix.errors import InputError, bad_argument, is_out_of_memory
from rifflemix.json_values import parse_json
from rifflemix.locks import LOCK, locked, scratch_folder

_HEADER = "rifflemix"  # a single header entry: safetensors writes several entries in random order
_MOST_TEXT = 1 << 28
START_OVER = "remove the folder to start over, or choose another"


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents.

    Raises:
        InputError: the folder cannot be created or is not writable.
    """
    with reported("make folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to folder {folder}: permission denied")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary path, then move the file to `path`.

    The file is flushed to disk first. `path` always has either the old or the new content, even
    after a kill or a power failure.

    Raises:
        InputError: the file cannot be written (no permission, no space ...).
    """
    try:
        with scratch_folder(path.parent) as scratch:
            temporary = scratch / "file"
            temporary.touch()
            mode = temporary.stat().st_mode  # safetensors creates private files
            write(temporary)
            temporary.chmod(mode)
            flush(temporary)
            os.replace(temporary, path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot("write", path, error) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def user_path(name: str, path: str | os.PathLike[str]) -> Path:
    """Expand ~ and ~user in a path.

    Raises:
        InputError: `path` is not a path, is not valid UTF-8, cannot be accessed, or its user does
            not exist. The message starts with the argument's name, `name`.
    """
    if not isinstance(path, str | os.PathLike):
        raise bad_argument(name, "a path", repr(path))
    if not (text := os.fsdecode(path)) or "\0" in text:
        raise bad_argument(name, "a path", repr(text))
    try:
        text.encode()  # JSON, safetensors and reports need UTF-8
        found = Path(path).expanduser()
        found.lstat()
    except UnicodeEncodeError:
        raise bad_argument(name, "a path in UTF-8", ascii(text)) from None
    except (FileNotFoundError, NotADirectoryError):
        pass  # the caller may create it
    except RuntimeError:
        raise bad_argument(name, "a path whose ~ stands for a user's folder", str(path)) from None
    except OSError as error:
        got = f"{text[:100]} ({error.strerror})"
        raise bad_argument(name, "a path that can be looked at", got) from None
    return found


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON; NaN and infinity raise ValueError."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def check_regular(path: Path) -> None:
    """Raise OSError if `path` is a pipe or a device.

    Reading from it could block or never end.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is no regular file")


def read_text(path: Path) -> str:
    """Read a UTF-8 file that rifflemix wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not UTF-8, or is larger than any file that rifflemix writes.
    """
    check_regular(path)
    if path.stat().st_size > _MOST_TEXT:
        raise ValueError(f"it has more than {_MOST_TEXT:,} bytes")
    return path.read_text(encoding="utf-8")


def read_json(path: Path, advice: str = START_OVER) -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        advice: end of the error message for a damaged file, with advice for the user.

    Raises:
        InputError: the file cannot be read or is not JSON.
    """
    try:
        return parse_json(read_text(path))
    except OSError as error:
        raise cannot("read", path, error) from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: it is not JSON ({error}); {advice}") from error


def read_json_lines(path: Path) -> list[Any]:
    """Read a file with one JSON value per line.

    Raises:
        InputError: the file cannot be read, or a line is not JSON.
    """
    try:
        return [parse_json(line) for line in read_text(path).splitlines()]
    except OSError as error:
        raise cannot("read", path, error) from error
    except ValueError as error:
        raise damaged_run(path, f"a line is not JSON: {error}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Any) -> None:
    """Write CPU tensors and JSON values to one safetensors file, atomically.

    The header contains a checksum of both. safetensors by itself detects a truncated file, but
    not a changed byte.
    """
    entry = {"meta": meta, "sha256": _digest(tensors, meta)}
    header = {_HEADER: json.dumps(entry, allow_nan=False)}
    write_atomically(path, lambda temporary: save_file(dict(tensors), temporary, header))


def read_tensors(path: Path, advice: str = START_OVER) -> tuple[dict[str, Tensor], Any]:
    """Read a file that `write_tensors` wrote.

    Args:
        path: the file.
        advice: end of the error message for a damaged file, with advice for the user.

    Returns:
        The tensors by name, and the JSON values.

    Raises:
        InputError: the file is missing, truncated, changed, or was not written by rifflemix.
    """
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except (OSError, MemoryError) as error:
        raise cannot("read", path, error) from error
    # A header may name dtypes that this torch lacks, or shapes that it cannot allocate.
    except (SafetensorError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        if is_out_of_memory(error):
            raise cannot("read", path, error) from error
        raise damaged_run(path, str(error).split("\n")[0], advice) from error
    if _HEADER not in header:
        raise InputError(f"{path} was not written by rifflemix: no {_HEADER!r} entry in its header")
    try:
        entry = parse_json(header[_HEADER])
        is_whole = entry["sha256"] == _digest(tensors, entry["meta"])
    except (ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise damaged_run(path, "its checksum does not match", advice)
    return tensors, entry["meta"]


CONFIG_FILE = "config.json"


@contextlib.contextmanager
def claimed_folder(
    folder: Path, settings: Mapping[str, Any], *, name: str = "out", free: Collection[str] = ()
) -> Iterator[None]:
    """Create or reopen a run's folder, write its config.json, and lock it.

    Args:
        folder: a new or empty folder, or the folder of an earlier run with the same settings.
        settings: the run's settings as JSON values, written to config.json.
        name: name of the argument that chose the folder, for error messages.
        free: dotted names of the settings that may change when a run resumes.

    Raises:
        InputError: the folder cannot be written, is in use, or contains other files.
    """
    check_same_settings(folder, settings, name=name, free=free)
    with reported("look at", folder):
        is_new = not folder.exists()
    make_folder(folder)
    with locked(folder):
        # Check again: another process may have written to the folder before it was locked.
        check_same_settings(folder, settings, name=name, free=free)
        try:
            write_json(folder / CONFIG_FILE, settings)
        except InputError:
            if is_new:
                _remove_empty(folder)
            raise
        yield


def check_same_settings(
    folder: Path, settings: Mapping[str, Any], *, name: str = "out", free: Collection[str] = ()
) -> None:
    """Raise InputError unless a folder is empty or has the same settings.

    See `claimed_folder` for the arguments.
    """
    path = folder / CONFIG_FILE
    with reported("look at", folder):
        if not folder.is_dir():
            return
        is_claimed, names = path.exists(), sorted(entry.name for entry in folder.iterdir())
    if not is_claimed:
        for entry in names:
            if not entry.startswith("."):
                raise bad_argument(
                    name,
                    f"a new or empty folder, or one with a run's {CONFIG_FILE}",
                    f"{folder}, which holds {entry} without it",
                )
        return
    earlier = read_json(path)
    if not isinstance(earlier, dict) or earlier.get("format") != settings.get("format"):
        raise bad_argument(name, "a folder of the same command", f"another run's, {folder}")
    as_kept = json.loads(json.dumps(settings))  # the round trip converts tuples to lists
    if difference := first_difference(earlier, as_kept, free):
        setting, before, now = difference
        same = "model, torch" if setting == "model.hash" else "settings"
        raise InputError(
            f"{name}: {folder} holds another run: it was started with {setting} = {before!r}, "
            f"got {now!r}; choose another folder, or the same {same} and rifflemix"
        )


_NAMES_OF_FILES = ("task_options.data", "task.options.data")


def first_difference(
    earlier: Mapping[str, Any], now: Mapping[str, Any], free: Collection[str] = (), prefix: str = ""
) -> tuple[str, Any, Any] | None:
    """Find the first setting that differs: its dotted name and both values.

    Paths of user data files are ignored, because the settings contain a hash of their content.
    """
    for key in [*now, *(key for key in earlier if key not in now)]:
        name, before, after = f"{prefix}{key}", earlier.get(key), now.get(key)
        if before == after or name in free or name in _NAMES_OF_FILES:
            continue
        if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
            return name, before, after
        inner = first_difference(before, after, free, f"{name}.")
        if inner is not None:
            return inner
    return None


def _remove_empty(folder: Path) -> None:
    """Remove a folder that contains only its lock, if possible."""
    with contextlib.suppress(OSError):
        if os.listdir(folder) == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if sys.platform == "win32" and path.is_dir():
        return  # Windows cannot open a folder, and writes folder entries immediately
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(tensors: Mapping[str, Tensor], meta: Any) -> str:
    digest = hashlib.sha256(json.dumps(meta).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextlib.contextmanager
def reported(verb: str, path: Path) -> Iterator[None]:
    """Convert an OSError, such as a disk error, to a one-sentence InputError."""
    try:
        yield
    except OSError as error:
        raise cannot(verb, path, error) from error


def cannot(verb: str, path: Path, error: Exception) -> InputError:
    """Create the error for a failed operation on a file or folder."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"cannot {verb} {path}: {reason}")


def damaged_run(path: Path, reason: str, advice: str = START_OVER) -> InputError:
    """Create the error for a damaged file of a run."""
    return InputError(f"{path} is damaged ({reason}); {advice}")
