"""Attempts at a run: each worker trains in a separate directory.

An attempt is alive while its owner holds a lock in it and touches its heartbeat. The lock finds a
killed owner at once. The heartbeat finds a stopped process, a dead machine, and owners on file
systems without locks. A worker takes an attempt over by renaming its directory. Only one worker can
do that. The former owner then writes to a path that no longer exists, so it cannot do harm.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from rifflemix.errors import InputError
from rifflemix.files import make_folder
from rifflemix.locks import FolderInUse, locked

_CLAIM = ".claim"
_OWNER = ".owner"
_LOCKS = (_OWNER, ".lock")
_HEARTBEAT = ".alive"
SECONDS_TO_LIVE = 60.0
"""An attempt with an older heartbeat has no owner."""


class Attempt:
    """The directory in which this process trains a run.

    Attributes:
        path: the directory.
        is_inherited: the directory belonged to a worker that was killed, or that stopped its
            heartbeat, before it released the directory.
    """

    def __init__(self, path: Path, *, is_inherited: bool = False) -> None:
        self.path = path
        self.is_inherited = is_inherited
        self._held = ExitStack()
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)

    def is_lost(self) -> bool:
        """Check whether another worker took the directory over."""
        return self._lost.is_set()

    def start(self) -> None:
        """Hold the directory.

        Raises:
            FolderInUse: another process holds it, or renamed it.
        """
        try:
            with contextlib.suppress(_NoLocks):
                self._held.enter_context(_lock(self.path, _OWNER))
            (self.path / _HEARTBEAT).touch()
        except FileNotFoundError as error:
            self._held.close()
            raise FolderInUse(f"{self.path} was taken over by another worker") from error
        self._heart.start()

    def release(self) -> None:
        """Leave the directory to whoever continues the run; a second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._heart.join()
        for name in (_HEARTBEAT, _OWNER):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
        self._held.close()

    def _beat(self) -> None:
        while not self._ended.wait(SECONDS_TO_LIVE / 4):
            try:
                os.utime(self.path / _HEARTBEAT)
            except FileNotFoundError:
                self._lost.set()
                return
            except OSError:  # a network file system may be away for a moment
                continue


def claim_attempt(attempts: Path) -> Attempt | None:
    """Start an attempt below a directory, or continue one without an owner.

    Returns:
        The attempt, or None if another worker owns one.

    Raises:
        InputError: the directory cannot be written.
    """
    make_folder(attempts)
    with ExitStack() as stack:
        try:
            # Without locks, two workers may start at once: the same bits are computed twice.
            with contextlib.suppress(_NoLocks):
                stack.enter_context(_lock(attempts, _CLAIM))
            return _claim(attempts)
        except FolderInUse:
            return None


def _claim(attempts: Path) -> Attempt | None:
    found = sorted(entry for entry in attempts.iterdir() if entry.is_dir())
    if any(is_alive(entry) for entry in found):
        return None
    path = attempts / _new_name()
    try:
        if found:
            os.rename(newest(found), path)
            for name in _LOCKS:  # a stopped owner may hold the old files for ever
                (path / name).unlink(missing_ok=True)
        else:
            path.mkdir()
    except FileNotFoundError:
        return None  # another worker renamed it first
    except OSError as error:
        raise InputError(f"cannot make folder {path}: {error.strerror}") from error
    attempt = Attempt(path, is_inherited=(path / _HEARTBEAT).exists())
    attempt.start()
    return attempt


def is_alive(attempt: Path) -> bool:
    """Check whether a worker owns an attempt."""
    try:
        age = _now(attempt.parent) - (attempt / _HEARTBEAT).stat().st_mtime
    except FileNotFoundError:
        return False
    except OSError:
        return True  # unreadable for now; ask again later
    if age > SECONDS_TO_LIVE:
        return False
    try:
        with _lock(attempt, _OWNER):
            return False
    except FolderInUse:
        return True
    except _NoLocks:
        return True
    except InputError:
        return False


def newest(attempts: list[Path]) -> Path:
    """Choose the attempt that has come furthest: the one with the newest checkpoint."""
    return max(attempts, key=time_of_checkpoint)


def time_of_checkpoint(attempt: Path) -> float:
    """Return the modification time of the checkpoint, or 0 if there is none."""
    try:
        return (attempt / "checkpoint.safetensors").stat().st_mtime
    except OSError:
        return 0.0


def remove_attempts(attempts: Path) -> None:
    """Delete the attempts without an owner, and then the directory if it is empty."""
    with contextlib.suppress(OSError):
        for entry in attempts.iterdir():
            if entry.is_dir() and not is_alive(entry):
                shutil.rmtree(entry, ignore_errors=True)
        (attempts / _CLAIM).unlink(missing_ok=True)
        attempts.rmdir()
        attempts.parent.rmdir()


class _NoLocks(OSError):
    """The file system has no locks."""


@contextlib.contextmanager
def _lock(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock.

    Raises:
        FileNotFoundError: the folder does not exist.
        FolderInUse: another process holds the lock.
        _NoLocks: the file system has no locks.
    """
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, name))
        except FolderInUse:
            raise
        except InputError as error:
            raise _NoLocks(str(error)) from error
        yield


def _new_name() -> str:
    host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def _now(folder: Path) -> float:
    """Return the time of the file system: clocks of machines differ."""
    probe = folder / f".now-{secrets.token_hex(4)}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
