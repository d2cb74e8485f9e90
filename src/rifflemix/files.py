"""Files that are either whole or absent: atomic writes, checked reads, the folder of a run."""

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

_HEADER = "rifflemix"  # the one header entry: safetensors writes several in random order
_MOST_TEXT = 1 << 28
START_OVER = "remove the folder to start over, or choose another"


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents.

    Raises:
        InputError: it cannot be made or written to.
    """
    with reported("make folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to folder {folder}: permission denied")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary path, flush the file to disk, then move it to `path`.

    At any moment, even after a kill or a power cut, `path` has the old content or the new one.

    Raises:
        InputError: the file cannot be written (no permission, no space ...).
    """
    try:
        with scratch_folder(path.parent) as scratch:
            temporary = scratch / "file"
            temporary.touch()
            mode = temporary.stat().st_mode  # safetensors makes its files private
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
    """A path with ~ and ~user replaced by the folders they stand for.

    Raises:
        InputError: `path` is no path, is not in UTF-8, or there is no such user; it says `name`.
    """
    if not isinstance(path, str | os.PathLike):
        raise bad_argument(name, "a path", repr(path))
    if not (text := os.fsdecode(path)) or "\0" in text:
        raise bad_argument(name, "a path", repr(text))
    try:
        text.encode()  # JSON, safetensors and reports hold nothing else
        found = Path(path).expanduser()
        found.lstat()
    except UnicodeEncodeError:
        raise bad_argument(name, "a path in UTF-8", ascii(text)) from None
    except (FileNotFoundError, NotADirectoryError):
        pass  # perhaps it is to be made
    except RuntimeError:
        raise bad_argument(name, "a path whose ~ stands for a user's folder", str(path)) from None
    except OSError as error:
        got = f"{text[:100]} ({error.strerror})"
        raise bad_argument(name, "a path that can be looked at", got) from None
    return found


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON; NaN and infinity are refused."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def check_regular(path: Path) -> None:
    """Raise OSError where `path` is a pipe or a device, which would be waited for, or never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is no regular file")


def read_text(path: Path) -> str:
    """The UTF-8 text of a file of ours.

    Raises:
        OSError, ValueError: it cannot be read, is no such text, or larger than any of ours.
    """
    check_regular(path)
    if path.stat().st_size > _MOST_TEXT:
        raise ValueError(f"it has more than {_MOST_TEXT:,} bytes")
    return path.read_text(encoding="utf-8")


def read_json(path: Path, advice: str = START_OVER) -> Any:
    """Read a JSON file; `advice` is what to do where it is damaged.

    Raises:
        InputError: it cannot be read or is not JSON.
    """
    try:
        return parse_json(read_text(path))
    except OSError as error:
        raise cannot("read", path, error) from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: it is not JSON ({error}); {advice}") from error


def read_json_lines(path: Path) -> list[Any]:
    """Read a file with one JSON value a line.

    Raises:
        InputError: it cannot be read, or a line is not JSON.
    """
    try:
        return [parse_json(line) for line in read_text(path).splitlines()]
    except OSError as error:
        raise cannot("read", path, error) from error
    except ValueError as error:
        raise damaged_run(path, f"a line is not JSON: {error}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Any) -> None:
    """Write CPU tensors and JSON values to one safetensors file, atomically.

    A checksum of both goes into its header: safetensors alone sees a short file but not
    a changed byte.
    """
    entry = {"meta": meta, "sha256": _digest(tensors, meta)}
    header = {_HEADER: json.dumps(entry, allow_nan=False)}
    write_atomically(path, lambda temporary: save_file(dict(tensors), temporary, header))


def read_tensors(path: Path, advice: str = START_OVER) -> tuple[dict[str, Tensor], Any]:
    """Read what `write_tensors` wrote.

    Raises:
        InputError: the file is missing, truncated or changed, or not one of ours.
    """
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except (OSError, MemoryError) as error:
        raise cannot("read", path, error) from error
    # A header may name types that this torch does not have, or shapes that it cannot make.
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
    """Make the folder of a run, or open it again, write its config.json and hold it.

    Args:
        folder: new, empty, or of an earlier start with the same settings.
        settings: what the run is, as JSON values; goes to config.json.
        name: the argument that chose the folder, for messages.
        free: dotted names of settings that a run may change when it goes on.

    Raises:
        InputError: it cannot be written, is in use, or holds something else.
    """
    check_same_settings(folder, settings, name=name, free=free)
    with reported("look at", folder):
        is_new = not folder.exists()
    make_folder(folder)
    with locked(folder):
        # Again: another process may have been here.
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
    """Raise InputError if a folder has something else than an earlier start of this very run.

    Arguments as for `claimed_folder`.
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
    as_kept = json.loads(json.dumps(settings))  # tuples come back as lists
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
    """The first setting that two configurations disagree on: its dotted name and both values.

    The name of a file of the user's own is none: its content has a hash of its own.
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
    """Remove a folder that has nothing but its lock, if that is possible."""
    with contextlib.suppress(OSError):
        if os.listdir(folder) == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()


def flush(path: Path) -> None:
    """Force a file or the entries of a folder to disk."""
    if sys.platform == "win32" and path.is_dir():
        return  # Windows cannot open a folder, and writes its entries at once
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
    """Raise InputError with one sentence in place of an OSError, such as of a failing disk."""
    try:
        yield
    except OSError as error:
        raise cannot(verb, path, error) from error


def cannot(verb: str, path: Path, error: Exception) -> InputError:
    """The error for a file or folder that the system refuses."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"cannot {verb} {path}: {reason}")


def damaged_run(path: Path, reason: str, advice: str = START_OVER) -> InputError:
    """The error for a file of a run that is not what was written."""
    return InputError(f"{path} is damaged ({reason}); {advice}")
