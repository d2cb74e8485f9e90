"""Worker processes of `rm.compare`, and speeds that are measured again alone."""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rifflemix.errors import RunFailed
from rifflemix.files import write_json
from rifflemix.lab.comparison.plan import SPEED_FILE, ComparePlan, read_speeds
from rifflemix.lab.comparison.run import train_mixer
from rifflemix.lab.experiments import (
    Neighbors,
    Overview,
    Payload,
    RunRecord,
    RunStore,
    Workers,
    share_runs,
    write_launch,
)
from rifflemix.lab.runs.environment import fast_garbage_collection, using_threads
from rifflemix.lab.runs.options import is_main_process
from rifflemix.lab.runs.status import OnStatus, RunStatus, ShouldStop, never
from rifflemix.lab.tasks import Task
from rifflemix.mixers import mixer_classes
from rifflemix.plugins import file_of, is_outside

if TYPE_CHECKING:
    from rich.console import Console

_SEEDS = 3  # runs per mixer; this number is enough for the spread of speeds
_SECONDS = 0.15
_STEPS = 5


def measure_apart(plan: ComparePlan, should_stop: ShouldStop = never) -> None:
    """Train the first steps of runs that shared the machine again, and write their speeds.

    Nothing is written for a run if another training is on the machine.

    Args:
        plan: the comparison.
        should_stop: polled before each run.

    Raises:
        InputError: the folder cannot be written.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import measure_apart, plan_comparison, resolve
        >>> from rifflemix.lab.comparison import run_comparison
        >>> card = rm.tasks.task_card("digits")
        >>> config = resolve(card, {"csp": "csp"}, [0], max_steps=5)
        >>> plan = plan_comparison(config, Path("runs/digits"))
        >>> results = run_comparison(plan)
        >>> measure_apart(plan)
    """
    records, known = RunStore(plan).records(), dict(read_speeds(plan.out))
    done = plan.finished_runs(records)
    shared = [record for record in done.runs if record.beside]
    counts = Counter[str]()
    with contextlib.ExitStack() as stack:
        for record in shared:
            counts[record.subject] += 1
            if record.name in known or counts[record.subject] > _SEEDS or should_stop():
                continue
            stack.enter_context(fast_garbage_collection())
            neighbors = Neighbors(plan.config.device)
            with neighbors.watched():
                speed = _speed(plan, record)
            if speed is not None and neighbors.most == 0:
                known[record.name] = speed
                write_json(plan.out / SPEED_FILE, known)


def _speed(plan: ComparePlan, record: RunRecord) -> float | None:
    """Train a run until its speed is known, and return its steps per second."""
    config, watch = plan.config.at(dict(record.settings)), _Watch()
    with contextlib.suppress(RunFailed), tempfile.TemporaryDirectory() as folder:
        with using_threads(config.threads):
            result = train_mixer(
                config, plan.task, record.subject, record.seed, Path(folder) / "run",
                on_status=watch.update, should_stop=watch.is_measured, tests=False,
            )  # fmt: skip
        return result.steps_per_second
    return None


class _Watch:
    """Stops a run after some updates and seconds; the first update is slow and does not count."""

    def __init__(self) -> None:
        self._step, self._start = 0, math.inf

    def update(self, status: RunStatus) -> None:
        """Count the updates."""
        if status.step > self._step == 0:
            self._start = time.monotonic()
        self._step = status.step

    def is_measured(self) -> bool:
        """Check whether the speed is known well enough."""
        return self._step > _STEPS and time.monotonic() - self._start >= _SECONDS


def share_comparison(
    plan: ComparePlan,
    workers: int,
    on_status: OnStatus | None,
    task: Task | None,
    data_dir: str | Path | None,
    kept: Mapping[str, Any],
) -> None:
    """Train the runs of a comparison with worker processes; none for `workers=1`.

    Args:
        plan: a checked comparison.
        workers: number of processes.
        on_status: called with the status of every worker.
        task: the data, if the caller loaded it.
        data_dir: folder of the data files.
        kept: options of `run_comparison` that the workers need.
    """
    if is_main_process():
        write_launch(plan.out, None if data_dir is None else Path(data_dir), kept)
    if workers == 1:
        return
    classes = [
        cls for name in plan.config.mixers for cls in mixer_classes(plan.config.mixer_name(name))
    ]
    outside = [cls for cls in classes if is_outside(cls) and file_of(cls) is None]
    with _display(on_status) as display:
        share_runs(
            plan.out,
            [plan],
            Workers(workers, plan.config.threads or 1),
            display,
            payload=Payload(task, outside),
        )
    measure_apart(plan)


def live_console(on_status: OnStatus | None) -> Console | None:
    """Return the console for a live display; None for a callback, or without a terminal."""
    if on_status is not None or not is_main_process() or sys.stderr is None:
        return None
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return console if console.is_terminal or console.is_jupyter else None


@dataclass(frozen=True)
class _Feed:
    """A display that calls the callback of the user, if there is a callback."""

    on_status: OnStatus | None

    def update(self, overview: Overview) -> None:
        """Pass on the status of every worker."""
        for worker in overview.workers:
            if self.on_status is not None:
                self.on_status(worker.run)

    def note(self, text: str) -> None:
        """Show nothing."""


def _display(on_status: OnStatus | None) -> AbstractContextManager[Any]:
    console = live_console(on_status)
    if console is None:
        return nullcontext(_Feed(on_status))
    from rifflemix.lab.report.live import workers_display

    return workers_display(console)
