"""Folder locks, and temporary folders protected by a lock."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rifflemix.errors import InputError

LOCK = ".lock"
_TEMPORARY = re.compile(r"\.rifflemix-[0-9a-f]{16}\.tmp")
_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # some network file systems
_held: set[int] = set()  # file descriptors of the locks that this process owns


class FolderInUse(InputError):
    """Another process has locked the folder."""


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Lock a folder with the lock file `name` during the context.

    The operating system releases the lock when the process ends for any reason.

    Raises:
        FolderInUse: another process has the lock.
        InputError: the lock file cannot be created or locked.
    """
    try:
        descriptor = _lock(folder, name)
    except BlockingIOError:
        raise FolderInUse(
            f"{folder} is in use by another process; wait for it or choose another folder"
        ) from None
    except OSError as error:
        raise InputError(f"cannot lock {folder / name}: {error.strerror or error}") from error
    try:
        yield
    finally:
        _unlock(descriptor)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Create a temporary folder in `parent` for the duration of the context.

    The folder is locked during the context and deleted at the end. Every call first deletes the
    temporary folders that killed processes left behind.

    Raises:
        OSError: the folder cannot be created.
    """
    delete_leftovers(parent)
    with contextlib.ExitStack() as stack:
        yield _new_scratch(parent, stack)


def _new_scratch(parent: Path, stack: contextlib.ExitStack) -> Path:
    while True:
        folder = parent / f".rifflemix-{secrets.token_hex(8)}.tmp"
        folder.mkdir(mode=0o700)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            stack.callback(_unlock, _lock(folder))
        except (BlockingIOError, FileNotFoundError):
            continue  # another process deleted the folder as a leftover before it was locked
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        if folder.is_dir():
            return folder


def delete_leftovers(parent: Path) -> None:
    """Delete the temporary folders that killed processes left in `parent`.

    These folders have a fixed name pattern and no lock; everything else stays. A folder that
    cannot be deleted stays for a later call.
    """
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        found = [Path(e.path) for e in entries if _TEMPORARY.fullmatch(e.name) and _is_folder(e)]
        for folder in found:
            with contextlib.suppress(OSError):
                descriptor = _lock(folder)
                try:
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    _unlock(descriptor)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _lock(folder: Path, name: str = LOCK) -> int:
    """Lock a folder; raise BlockingIOError if another process has the lock."""
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    _held.add(descriptor)
    try:
        _lock_file(descriptor)
    except BaseException:
        _unlock(descriptor)
        raise
    return descriptor


def _unlock(descriptor: int) -> None:
    if descriptor in _held:
        _held.remove(descriptor)
        with contextlib.suppress(OSError):  # the file is empty: a failed close loses nothing
            os.close(descriptor)


def _forget_locks() -> None:
    """Close all locks in a forked child process.

    A data loader worker may outlive a killed run, and must not keep its lock.
    """
    while _held:
        os.close(_held.pop())


if sys.platform == "win32":

    def _lock_file(descriptor: int) -> None:
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from error

else:
    import fcntl

    os.register_at_fork(after_in_child=_forget_locks)

    def _lock_file(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
