"""Status of a training run, its curves in TensorBoard or Weights & Biases, grids, summaries."""

from __future__ import annotations

import hashlib
import itertools
import platform
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.lab.tasks import Task
from rifflemix.lab.train import TrainEvent, TrainResult
from rifflemix.lab.train.run_folder import Weights


@dataclass(frozen=True)
class RunStatus:
    """Status of one run.

    Attributes:
        mixer, seed: mixer and seed of the run.
        state: estimating (time), measuring (memory), training, done, diverged, stopped, or
            elsewhere (another worker executes the run).
        step, max_steps: completed and total optimizer updates.
        loss: mean training loss of the newest log line.
        metric, score: metric that selects the weights, and its newest value on the validation
            split.
        steps_per_second: training speed since the first step, without evaluations.
        seconds_left: estimated time to the last step, including evaluations, at the speed since
            this process started or resumed the run. None before the speed is known.
        seconds_left_in_all: estimated time to the end of the comparison, or None.
        trial: settings of the tuning trial; empty if the run is not a trial.
    """

    mixer: str
    seed: int
    state: str
    step: int
    max_steps: int
    loss: float | None = None
    metric: str = "accuracy"
    score: float | None = None
    steps_per_second: float | None = None
    seconds_left: float | None = None
    seconds_left_in_all: float | None = None
    trial: str = ""


OnStatus = Callable[[RunStatus], None]
ShouldStop = Callable[[], bool]


class StatusFeed:
    """Converter from events of the training loop to `RunStatus`."""

    def __init__(
        self, mixer: str, seed: int, max_steps: int, say: OnStatus | None, metric: str
    ) -> None:
        self._status = RunStatus(mixer, seed, "training", 0, max_steps, metric=metric)
        self._say = say or silent
        self._first: tuple[int, float] | None = None

    def show(self, **changes: Any) -> None:
        """Change the status and pass it to the callback."""
        self._status = replace(self._status, **changes)
        self._say(self._status)

    def end(self, result: TrainResult) -> None:
        """Show the final status, also if an earlier process finished the run."""
        self.show(state="done" if result.finished else "stopped", step=result.step)

    def on_event(self, event: TrainEvent) -> None:
        """Update the status from an event; the callback for `train`."""
        changes: dict[str, Any] = {"step": event.step, "seconds_left": self._seconds_left(event)}
        if event.loss is not None:
            changes["loss"] = event.loss
        if event.steps_per_second is not None:
            changes["steps_per_second"] = event.steps_per_second
        if event.kind == "eval" and event.split == "validation":
            changes["score"] = event.metrics.get(self._status.metric)
        self.show(**changes)

    def _seconds_left(self, event: TrainEvent) -> float | None:
        now = time.monotonic()
        if self._first is None:
            self._first = event.step, now
        step, start = self._first
        if event.step == step:
            return None
        return (event.max_steps - event.step) * (now - start) / (event.step - step)


def silent(status: RunStatus) -> None:
    """Ignore the status."""


def never() -> bool:
    """Return False, for runs that are never stopped."""
    return False


TRACKERS = ("tensorboard", "wandb")
_PROJECT = "rifflemix"

OnEvent = Callable[[TrainEvent], None]


def check_tracker(tracker: str | None) -> None:
    """Raise InputError unless `tracker` is None or installed."""
    if tracker is None:
        return
    check_choice("tracker", tracker, TRACKERS)
    if find_spec(tracker) is None:
        raise InputError(
            f"tracker {tracker} needs {tracker}, which is not installed; pip install {tracker}"
        )


@dataclass(frozen=True)
class Tracker:
    """Destination of the curves of one run.

    Attributes:
        kind: one of TRACKERS.
        out: results folder. TensorBoard writes to its subfolder `tensorboard`, Weights & Biases
            to `wandb`.
        name: name of the run, such as csp/seed0.
    """

    kind: str
    out: Path
    name: str


@contextmanager
def tracked(
    tracker: Tracker | None, settings: Mapping[str, Any], log_every: int
) -> Iterator[OnEvent]:
    """Yield a callback that logs the events of one run.

    Args:
        tracker: destination of the curves; None logs no curves.
        settings: settings of the run, JSON values.
        log_every: steps between losses.

    Raises:
        InputError: the curves cannot be written, for example because the disk is full.
    """
    if tracker is None:
        yield lambda _: None
        return
    curves = _Curves(tracker, settings, log_every)
    try:
        yield curves.on_event
    finally:
        curves.close()


class _Curves:
    """Callback that starts the tracker at the first event, so that finished runs start none."""

    def __init__(self, where: Tracker, settings: Mapping[str, Any], log_every: int) -> None:
        self._where, self._settings, self._log_every = where, settings, log_every
        self._tracker: Any = None

    def on_event(self, event: TrainEvent) -> None:
        """Log losses and evaluations."""
        values = self._values(event)
        if not values:
            return
        with self._writing():
            if self._tracker is None:
                self._tracker = self._start(event)
            self._tracker.log(values, step=event.step)

    def close(self) -> None:
        """Write all curves and end the tracker."""
        if self._tracker is not None:
            with self._writing():
                self._tracker.finish()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Replace an OSError by an InputError."""
        try:
            yield
        except OSError as error:
            where, reason = self._where, error.strerror or error
            raise InputError(
                f"cannot write the curves of {where.kind} to {where.out / where.kind}: {reason}; "
                "the same command continues, without --tracker too"
            ) from error

    def _values(self, event: TrainEvent) -> dict[str, float]:
        if event.kind in ("eval", "done"):
            return {f"{event.split}/{name}": value for name, value in event.metrics.items()}
        is_logged = event.step % self._log_every == 0 or event.step == event.max_steps
        if event.kind != "step" or not is_logged:
            return {}
        values = {
            "train/loss": event.loss,
            "train/lr": event.lr,
            "train/steps_per_second": event.steps_per_second,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _start(self, event: TrainEvent) -> Any:
        from accelerate import tracking

        where = self._where
        if where.kind == "tensorboard":
            # A killed process may have logged steps after its checkpoint. Purge repeated steps.
            first = event.step if event.kind == "step" else event.step + 1
            folder = where.out / "tensorboard"
            tracker: Any = tracking.TensorBoardTracker(where.name, folder, purge_step=first)
        else:
            tracker = tracking.WandBTracker(
                _PROJECT,
                name=where.name,
                id=self._identity(),
                resume="allow",
                dir=str(where.out),
                config=dict(self._settings),
            )
        if hasattr(tracker, "start"):  # older versions of accelerate start in the constructor
            tracker.start()
        return tracker

    def _identity(self) -> str:
        """Return an identifier that is equal when the run is resumed."""
        place = f"{platform.node()}:{self._where.out.resolve()}:{self._where.name}"
        return hashlib.blake2b(place.encode(), digest_size=8).hexdigest()


Point = dict[str, Any]
Grid = Mapping[str, Sequence[Any]]

# A larger number is most likely a typing error.
MOST_POINTS = 1_000

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.,=+-]+")


def check_grid(grid: Grid) -> None:
    """Raise InputError unless every setting has distinct values with distinct folder names."""
    for name, values in grid.items():
        if not values:
            raise bad_argument(name, "at least one value", "none")
        for index, value in enumerate(values):
            if value in values[:index]:
                raise bad_argument(name, "each value only once", f"{value!r} twice")
    points = grid_points(grid)
    label, count = Counter(map(point_label, points)).most_common(1)[0]
    if count > 1:
        raise bad_argument(", ".join(grid), "values that differ in letters and digits", label)


def grid_points(grid: Grid) -> list[Point]:
    """Return every combination of values; the last setting changes fastest.

    An empty grid has one point without settings.

    Raises:
        InputError: the grid has more than MOST_POINTS points.
    """
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > MOST_POINTS:
        expected = f"at most {MOST_POINTS:,} combinations"
        raise bad_argument(", ".join(grid), expected, f"{count:,}")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def point_label(point: Mapping[str, Any]) -> str:
    """Return the name of a point in folders and tables: "lr=0.003,dim=64"."""
    return _NOT_IN_NAMES.sub("_", ",".join(f"{name}={value}" for name, value in point.items()))


def ranked_points(scores: Sequence[Sequence[float]], *, higher_is_better: bool) -> list[int]:
    """Return the indices of the points, the best first.

    A point with more scores is better. Of equally many, the point with the better mean is better.
    Points with equal means keep their order.

    Args:
        scores: scores of each point, one per seed that did not diverge.
        higher_is_better: whether higher scores are better.
    """
    sign = 1.0 if higher_is_better else -1.0

    def rank(index: int) -> tuple[int, float]:
        of = scores[index]
        return len(of), sign * statistics.fmean(of) if of else 0.0

    return sorted(range(len(scores)), key=rank, reverse=True)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Selection of weights and use of the test split.

    Attributes:
        model_chosen_on: "validation" or "last step".
        metric: metric that chooses.
        test_used_for: use of the test split.
        split_note: how the data was split.
    """

    model_chosen_on: str
    metric: str = "accuracy"
    test_used_for: str = ""
    split_note: str


def protocol(task: Task, weights: Weights = "best", *, tests_both: bool = False) -> Protocol:
    """Describe the selection of weights and the use of the test split."""
    both = "the weights of the last step and of the best evaluation"
    tested = both if tests_both else "the chosen weights"
    return Protocol(
        model_chosen_on="validation" if weights == "best" else "last step",
        metric=task.metric,
        test_used_for=f"reporting only, once, with {tested}",
        split_note=task.split_note,
    )


@dataclass(frozen=True)
class Summary:
    """A number over seeds.

    Attributes:
        mean: mean over the seeds.
        std: sample standard deviation; None for one seed.
        n: number of seeds.
        values: value of each seed.
    """

    mean: float
    std: float | None
    n: int
    values: list[float] = field(default_factory=list)


def summarise(values: Sequence[float]) -> Summary | None:
    """Summarize the values of several seeds; None without values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std, len(values), list(values))
