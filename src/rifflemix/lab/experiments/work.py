"""The loop of a worker: take a run that is not finished, train it, publish its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.experiments.attempts import Attempt, time_of_checkpoint
from rifflemix.lab.experiments.plan import (
    ALL_RUNS,
    ONLY_RUN,
    Experiment,
    History,
    Neighbors,
    PlannedRun,
    Records,
    RunRecord,
    Shard,
    Utilisation,
    unfinished,
)
from rifflemix.lab.experiments.store import RunStore
from rifflemix.lab.runs.environment import Environment, fast_garbage_collection, this_environment
from rifflemix.lab.runs.status import ShouldStop, never
from rifflemix.lab.train import TrainingDiverged, TrainResult
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.run_folder import read_log
from rifflemix.locks import FolderInUse
from rifflemix.plugins import first_line

_WAIT = 2.0  # seconds between two looks at the runs of other workers


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Outcome of a trainer; the attributes have the meaning of `RunRecord`.

    Attributes:
        result: outcome of the training, finished or stopped; None if it diverged.
        error: why it diverged.
        wall_seconds: time of this call.
        peak_memory_bytes: memory of a training step.
        utilisation: use of the processor.
        environment: command, versions and hardware of this process.
    """

    result: TrainResult | None
    error: str | None = None
    wall_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    utilisation: Utilisation | None = None
    environment: Environment = field(default_factory=this_environment)

    @property
    def trained(self) -> TrainResult:
        """The result of a run that did not diverge."""
        if self.result is None:
            raise ValueError(f"the run diverged: {self.error}")
        return self.result


class Trainer(Protocol):
    """Trains the runs of an experiment."""

    def train(
        self, run: PlannedRun, folder: Path, records: Records, should_stop: ShouldStop
    ) -> Trained:
        """Train a run in a folder, or continue it."""
        ...


@dataclass(frozen=True)
class Outcome:
    """Outcome of `carry_out`.

    Attributes:
        records: name -> record of every finished run.
        stopped: outcome so far of the run that the caller stopped; None if no run was stopped.
    """

    records: Records
    stopped: Trained | None

    @property
    def single(self) -> RunRecord | Trained:
        """The run of an experiment with one run: its record, or its outcome so far.

        Raises:
            RunFailed: the run failed repeatedly.
        """
        found = self.records.get(ONLY_RUN) or self.stopped
        if found is None:
            raise ValueError("expected an experiment with one run")
        if found.error is not None:
            raise RunFailed(f"{found.error}; remove the folder of the run to try it again")
        return found


@dataclass(frozen=True)
class Role:
    """The role of this process among those that share an experiment.

    Attributes:
        is_worker: return instead of waiting for the runs that other workers are making, count the
            failures of a run, and publish a run that fails repeatedly as failed. False waits, and
            raises the first exception.
        shard: the part of the runs to make.
    """

    is_worker: bool = False
    shard: Shard = ALL_RUNS


ALONE = Role()
"""The role of a process that makes all runs."""


@dataclass(frozen=True)
class Caller:
    """The caller of an experiment.

    Attributes:
        should_stop: polled at every step and between runs.
        on_record: called with all records after each run that this process published.
        on_wait: called with the runs that other workers are making, when they change.
        role: role of this process.
    """

    should_stop: ShouldStop = never
    on_record: Callable[[Records], object] = lambda records: None
    on_wait: Callable[[Sequence[PlannedRun]], object] = lambda runs: None
    role: Role = ALONE


def carry_out(
    experiment: Experiment, trainer: Trainer, engine: Engine, caller: Caller | None = None
) -> Outcome:
    """Train the runs that are not finished; other workers may do the same in the same folder.

    With several processes of torchrun, all train each run together and process 0 handles files.

    Args:
        experiment: the plan.
        trainer: trains one run.
        engine: the processes.
        caller: callbacks.

    Raises:
        InputError: the folder holds something else or cannot be written.
        FolderInUse: another process makes the only run of the experiment.
    """
    store = RunStore(experiment)
    engine.on_main(store.open)
    with ExitStack() as stack:
        worker = _Worker(experiment, trainer, engine, caller or Caller(), store, stack)
        while worker.take_next():
            pass
    return Outcome(store.records(), worker.stopped)


@dataclass
class _Worker:
    experiment: Experiment
    trainer: Trainer
    engine: Engine
    caller: Caller
    store: RunStore
    stack: ExitStack
    attempt: Attempt | None = None
    stopped: Trained | None = None
    awaited: list[PlannedRun] = field(default_factory=list)

    @property
    def is_single(self) -> bool:
        """Whether the experiment has one run: it always starts, so that a stop has a result."""
        return len(self.experiment.planned({})) == 1

    def take_next(self) -> bool:
        """Make one run; return False if no run is left or the caller wants to stop."""
        if not self.is_single and self._is_stopped():
            return False
        claimed = self.engine.on_main(self._claim_next)
        if claimed is None:
            return False
        name, folder = claimed
        if name is None:
            return True
        planned = self.experiment.planned(self.store.records())
        return self._make(next(run for run in planned if run.name == name), Path(folder))

    def _is_stopped(self) -> bool:
        """Ask all processes; the answer is the same in each."""
        return self.engine.total([float(self.caller.should_stop())])[0] > 0

    def _claim_next(self) -> tuple[str | None, str] | None:
        """Claim a run: its name and attempt; (None, "") to ask again; None if no run is left."""
        left = unfinished(self.experiment, self.store.records())
        todo = [run for run in left if self.caller.role.shard.contains(self.experiment, run)]
        for run in todo:
            self.attempt = self.store.claim(run)
            if self.attempt is not None:
                return (run.name if self._may_try(run) else None), str(self.attempt.path)
        if not todo:
            self.store.tidy()
            return None
        if self.is_single:
            raise FolderInUse(
                f"out: {self.experiment.out} is in use by another process; wait for it or choose "
                "another folder"
            )
        if self.caller.role.is_worker:
            return None
        if todo != self.awaited:
            self.awaited = todo
            self.caller.on_wait(todo)
        time.sleep(_WAIT)
        return None, ""

    def _may_try(self, run: PlannedRun) -> bool:
        """Count a kill of the former worker; publish a run that failed too often as failed."""
        if not self.caller.role.is_worker or self.attempt is None:
            return True
        history = History.read(self.attempt.path)
        if self.attempt.is_inherited:
            history.add_failure("its worker was killed", time_of_checkpoint(self.attempt.path))
            history.write(self.attempt.path)
        if history.error is None:
            return True
        self._publish(run, Trained(result=None, error=history.error), history.beside)
        self.caller.on_record(self.store.records())
        return False

    def _make(self, run: PlannedRun, folder: Path) -> bool:
        """Train one run and publish it; return False if the caller stopped it."""
        attempt = self.attempt
        self.stack.enter_context(fast_garbage_collection())
        try:
            with _Watch(self.caller, self.engine, attempt) as watch:
                trained = self._train(run, folder, watch)
            if trained.result is None or trained.result.finished:
                self.engine.on_main(lambda: self._publish(run, trained, watch.history.beside))
                self.caller.on_record(self.store.records())
                return True
        except InputError:
            if attempt is not None and not folder.exists():
                return True  # another worker took the run over
            self.store.forget_settings()
            raise
        finally:
            if attempt is not None:
                attempt.release()
        if attempt is not None and attempt.is_lost():
            return True
        self.stopped = trained
        return False

    def _train(self, run: PlannedRun, folder: Path, watch: _Watch) -> Trained:
        try:
            return self.trainer.train(run, folder, self.store.records(), watch.should_stop)
        except TrainingDiverged as error:
            if not self.caller.role.is_worker:
                raise
            return Trained(result=None, error=error.reason)
        except Exception as error:
            is_bad_input = isinstance(error, InputError) and not isinstance(error, RunFailed)
            if self.caller.role.is_worker and not is_bad_input:
                watch.add_failure(error)
            raise

    def _publish(self, run: PlannedRun, trained: Trained, beside: int) -> None:
        if self.attempt is None:
            raise RuntimeError("process 0 publishes the attempt that it claimed")
        log, result = self.attempt.path / "log.jsonl", trained.result
        start = None if run.start is None else self.store.records()[run.start]
        record = RunRecord(
            name=run.name,
            subject=run.subject,
            seed=run.seed,
            settings=dict(run.settings),
            error=trained.error,
            result=result,
            train_curve=read_log(log) if log.exists() else [],
            wall_seconds=trained.result.seconds["total"]
            if trained.result
            else trained.wall_seconds + (0.0 if start is None else start.wall_seconds),
            peak_memory_bytes=trained.peak_memory_bytes,
            utilisation=trained.utilisation,
            started_from=run.start,
            environment=trained.environment,
            beside=max(beside, 0 if start is None else start.beside or 0),
        )
        self.store.publish(run, self.attempt, record)


class _Watch:
    """Watches one run: requests to stop, the owner of its attempt, and other trainings.

    Args:
        caller: the caller of the experiment.
        engine: the processes.
        attempt: the attempt, or None in processes other than process 0.
    """

    def __init__(self, caller: Caller, engine: Engine, attempt: Attempt | None) -> None:
        self._caller = caller
        self._attempt = attempt
        self._neighbors = Neighbors(str(engine.device))
        self._stack = ExitStack()
        self.history = History() if attempt is None else History.read(attempt.path)

    def __enter__(self) -> Self:
        if self._attempt is not None:
            self._stack.enter_context(self._neighbors.watched())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.history.beside = max(self.history.beside, self._neighbors.most)

    def should_stop(self) -> bool:
        """Check for a request to stop and for another owner, after each update."""
        if self._attempt is not None:
            self._neighbors.count()
            if self._neighbors.most > self.history.beside:
                self.history.beside = self._neighbors.most
                self.history.write(self._attempt.path)
        return self._caller.should_stop() or (self._attempt is not None and self._attempt.is_lost())

    def add_failure(self, error: Exception) -> None:
        """Record a failure of the run in its attempt."""
        if self._attempt is not None and self._attempt.path.exists():
            reason = f"{type(error).__name__}: {first_line(error)}"
            self.history.add_failure(reason, time_of_checkpoint(self._attempt.path))
            self.history.write(self._attempt.path)
