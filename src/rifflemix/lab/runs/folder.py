"""Checks of the folder that a command writes to."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rifflemix.errors import bad_argument

_LONGEST_NAME = 100  # longest path that a run creates inside its folder


def check_folder(out: Path) -> None:
    """Raise InputError unless `out` is a writable folder or can be created.

    The check creates no files.
    """
    try:
        str(out).encode()
        check_new_path(out)
        if out.exists() and not out.is_dir():
            raise bad_argument("out", "a folder", f"the file {out}")
        if out.is_dir():
            next(out.iterdir(), None)  # the command needs to list the folder
        nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except UnicodeEncodeError:
        raise bad_argument("out", "a folder with a name in UTF-8", ascii(str(out))) from None
    except OSError as error:
        raise bad_argument(
            "out", "a folder that can be written", f"{str(out)[:200]} ({error.strerror})"
        ) from None


def check_new_path(path: Path) -> None:
    """Raise OSError if the file system does not support the path."""
    nearest = Path(path.absolute().anchor)
    for part in path.absolute().parts[1:]:
        if _exists(nearest / part):
            nearest /= part
    _exists(path / ("x" * _LONGEST_NAME))


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
