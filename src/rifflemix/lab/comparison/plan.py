"""All checks of a comparison, made before anything is written."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rifflemix.errors import require_packages
from rifflemix.files import check_same_settings
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.comparison.models import check_model
from rifflemix.lab.comparison.progress import FinishedRuns, chosen_point, finished
from rifflemix.lab.experiments import PlannedRun, Records
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.grid import Point
from rifflemix.lab.runs.split import check_processes
from rifflemix.lab.tasks import Progress, Task, card_of, load_task
from rifflemix.lab.tasks.core.base import AnswersBlindly
from rifflemix.lab.train.config import free_settings
from rifflemix.lab.train.targets import check_targets

RESULTS_FILE = "results.json"
RUNS_ARE_KEPT = "remove it and make the same comparison again, its runs are kept"
"""What to do where that file is damaged."""
FREE = ("train_options", *free_settings("train"))
"""Settings that a comparison may change when it goes on; `train` says all of `train_options`."""
_PACKAGES = ("accelerate", "jinja2", "matplotlib", "msgspec", "rich", "scipy")
_JUDGED = ("validation", "test")


@dataclass(frozen=True)
class ComparePlan:
    """A comparison that has passed all checks and can start.

    Attributes:
        config: the settings.
        task: the loaded data.
        parameters: trainable parameters of each mixer's model.
        out: the results folder; not made yet where this is the first start.
        settings: what config.json holds.
        blind_accuracy: split -> accuracy there without a look at inputs, see `blind_accuracy`.
    """

    config: CompareConfig
    task: Task
    parameters: Mapping[str, int]
    out: Path
    settings: Mapping[str, Any]
    blind_accuracy: Mapping[str, float] | None = None

    @property
    def runs(self) -> list[tuple[int, str]]:
        """(seed, mixer), seed by seed, so that an early stop leaves a fair table."""
        return [(seed, mixer) for seed in self.config.seeds for mixer in self.config.mixers]

    @property
    def free(self) -> tuple[str, ...]:
        """Settings that may change when the comparison continues."""
        return FREE

    @property
    def trials(self) -> list[tuple[int, Point, str]]:
        """(seed, settings, mixer) of every trial, seed by seed; none where nothing is tuned."""
        if not self.config.tuned:
            return []
        return [
            (seed, point, mixer)
            for seed in self.config.seeds
            for point in self.config.points
            for mixer in self.config.mixers
        ]

    def planned(self, records: Records) -> list[PlannedRun]:
        """List trials first, then the runs with the settings that they chose."""
        if not self.config.tuned:
            return [
                PlannedRun(self.config.folder(mixer, seed, {}), mixer, seed)
                for seed, mixer in self.runs
            ]
        return [*self._planned_trials(), *self._planned_choices(records)]

    def finished_runs(self, records: Records) -> FinishedRuns:
        """Sort records into runs and trials."""
        names = [self.config.folder(mixer, seed, {}) for seed, mixer in self.runs]
        runs, failed = finished(records, names)
        trials, broken = finished(records, [run.name for run in self._planned_trials()])
        for seed, mixer in self.runs if self.config.tuned else ():
            point = self.chosen(records, mixer)
            trial = None if point is None else records[self.config.folder(mixer, seed, point)]
            if trial is not None and trial.error is not None:  # it would diverge again
                failed.append(trial)
        return FinishedRuns(runs, failed, trials, broken, records)

    def chosen(self, records: Records, mixer: str) -> Point | None:
        """Return the settings that validation chose for a mixer; None until its trials ended."""
        names = [run.name for run in self._planned_trials() if run.subject == mixer]
        if any(name not in records for name in names):
            return None
        trials, _ = finished(records, names)
        higher = self.task.higher_is_better
        return chosen_point(self.config.points, trials, self.task.metric, higher_is_better=higher)

    def _planned_trials(self) -> list[PlannedRun]:
        return [
            PlannedRun(self.config.folder(mixer, seed, point), mixer, seed, point, tests=False)
            for seed, point, mixer in self.trials
        ]

    def _planned_choices(self, records: Records) -> list[PlannedRun]:
        """Plan the tests of the chosen settings; each continues its trial."""
        planned = []
        for seed, mixer in self.runs:
            point = self.chosen(records, mixer)
            if point is None:
                continue
            trial = self.config.folder(mixer, seed, point)
            if records[trial].error is None:
                name = self.config.folder(mixer, seed, {})
                planned.append(PlannedRun(name, mixer, seed, point, start=trial))
        return planned


def plan_comparison(
    config: CompareConfig,
    out: Path,
    *,
    task: Task | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> ComparePlan:
    """Check everything; write nothing.

    Args:
        config: the settings.
        out: results folder, new, empty or of an earlier run with the same settings.
        task: the data, where it is loaded already.
        data_dir: folder of the task's data files.
        progress: called with the progress of loading data.

    Raises:
        InputError: packages of the extra `compare` are not installed, data is missing or damaged,
            a mixer cannot be built at this shape or split over processes as asked, `out` cannot be
            written or belongs to something else.
    """
    require_packages("a comparison", "compare", *_PACKAGES)
    check_processes(config.context_parallel)
    check_folder(out)
    if task is None:
        task = load_task(config.task, data_dir=data_dir, progress=progress, **config.task_options)
    check_targets(task, config.train)
    parameters = {mixer: check_model(config, task, mixer) for mixer in config.mixers}
    settings = config.to_dict() | {
        "task_options": dict(task.options),
        "data": task.fingerprint(),
    }
    check_same_settings(out, settings, free=FREE)
    return ComparePlan(config, task, parameters, out, settings, blind_accuracy(task))


def blind_accuracy(task: Task) -> dict[str, float] | None:
    """Split -> the accuracy there of an answer that looks at no input; None if none is known.

    Of classes it is that of always giving the commonest one of the split. Empty where samples have
    something else than one class each, such as several labels.
    """
    if isinstance(task, AnswersBlindly):
        return {name: task.blind_accuracy(name) for name in _JUDGED}
    if card_of(task).output != "classes":
        return None
    try:
        return {name: _majority_share(task, name) for name in _JUDGED}
    except TypeError:  # a label is no whole number
        return {}


def _majority_share(task: Task, split: str) -> float:
    samples = task.split(split)
    counts = Counter(operator.index(samples[i][1]) for i in range(len(samples)))
    return counts.most_common(1)[0][1] / len(samples)
