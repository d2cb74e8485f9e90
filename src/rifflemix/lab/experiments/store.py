"""The folder of an experiment: its settings, finished runs, and attempts at the others."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.files import (
    CONFIG_FILE,
    claimed_folder,
    flush,
    make_folder,
    read_json,
    write_atomically,
)
from rifflemix.lab.experiments.attempts import Attempt, claim_attempt, newest, remove_attempts
from rifflemix.lab.experiments.plan import (
    ONLY_RUN,
    RECORD_FILE,
    Experiment,
    PlannedRun,
    Records,
    RunRecord,
    forget,
    read_record,
    write_record,
)
from rifflemix.locks import FolderInUse

ATTEMPTS = ".attempts"
_PATIENCE = 60.0  # seconds
_OLD_RUN = ("log.jsonl", "checkpoint.safetensors", "best.safetensors", "training.json", "weights")


class RunStore:
    """The runs of one experiment on disk.

    A finished run is a folder with a record. It appears at once, by renaming the attempt that
    finished first.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._records: dict[str, RunRecord] = {}
        self._is_adopted = False
        self.out = experiment.out

    def open(self) -> None:
        """Write config.json, or check that the folder belongs to this experiment.

        Raises:
            InputError: the folder holds something else or cannot be written.
        """
        self._is_adopted = _adopt_old_run(self.out)
        experiment = self._experiment
        with held_folder(self.out, experiment.settings, free=experiment.free):
            pass

    def forget_settings(self) -> None:
        """Remove config.json if an old run turned out to have other settings."""
        if self._is_adopted:
            with contextlib.suppress(OSError):
                (self.out / CONFIG_FILE).unlink()

    def records(self) -> Records:
        """Read the records of the finished runs.

        Raises:
            InputError: a record is damaged.
        """
        count = -1
        while count != len(self._records):  # a record may make further runs possible
            count = len(self._records)
            for run in self._experiment.planned(self._records):
                if run.name not in self._records:
                    record = read_record(self.out / run.name)
                    if record is not None:
                        self._records[run.name] = record
        return self._records

    def claim(self, run: PlannedRun) -> Attempt | None:
        """Start or continue a run, unless another worker works on it.

        Raises:
            InputError: the folder cannot be written.
        """
        self._adopt_old_folder(run)
        attempt = claim_attempt(self._attempts(run))
        if attempt is not None and run.start is not None:
            try:
                _copy_files(self.out / run.start, attempt.path)
            except BaseException:
                attempt.release()
                raise
        return attempt

    def publish(self, run: PlannedRun, attempt: Attempt, record: RunRecord) -> None:
        """Write the record and give the attempt's folder the name of the run.

        If another worker published the run first, its equal results stay.

        Raises:
            InputError: the folder cannot be written.
        """
        target = self.out / run.name
        write_record(attempt.path, record)
        forget(attempt.path)
        attempt.release()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.rename(attempt.path, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES):
                    raise
                if read_record(target) is None:
                    raise
            else:
                flush(target.parent)
        except OSError as error:
            raise InputError(f"cannot write {target}: {error.strerror}") from error
        remove_attempts(self._attempts(run))

    def tidy(self) -> None:
        """Delete the attempts at finished runs that a killed process left."""
        if (self.out / ATTEMPTS).is_dir():
            for run in self._experiment.planned(self._records):
                if run.name in self._records:
                    remove_attempts(self._attempts(run))
            with contextlib.suppress(OSError):
                (self.out / ATTEMPTS).rmdir()

    def _attempts(self, run: PlannedRun) -> Path:
        return self.out / ATTEMPTS / run.name.replace("/", "~")

    def _adopt_old_folder(self, run: PlannedRun) -> None:
        """Continue a run that was started before runs had records."""
        folder = self.out / run.name
        if not (folder / CONFIG_FILE).is_file() or read_record(folder) is not None:
            return
        make_folder(self._attempts(run))
        with contextlib.suppress(FileNotFoundError):  # another worker was faster
            os.rename(folder, self._attempts(run) / "old")


@contextlib.contextmanager
def held_folder(
    out: Path, settings: Mapping[str, Any], *, free: Collection[str] = ()
) -> Iterator[None]:
    """Hold the folder of an experiment for a moment, as `claimed_folder`; wait for others.

    Raises:
        InputError: the folder holds something else or cannot be written.
    """
    end = time.monotonic() + _PATIENCE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(claimed_folder(out, settings, free=free))
                break
            except FolderInUse:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.05)
        yield


def files_of(out: Path, name: str) -> Path:
    """Return the folder with the files of a run: the finished run, or the newest attempt."""
    folder, attempts = out / name, out / ATTEMPTS / name.replace("/", "~")
    if not folder.is_dir() and attempts.is_dir():
        found = [entry for entry in attempts.iterdir() if entry.is_dir()]
        if found:
            return newest(found)
    return folder


def only_run(out: Path) -> Path:
    """Return the folder with the files of a single run.

    It is `out` itself for runs that were made before each run had a separate folder, and for
    `rifflemix.lab.train.train`.
    """
    folder = files_of(out, ONLY_RUN)
    return folder if folder.is_dir() else out


def _adopt_old_run(out: Path) -> bool:
    """Move the files of a single run that is older than run folders into an attempt.

    They are in `out` itself. config.json moves last, so that a kill in between is repaired.

    Returns:
        Whether there was such a run.
    """
    config = out / CONFIG_FILE
    if not config.is_file():
        return False
    settings = read_json(config)
    if not isinstance(settings, dict) or "format" in settings or "model" not in settings:
        return False
    attempt = out / ATTEMPTS / ONLY_RUN / "old"
    make_folder(attempt)
    try:
        for name in (*_OLD_RUN, CONFIG_FILE):
            if (out / name).exists():
                os.rename(out / name, attempt / name)
    except OSError as error:
        raise InputError(f"cannot move files of {out}: {error.strerror}") from error
    return True


def _copy_files(source: Path, target: Path) -> None:
    """Copy the files of a finished run into a new attempt, unless they are there."""
    try:
        for entry in sorted(source.rglob("*")):
            copy = target / entry.relative_to(source)
            is_needed = entry.is_file() and not entry.name.startswith(".")
            if is_needed and entry.name != RECORD_FILE and not copy.exists():
                make_folder(copy.parent)
                write_atomically(copy, partial(shutil.copyfile, entry))
    except OSError as error:
        raise InputError(f"cannot copy {source} to {target}: {error.strerror}") from error
