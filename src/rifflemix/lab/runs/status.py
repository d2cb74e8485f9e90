"""Status of a training run, for progress displays."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rifflemix.lab.train import TrainEvent, TrainResult


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
