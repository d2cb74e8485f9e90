"""What a comparison has done so far, and what the trials of tuning say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rifflemix.lab.comparison.plan import ComparePlan
from rifflemix.lab.runs.grid import Point, best_point

Run = dict[str, Any]


@dataclass
class Progress:
    """The runs done so far, by this and by earlier processes.

    Attributes:
        runs, failed: with the settings that are compared; tested, or diverged.
        trials, failed_trials: of tuning, one for each mixer, point and seed; none is tested.
        peak_memory: mixer -> bytes.
    """

    runs: list[Run] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)
    trials: list[Run] = field(default_factory=list)
    failed_trials: list[Run] = field(default_factory=list)
    peak_memory: dict[str, int] = field(default_factory=dict)

    def has_run(self, mixer: str, seed: int) -> bool:
        """Whether a run has ended."""
        return any(
            run["seed"] == seed and run["mixer"] == mixer for run in (*self.runs, *self.failed)
        )

    def has_trial(self, folder: str) -> bool:
        """Whether a trial has ended."""
        return any(run["folder"] == folder for run in (*self.trials, *self.failed_trials))

    def failed_trial(self, folder: str) -> Run | None:
        """The trial of a folder, if it diverged."""
        return next((run for run in self.failed_trials if run["folder"] == folder), None)

    def is_tuned(self, plan: ComparePlan) -> bool:
        """Whether every trial has ended."""
        return len(self.trials) + len(self.failed_trials) == len(plan.trials)

    def chosen(self, plan: ComparePlan, mixer: str) -> Point:
        """The point that validation chose for a mixer; an empty one where nothing is tuned."""
        points, metric = plan.config.points, plan.task.metric
        trials = [run for run in self.trials if run["mixer"] == mixer]
        scores = [
            [run["validation"][metric] for run in trials if run["settings"] == point]
            for point in points
        ]
        return points[best_point(scores, higher_is_better=plan.task.higher_is_better)]


def stored_progress(results: Mapping[str, Any]) -> Progress:
    """The progress that results hold."""
    memory = {
        mixer["name"]: mixer["peak_memory_bytes"]
        for mixer in results["mixers"]
        if mixer["peak_memory_bytes"] is not None
    }
    tuning = results.get("tuning", {"trials": [], "failed_trials": []})
    trials, failed_trials = tuning["trials"], tuning["failed_trials"]
    return Progress(results["runs"], results["failed_runs"], trials, failed_trials, memory)
