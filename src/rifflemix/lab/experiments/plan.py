"""The runs of an experiment: the plan, and a record of each run with results and history.

Every training holds a lock on a file in the folder for temporary files. The name of the file ends
with the device. Counting the held locks finds all trainings of one user, also in other folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rifflemix.errors import InputError
from rifflemix.files import read_json, write_json
from rifflemix.json_values import check_seal, decode, sealed
from rifflemix.lab.runs.environment import Environment
from rifflemix.lab.train import TrainResult
from rifflemix.locks import FolderInUse, locked

FORMAT = "rifflemix.run/1"
RECORD_FILE = "record.json"
_ADVICE = "remove its folder to train this run again"


@dataclass(frozen=True)
class Utilisation:
    """Model FLOP utilisation (MFU) of a training step.

    Attributes:
        flops_per_step: FLOPs of matrix products, convolutions and attention, forward and backward,
            with samples padded as in training.
        flops_per_second: FLOPs per second at the measured speed, over all processes.
        matmul_flops_per_second: speed of a large matrix product on this device and dtype.
        share: the first rate divided by the second.
    """

    flops_per_step: int
    flops_per_second: float
    matmul_flops_per_second: float
    share: float


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The outcome of one run.

    Attributes:
        name: folder of the run below the experiment, such as "csp/seed0".
        subject: label of the mixer, or name of the recipe.
        seed: seed of the run.
        settings: settings that differ from the other runs of the experiment.
        error: why training diverged or failed; None if it did not.
        result: outcome of the training; None if there is an error.
        train_curve: step and mean training loss of each log line.
        wall_seconds: time of the training, over all processes that worked on it.
        peak_memory_bytes: memory of a training step; None if it was not measured.
        utilisation: use of the processor; None if it was not measured.
        started_from: name of the run that this run continued; its time is part of `wall_seconds`.
        environment: command, versions and hardware of the process that finished the run.
        beside: maximum number of other trainings that shared the device or the processor, which
            makes the measured speed lower; None if it was not recorded.
    """

    name: str
    subject: str
    seed: int
    settings: dict[str, Any]
    error: str | None
    result: TrainResult | None
    train_curve: list[dict[str, int | float]]
    wall_seconds: float
    peak_memory_bytes: int | None
    utilisation: Utilisation | None
    started_from: str | None
    environment: Environment
    beside: int | None = None

    @property
    def trained(self) -> TrainResult:
        """The result of a run that did not diverge."""
        if self.result is None:
            raise ValueError(f"{self.name} diverged: {self.error}")
        return self.result

    def chosen_validation(self) -> dict[str, float]:
        """Return the metrics of the best evaluation; empty without a validation split."""
        result = self.trained
        return next((at for at in result.validation if at["step"] == result.best_step), {})


def write_record(folder: Path, record: RunRecord) -> None:
    """Write the record of a run into its folder."""
    write_json(folder / RECORD_FILE, sealed({"format": FORMAT, **asdict(record)}))


def read_record(folder: Path) -> RunRecord | None:
    """Read the record of a run, or return None if the folder has none.

    Raises:
        InputError: the file cannot be read, was changed, or has another format.
    """
    path = folder / RECORD_FILE
    if not path.exists():
        return None
    value = read_json(path, _ADVICE)
    try:
        check_seal(value)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        record = decode(RunRecord, value)
        if (record.result is None) == (record.error is None):
            raise ValueError("expected a result or an error")
        if record.result is not None:
            record.result.check()
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; {_ADVICE}") from error
    return record


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write a file that is derived from records, unless it has this content already."""
    with contextlib.suppress(InputError):
        if path.exists() and read_json(path) == json.loads(json.dumps(summary)):
            return
    write_json(path, summary)


def newest_environment(records: Mapping[str, RunRecord]) -> Environment | None:
    """Return the environment of the run that finished last; None without runs."""
    environments = [record.environment for record in records.values()]
    return max(environments, key=lambda at: at.time, default=None)


TRIES = 3
"""Number of failures without progress after which workers report a run as failed."""
_FILE = ".history.json"


@dataclass
class History:
    """The history of a run over all of its attempts.

    Attributes:
        failures: reason of each failure since the last progress.
        checkpoint: time of the checkpoint at the last failure; a newer one is progress.
        beside: maximum number of other trainings that shared the device or the processor.
    """

    failures: list[str] = field(default_factory=list)
    checkpoint: float = 0.0
    beside: int = 0

    @classmethod
    def read(cls, attempt: Path) -> History:
        """Read the history from the folder of an attempt; a new or damaged one is empty."""
        try:
            return decode(cls, read_json(attempt / _FILE))
        except (InputError, ValueError):
            return cls()

    def write(self, attempt: Path) -> None:
        """Write the history into the folder of an attempt."""
        write_json(attempt / _FILE, asdict(self))

    def add_failure(self, reason: str, checkpoint: float) -> None:
        """Add a failure; forget the earlier ones if the run has made progress since.

        Args:
            reason: how the attempt failed.
            checkpoint: time of the newest checkpoint, 0 if there is none.
        """
        if checkpoint > self.checkpoint:
            self.failures = []
        self.failures.append(reason)
        self.checkpoint = checkpoint

    @property
    def error(self) -> str | None:
        """Reason to stop trying; None if another attempt may succeed."""
        if len(self.failures) < TRIES:
            return None
        return f"failed {len(self.failures)} times, the last time: {self.failures[-1]}"


def forget(attempt: Path) -> None:
    """Delete the history of a finished run, which its record contains."""
    (attempt / _FILE).unlink(missing_ok=True)


_SECONDS = 1.0  # minimum time between two counts


class Neighbors:
    """The other trainings on the device, or on the processor for a training on the CPU.

    Attributes:
        most: maximum number of other trainings so far.
    """

    def __init__(self, device: str) -> None:
        user = os.getuid() if hasattr(os, "getuid") else 0
        self._folder = Path(tempfile.gettempdir()) / f"rifflemix-trainings-{user}"
        self._suffix = f"-{_physical(device)}"
        self._own = f"{os.getpid()}{self._suffix}"
        self._next = 0.0
        self.most = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Announce this training, and count the others at the start and at the end."""
        with contextlib.ExitStack() as stack:
            self._announce(stack)
            self.count()
            try:
                yield
            finally:
                self._next = 0.0
                self.count()

    def count(self) -> None:
        """Count the other trainings, at most once per second."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS
        with contextlib.suppress(OSError):
            names = [entry.name for entry in self._folder.iterdir() if entry.name != self._own]
            others = sum(self._is_running(n) for n in names if n.endswith(self._suffix))
            self.most = max(self.most, others)

    def _announce(self, stack: contextlib.ExitStack) -> None:
        # Other processes may lock the file to count, or remove the empty folder.
        for _ in range(100):
            with contextlib.suppress(OSError, InputError):
                self._folder.mkdir(mode=0o700, exist_ok=True)
                stack.enter_context(locked(self._folder, self._own))
                stack.callback(self._remove)
                return
            time.sleep(0.01)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            (self._folder / self._own).unlink(missing_ok=True)
            self._folder.rmdir()

    def _is_running(self, name: str) -> bool:
        try:
            with locked(self._folder, name):
                (self._folder / name).unlink(missing_ok=True)  # a killed process left the file
                return False
        except FolderInUse:
            return True
        except InputError:
            return False


def _physical(device: str) -> str:
    """Return a name of the device that is the same in every process of the machine."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return kind
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = int(index or 0)
    name = visible[number] if number < len(visible) and visible[number] else str(number)
    return f"{kind}{name.replace('/', '_')}"


Records = Mapping[str, RunRecord]
"""Name of a finished run -> its record."""


@dataclass(frozen=True)
class PlannedRun:
    """One training of an experiment.

    Attributes:
        name: folder of the run below the experiment, such as "csp/seed0".
        subject: label of the mixer, or name of the recipe.
        seed: seed of the run.
        settings: settings that differ from the other runs of the experiment.
        tests: evaluate the chosen weights on the test split; a trial of tuning does not.
        start: name of a finished run that this run continues.
        share: part of the training after which the run ends. A whole training has 1.
    """

    name: str
    subject: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    tests: bool = True
    start: str | None = None
    share: float = 1.0


class Experiment(Protocol):
    """A plan of runs with one folder.

    Attributes:
        out: folder of the experiment.
        settings: identity of the experiment, stored in config.json.
        free: dotted names of settings that may change when the experiment continues.
    """

    @property
    def out(self) -> Path: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def free(self) -> Collection[str]: ...

    def planned(self, records: Records) -> Sequence[PlannedRun]:
        """List the runs that can be made once these runs have finished, in order.

        The list only grows: a run that depends on others appears when their records exist.
        """
        ...


@runtime_checkable
class PlansInStages(Protocol):
    """An experiment that plans later runs from results, so only their number is known."""

    def later_trainings(self, records: Records) -> Mapping[str, float]:
        """Return subject -> work that `planned` will add, in whole trainings."""
        ...


ONLY_RUN = "run"
"""Name of the run of an experiment that has one run."""


@dataclass(frozen=True)
class OneRun:
    """An experiment that consists of one run.

    Attributes:
        out: folder of the experiment.
        subject: label of the mixer, or name of the recipe.
        seed: seed of the run.
        settings: identity of the experiment, stored in config.json.
        free: dotted names of settings that may change when the run continues.
    """

    out: Path
    subject: str
    seed: int
    settings: Mapping[str, Any]
    free: Collection[str] = ()

    def planned(self, records: Records) -> list[PlannedRun]:
        """List the run."""
        return [PlannedRun(ONLY_RUN, self.subject, self.seed)]


@dataclass(frozen=True)
class Shard:
    """One of several disjoint parts of the runs of an experiment.

    The parts divide the mixers if settings are tuned, since the choice depends on all trials of a
    mixer. Otherwise they divide the runs. The run of an experiment with one run is in every part.

    Attributes:
        number: number of the part, from 1.
        count: number of parts.
    """

    number: int = 1
    count: int = 1

    def contains(self, experiment: Experiment, run: PlannedRun) -> bool:
        """Check whether a run belongs to this part."""
        first = [] if self.count == 1 else experiment.planned({})
        if len(first) < 2:
            return True
        if all(each.tests for each in first):
            return [each.name for each in first].index(run.name) % self.count == self.number - 1
        subjects = list(dict.fromkeys(each.subject for each in first))
        return subjects.index(run.subject) % self.count == self.number - 1


ALL_RUNS = Shard()
"""The part that contains every run."""


def unfinished(experiment: Experiment, records: Records) -> list[PlannedRun]:
    """List the runs that can start now."""
    return [run for run in experiment.planned(records) if run.name not in records]
