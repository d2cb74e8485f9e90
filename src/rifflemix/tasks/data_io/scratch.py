"""Folders that are written whole or not at all, and what killed writers left of them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rifflemix.errors import InputError
from rifflemix.files import FolderInUse, locked

_PREFIX = ".writing-"


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, which is made; it is gone afterwards, or after the next one.

    While it is in use it is locked: a folder of this kind without a lock was left by a process
    that was killed, and is deleted.

    Raises:
        OSError: it cannot be made or locked.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _clear(parent)
    with contextlib.ExitStack() as stack:
        while True:
            name = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
            stack.callback(shutil.rmtree, name, ignore_errors=True)
            try:
                stack.enter_context(locked(Path(name)))
            except InputError as error:
                if Path(name).is_dir() and not isinstance(error, FolderInUse):
                    raise OSError(str(error)) from error  # no lock can be had here
                continue  # another process took it for a leftover before it was locked
            if Path(name).is_dir():
                break
        part = Path(name) / "part"
        part.mkdir()
        yield part


def _clear(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(InputError, FolderInUse), locked(path):
            shutil.rmtree(path, ignore_errors=True)
