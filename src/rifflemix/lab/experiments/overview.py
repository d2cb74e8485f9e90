"""State of an experiment: runs done, the status of each worker, time left."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rifflemix.errors import InputError
from rifflemix.files import read_json
from rifflemix.json_values import decode
from rifflemix.lab.experiments.plan import (
    ALL_RUNS,
    Experiment,
    PlannedRun,
    PlansInStages,
    Records,
    RunRecord,
    Shard,
)
from rifflemix.lab.experiments.store import RunStore
from rifflemix.lab.runs.status import RunStatus

STATUSES = ".workers"
"""Folder of the status files and of the workers' output, below the experiment."""
_SECONDS = 1.0  # between two writes
_SECONDS_TO_LIVE = 60.0


@dataclass(frozen=True)
class WorkerStatus:
    """Status of one worker.

    Attributes:
        host, pid: machine and process of the worker.
        run: status of its current run.
    """

    host: str
    pid: int
    run: RunStatus


class StatusFile:
    """The status file of this process, deleted at the end of the context.

    Args:
        out: folder of the experiment.
    """

    def __init__(self, out: Path) -> None:
        self._path = status_path(out, socket.gethostname(), os.getpid())
        self._state = ""
        self._next = 0.0

    def __enter__(self) -> StatusFile:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            self._path.parent.rmdir()

    def update(self, status: RunStatus) -> None:
        """Write the status, at most once per second per state."""
        state = f"{status.mixer} {status.seed} {status.trial} {status.state}"
        now = time.monotonic()
        if state == self._state and now < self._next:
            return
        self._state, self._next = state, now + _SECONDS
        text = json.dumps(asdict(WorkerStatus(socket.gethostname(), os.getpid(), status)))
        temporary = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a display is worth no failure
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self._path)


def status_path(out: Path, host: str, pid: int) -> Path:
    """Return the path of a worker's status file."""
    return out / STATUSES / f"{host}-{pid}.json"


def read_statuses(out: Path) -> list[WorkerStatus]:
    """Read the statuses of the workers that are alive, in order of machine and process."""
    found = []
    for path in (out / STATUSES).glob("*.json"):
        with contextlib.suppress(OSError, InputError, ValueError):
            if time.time() - path.stat().st_mtime <= _SECONDS_TO_LIVE:
                found.append(decode(WorkerStatus, read_json(path)))
    return sorted(found, key=lambda status: (status.host, status.pid))


Expected = Callable[[PlannedRun], float | None]
"""Returns the estimated seconds of a run, or None if they are unknown."""


@dataclass(frozen=True)
class Overview:
    """State of an experiment.

    Attributes:
        done, planned: number of finished runs and of all runs that are known so far.
        workers: the workers that are alive, on all machines.
        seconds_left: estimated time until all runs are finished; None if it is unknown.
        failed: records of the runs that failed.
    """

    done: int
    planned: int
    workers: Sequence[WorkerStatus]
    seconds_left: float | None
    failed: Sequence[RunRecord]

    @property
    def is_finished(self) -> bool:
        """Whether no run is left."""
        return self.done == self.planned


class Observer:
    """Observes the experiments below a folder.

    Args:
        out: folder of the workers' status files.
        experiments: the experiments.
        expected: estimates the time of a run before a similar run has finished.
        shard: the part of the runs to observe.
    """

    def __init__(
        self,
        out: Path,
        experiments: Sequence[Experiment],
        expected: Expected = lambda run: None,
        shard: Shard = ALL_RUNS,
    ) -> None:
        self._out = out
        self._experiments = experiments
        self._stores = [RunStore(experiment) for experiment in experiments]
        self._expected = expected
        self._shard = shard

    def look(self) -> Overview:
        """Read the records and the statuses."""
        workers = read_statuses(self._out)
        planned, finished = 0, list[RunRecord]()
        left, later = list[float | None](), list[float | None]()
        for experiment, store in zip(self._experiments, self._stores, strict=True):
            records, contains = store.records(), self._shard.contains
            runs = [run for run in experiment.planned(records) if contains(experiment, run)]
            planned += len(runs)
            finished += [records[run.name] for run in runs if run.name in records]
            speeds = _Speeds(runs, records, self._expected)
            left += [speeds.seconds(run) for run in runs if run.name not in records]
            if isinstance(experiment, PlansInStages):
                later += speeds.of_subjects(experiment.later_trainings(records))
        return Overview(
            len(finished),
            planned,
            workers,
            _time_left(left, later, workers),
            [record for record in finished if record.error is not None],
        )


class _Speeds:
    """Estimates of seconds from the runs that have finished."""

    def __init__(self, runs: Sequence[PlannedRun], records: Records, expected: Expected) -> None:
        known = defaultdict[str, list[float]](list)
        for run in runs:
            if run.name in records and run.start is None:
                known[run.subject].append(records[run.name].wall_seconds / run.share)
        self._means = {subject: fmean(seconds) for subject, seconds in known.items()}
        self._mean = fmean(self._means.values()) if known else None
        self._shares = {run.name: run.share for run in runs}
        self._examples = {run.subject: run for run in runs}
        self._expected = expected

    def seconds(self, run: PlannedRun) -> float | None:
        """Estimate the seconds of a run; None if they are unknown."""
        whole = self._whole(run)
        done = 0.0 if run.start is None else self._shares.get(run.start, 1.0)
        return None if whole is None else (run.share - done) * whole

    def of_subjects(self, trainings: Mapping[str, float]) -> list[float | None]:
        """Estimate the seconds of this number of whole trainings, for each subject with runs."""
        found = list[float | None]()
        for subject, count in trainings.items():
            if subject in self._examples:
                whole = self._whole(self._examples[subject])
                found.append(None if whole is None else count * whole)
        return found

    def _whole(self, run: PlannedRun) -> float | None:
        return self._means.get(run.subject) or self._expected(run) or self._mean


def _time_left(
    left: Sequence[float | None], later: Sequence[float | None], workers: Sequence[WorkerStatus]
) -> float | None:
    """Divide the work among the workers; subtract the work that they have done."""
    known, unplanned = ([each for each in of if each is not None] for of in (left, later))
    if not workers or len(known) + len(unplanned) < len(left) + len(later):
        return None
    running = [worker.run for worker in workers if worker.run.state == "training"]
    mean = fmean(known) if known else 0.0
    done = math.fsum(mean * run.step / run.max_steps for run in running)
    longest = max((run.seconds_left or 0.0 for run in running), default=0.0)
    return max(longest, (math.fsum([*known, *unplanned]) - done) / len(workers))
