"""Curves of a run as it goes, in TensorBoard or Weights & Biases, by accelerate's trackers."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError, check_choice
from rifflemix.lab.train import TrainEvent

TRACKERS = ("tensorboard", "wandb")
_PROJECT = "rifflemix"

OnEvent = Callable[[TrainEvent], None]


def check_tracker(tracker: str | None) -> None:
    """Raise InputError unless it is None, or one that is installed."""
    if tracker is None:
        return
    check_choice("tracker", tracker, TRACKERS)
    if find_spec(tracker) is None:
        raise InputError(
            f"tracker {tracker} needs {tracker}, which is not installed; pip install {tracker}"
        )


@dataclass(frozen=True)
class Tracker:
    """Where the curves of one run go.

    Attributes:
        kind: one of TRACKERS.
        out: results folder; TensorBoard's files go to `tensorboard` in it, those of Weights &
            Biases to `wandb`.
        name: of the run, such as csp/seed0.
    """

    kind: str
    out: Path
    name: str


@contextmanager
def tracked(
    tracker: Tracker | None, settings: Mapping[str, Any], log_every: int
) -> Iterator[OnEvent]:
    """A callback for the events of one run; what it was told is written at the end.

    Args:
        tracker: None for no curves.
        settings: what the run is, JSON values.
        log_every: steps between losses.

    Raises:
        InputError: what it was told cannot be written, such as on a full disk.
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
    """Starts its tracker with the first event: a run that is only read again has none."""

    def __init__(self, where: Tracker, settings: Mapping[str, Any], log_every: int) -> None:
        self._where, self._settings, self._log_every = where, settings, log_every
        self._tracker: Any = None

    def on_event(self, event: TrainEvent) -> None:
        """Pass on losses and evaluations."""
        values = self._values(event)
        if not values:
            return
        with self._writing():
            if self._tracker is None:
                self._tracker = self._start(event)
            self._tracker.log(values, step=event.step)

    def close(self) -> None:
        """Write what was told."""
        if self._tracker is not None:
            with self._writing():
                self._tracker.finish()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an error of the disk into one sentence."""
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
            # What a killed process wrote beyond its checkpoint is told again, and shown once.
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
        if hasattr(tracker, "start"):  # which older versions of accelerate do by themselves
            tracker.start()
        return tracker

    def _identity(self) -> str:
        """The same for a run that goes on, another for any other run."""
        place = f"{platform.node()}:{self._where.out.resolve()}:{self._where.name}"
        return hashlib.blake2b(place.encode(), digest_size=8).hexdigest()
