"""Progress of a run: counters, history, losses and times, saved in checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rifflemix.json_values import check_json


@dataclass
class Progress:
    """State of a run without its tensors, only JSON values.

    Attributes:
        step: completed updates.
        losses: losses of the updates since the last log line.
        train_loss: mean loss of the newest log line.
        validation: every evaluation, {"step", metric ...}.
        best_step, best_value: step and value of the best evaluation so far.
        samples, tokens: training data over all processes.
        seconds: wall time by activity.
        timed_steps, timed_tokens, timed_seconds: counts and time for the speed.
        log_bytes, log_sha256: size and checksum of the log at the checkpoint.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    train_loss: float | None = None
    validation: list[dict[str, float]] = field(default_factory=list)
    best_step: int | None = None
    best_value: float | None = None
    samples: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    timed_steps: int = 0
    timed_tokens: int = 0
    timed_seconds: float = 0.0
    log_bytes: int = 0
    log_sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """Read the progress from JSON values.

        Raises:
            ValueError: an entry is missing or has a wrong type.
        """
        if isinstance(values, dict):
            values = {"log_sha256": "", **values}  # missing in older checkpoints
        check_json(values, cls, "progress")
        progress = cls(**{entry.name: values[entry.name] for entry in fields(cls)})
        if not progress.log_bytes >= 0 or not progress.step >= 0:
            raise ValueError("expected progress.step and progress.log_bytes of at least 0")
        if not all("step" in evaluation for evaluation in progress.validation):
            raise ValueError("expected a step in each of progress.validation")
        return progress

    @contextmanager
    def clock(self, activity: str) -> Iterator[None]:
        """Add the time spent inside to `seconds[activity]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[activity] = self.seconds.get(activity, 0.0) + spent

    def per_second(self, amount: int) -> float | None:
        """Divide `amount` by the timed seconds; return None if zero."""
        return amount / self.timed_seconds if self.timed_seconds > 0 else None
