"""What a comparison has done so far, and the settings that its trials chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rifflemix.lab.experiments import Records, RunRecord
from rifflemix.lab.runs.grid import Point, best_point

Run = dict[str, Any]


@dataclass(frozen=True)
class FinishedRuns:
    """The finished runs of a comparison.

    Attributes:
        runs, failed: runs with the compared settings; tested, or diverged.
        trials, failed_trials: trials of tuning, one for each mixer, point and seed, not tested.
        records: all of them by name.
    """

    runs: list[RunRecord]
    failed: list[RunRecord]
    trials: list[RunRecord]
    failed_trials: list[RunRecord]
    records: Records

    @property
    def ended(self) -> set[tuple[str, int]]:
        """Mixer and seed of every run that finished or diverged."""
        return {(record.subject, record.seed) for record in (*self.runs, *self.failed)}

    def peak_memory(self, mixer: str) -> int | None:
        """Return the memory of a mixer's training step, if it is known."""
        own = [r.peak_memory_bytes for r in self.records.values() if r.subject == mixer]
        return next((memory for memory in own if memory is not None), None)


def chosen_point(
    points: Sequence[Point], trials: Sequence[RunRecord], metric: str, *, higher_is_better: bool
) -> Point:
    """Return the point with the best mean validation metric over the seeds of one mixer.

    Args:
        points: what was tried; one empty point if nothing is tuned.
        trials: finished trials of the mixer that did not diverge.
        metric: the metric that chooses.
        higher_is_better: whether higher values of the metric are better.
    """
    scores = [
        [trial.chosen_validation()[metric] for trial in trials if trial.settings == point]
        for point in points
    ]
    return points[best_point(scores, higher_is_better=higher_is_better)]


def finished(records: Records, names: Sequence[str]) -> tuple[list[RunRecord], list[RunRecord]]:
    """Split the records of these runs into those with a result and those that diverged."""
    found = [records[name] for name in names if name in records]
    return [r for r in found if r.error is None], [r for r in found if r.error is not None]


def run_entry(record: RunRecord) -> Run:
    """Return one finished run as an entry of results.json."""
    result = record.trained
    return {
        "mixer": record.subject,
        "seed": record.seed,
        "folder": record.name,
        "started_from": record.started_from,
        "steps": result.step,
        "best_step": result.best_step,
        "parameters": result.parameters,
        "processes": result.processes,
        "steps_per_second": result.steps_per_second,
        "tokens_per_second": result.tokens_per_second,
        "wall_seconds": record.wall_seconds,
        "seconds": result.seconds,
        "validation": record.chosen_validation(),
        "test": result.test,
        "validation_curve": result.validation,
        "train_curve": record.train_curve,
        "environment": record.environment,
    }


def failed_entry(record: RunRecord) -> Run:
    """Return one diverged run as an entry of results.json."""
    return {
        "mixer": record.subject,
        "seed": record.seed,
        "folder": record.name,
        "error": record.error,
    }
