"""The loop of a worker: take a run that is not finished, train it, publish its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rifflemix.errors import InputError
from rifflemix.lab.experiments.attempts import Attempt
from rifflemix.lab.experiments.plan import (
    ONLY_RUN,
    Experiment,
    PlannedRun,
    Records,
    unfinished,
)
from rifflemix.lab.experiments.records import RunRecord, Utilisation
from rifflemix.lab.experiments.store import RunStore
from rifflemix.lab.runs.environment import Environment, environment
from rifflemix.lab.runs.status import ShouldStop, never
from rifflemix.lab.train import TrainResult
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.run_folder import read_log
from rifflemix.locks import FolderInUse

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
    environment: Environment = field(default_factory=environment)

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
        """The run of an experiment with one run: its record, or its outcome so far."""
        found = self.records.get(ONLY_RUN) or self.stopped
        if found is None:
            raise ValueError("expected an experiment with one run")
        return found


@dataclass(frozen=True)
class Caller:
    """The caller of an experiment.

    Attributes:
        should_stop: polled at every step and between runs.
        on_record: called with all records after each run that this process published.
        on_wait: called with the runs that other workers are making, when they change.
    """

    should_stop: ShouldStop = never
    on_record: Callable[[Records], object] = lambda records: None
    on_wait: Callable[[Sequence[PlannedRun]], object] = lambda runs: None


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
    worker = _Worker(experiment, trainer, engine, caller or Caller(), store)
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
            time.sleep(_WAIT)
            return True
        planned = self.experiment.planned(self.store.records())
        return self._make(next(run for run in planned if run.name == name), Path(folder))

    def _is_stopped(self) -> bool:
        """Ask all processes; the answer is the same in each."""
        return self.engine.total([float(self.caller.should_stop())])[0] > 0

    def _claim_next(self) -> tuple[str | None, str] | None:
        """Claim a run: its name and attempt; (None, "") to wait; None if all runs are finished."""
        todo = unfinished(self.experiment, self.store.records())
        for run in todo:
            self.attempt = self.store.claim(run)
            if self.attempt is not None:
                return run.name, str(self.attempt.path)
        if not todo:
            self.store.tidy()
            return None
        if self.is_single:
            raise FolderInUse(
                f"out: {self.experiment.out} is in use by another process; wait for it or choose "
                "another folder"
            )
        if todo != self.awaited:
            self.awaited = todo
            self.caller.on_wait(todo)
        return None, ""

    def _make(self, run: PlannedRun, folder: Path) -> bool:
        """Train one run and publish it; return False if the caller stopped it."""
        attempt = self.attempt
        try:
            trained = self.trainer.train(run, folder, self.store.records(), self._stops(attempt))
            if trained.result is None or trained.result.finished:
                self.engine.on_main(lambda: self._publish(run, trained))
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

    def _stops(self, attempt: Attempt | None) -> ShouldStop:
        if attempt is None:
            return self.caller.should_stop
        return lambda: self.caller.should_stop() or attempt.is_lost()

    def _publish(self, run: PlannedRun, trained: Trained) -> None:
        if self.attempt is None:
            raise RuntimeError("process 0 publishes the attempt that it claimed")
        log, result = self.attempt.path / "log.jsonl", trained.result
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
            else trained.wall_seconds,
            peak_memory_bytes=trained.peak_memory_bytes,
            utilisation=trained.utilisation,
            started_from=run.start,
            environment=trained.environment,
        )
        self.store.publish(run, self.attempt, record)
