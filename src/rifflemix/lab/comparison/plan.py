"""Check a comparison before anything is written; its folds and finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rifflemix.checks import is_number
from rifflemix.errors import InputError, bad_argument, require_packages
from rifflemix.files import check_same_settings, read_json
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.comparison.models import check_model
from rifflemix.lab.comparison.trials import Trial, Trials
from rifflemix.lab.experiments import PlannedRun, Records, RunRecord
from rifflemix.lab.runs.build_for_task import check_processes
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.options import count_processes
from rifflemix.lab.runs.status import Point
from rifflemix.lab.tasks import Progress, Task, card_of, list_tasks, load_task
from rifflemix.lab.tasks.core.recorded import AnswersBlindly
from rifflemix.lab.train.config import free_settings
from rifflemix.lab.train.engine import check_batch
from rifflemix.lab.train.targets import check_targets, judged_by


def folds_of(task_options: Mapping[str, Any]) -> int | None:
    """Return the number of folds of a task. None if it has no folds, or only one is chosen."""
    folds = task_options.get("folds")
    is_count = isinstance(folds, int) and not isinstance(folds, bool) and folds > 0
    return folds if is_count and task_options.get("fold") is None else None


def fold_seeds(seeds: Sequence[int], folds: int | None) -> tuple[int, ...]:
    """Return the seeds of the runs: seed x folds + fold, for each seed and each fold."""
    if folds is None or not all(isinstance(seed, int) for seed in seeds):
        return tuple(seeds)
    return tuple(seed * folds + fold for seed in seeds for fold in range(folds))


def user_seeds(seeds: Sequence[int], folds: int | None) -> tuple[int, ...]:
    """Return the seeds from which `fold_seeds` made the seeds of the runs."""
    return tuple(seeds) if folds is None else tuple(dict.fromkeys(s // folds for s in seeds))


def overlap_of_folds(folds: int | None) -> float:
    """Return the size of a test split divided by the size of the training split of a fold.

    The training splits of two folds share samples, so that the variance over folds is too small.
    The variance of a mean over n runs is therefore variance x (1 / n + overlap).

    Source: Nadeau and Bengio 2003, Inference for the Generalization Error, section 3.
    """
    return 0.0 if folds is None else 1 / (folds - 2)


@dataclass(frozen=True)
class FinishedRuns:
    """The finished runs of a comparison.

    Attributes:
        runs, failed: runs with the chosen settings that were tested, and that diverged.
        trials, failed_trials: trials of tuning that ended, and that diverged. There is one trial
            for each mixer, point and seed. Trials are not tested.
        records: all records by name.
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


def finished(records: Records, names: Sequence[str]) -> tuple[list[RunRecord], list[RunRecord]]:
    """Split the records of these runs into those with a result and those that diverged."""
    found = [records[name] for name in names if name in records]
    return [r for r in found if r.error is None], [r for r in found if r.error is not None]


SPEED_FILE = "speed.json"


def read_speeds(out: Path) -> Mapping[str, float]:
    """Read the speeds that were measured apart: name of the run -> steps per second.

    Raises:
        InputError: the file is damaged.
    """
    path = out / SPEED_FILE
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict) or not all(map(is_number, found.values())):
        raise InputError(f"{path} is damaged; remove it")
    return found


RESULTS_FILE = "results.json"
RUNS_ARE_KEPT = "remove it and make the same comparison again, its runs are kept"
"""Advice for a damaged results file."""
FREE = ("train_options", *free_settings("train"))
"""Settings that may change when a comparison resumes; `train` contains all `train_options`."""
_PACKAGES = ("accelerate", "jinja2", "matplotlib", "msgspec", "rich", "scipy")
_JUDGED = ("validation", "test")


@dataclass(frozen=True)
class ComparePlan:
    """A comparison that has passed all checks and can start.

    Attributes:
        config: the settings.
        task: the loaded data.
        parameters: trainable parameters of each mixer's model.
        state_sizes: numbers that a stream of each mixer's model keeps per sequence.
        out: the results folder; it does not exist before the first start.
        settings: content of config.json.
        blind_accuracy: split -> accuracy of an answer that ignores the inputs.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import plan_comparison, resolve
        >>> config = resolve(rm.tasks.task_card("digits"), {"csp": "csp", "tssa": "tssa"}, [0])
        >>> plan = plan_comparison(config, Path("runs/digits"))
        >>> plan.parameters["csp"] < plan.parameters["tssa"]
        True
    """

    config: CompareConfig
    task: Task
    parameters: Mapping[str, int]
    state_sizes: Mapping[str, int]
    out: Path
    settings: Mapping[str, Any]
    blind_accuracy: Mapping[str, float] | None = None

    @property
    def runs(self) -> list[tuple[int, str]]:
        """Pairs (seed, mixer): all mixers of the first seed, then of the next.

        If the comparison stops early, all mixers have about the same number of seeds.
        """
        return [(seed, mixer) for seed in self.config.seeds for mixer in self.config.mixers]

    @property
    def free(self) -> tuple[str, ...]:
        """Settings that may change when the comparison continues."""
        return FREE

    @cached_property
    def trials(self) -> Trials:
        """All trials, ordered by seed; empty without tuning."""
        config = self.config
        steps = [*(rung.step for rung in config.rungs), None]
        return Trials(
            [
                Trial(
                    mixer, point, seed, [config.folder(mixer, seed, point, step) for step in steps]
                )
                for seed in config.seeds
                for point in (config.points if config.tuned else ())
                for mixer in config.mixers
            ],
            config.rungs,
            config.train.max_steps,
            self.task.metric,
            self.task.higher_is_better,
        )

    def planned(self, records: Records) -> list[PlannedRun]:
        """List trials first, then the runs with the settings that they chose.

        Args:
            records: name -> record of each run so far.

        Returns:
            The trainings whose settings are known so far. Without tuning, these are all runs.
        """
        if not self.config.tuned:
            return [
                PlannedRun(self.config.folder(mixer, seed, {}), mixer, seed)
                for seed, mixer in self.runs
            ]
        return [*self.trials.planned(records), *self._planned_choices(records)]

    def later_trainings(self, records: Records) -> Mapping[str, float]:
        """Sum the work of trials that may still be stopped.

        Args:
            records: name -> record of each run so far.

        Returns:
            Mixer -> work in whole trainings.
        """
        return self.trials.later_trainings(records)

    def finished_runs(self, records: Records) -> FinishedRuns:
        """Sort records into runs and trials.

        Args:
            records: name -> record of each run so far.

        Returns:
            The runs and trials that finished, and those that diverged.
        """
        names = [self.config.folder(mixer, seed, {}) for seed, mixer in self.runs]
        runs, failed = finished(records, names)
        ended = [trial for trial in self.trials.all if self.trials.has_ended(records, trial)]
        trials, broken = finished(records, [trial.newest(records) or "" for trial in ended])
        for seed, mixer in self.runs if self.config.tuned else ():
            key = mixer, seed, self.chosen(records, mixer)
            failed += [
                trial for trial in broken if key == _key(trial)
            ]  # their runs would diverge too
        return FinishedRuns(runs, failed, trials, broken, records)

    def chosen(self, records: Records, mixer: str) -> Point | None:
        """Return the settings that validation chose for a mixer.

        Args:
            records: name -> record of each run so far.
            mixer: label of the mixer.

        Returns:
            The settings; empty without tuning, None until all trials of the mixer ended.
        """
        return self.trials.chosen(records, mixer) if self.config.tuned else {}

    def _planned_choices(self, records: Records) -> list[PlannedRun]:
        """Plan the tests of the chosen settings; each continues its trial."""
        chosen = {mixer: self.chosen(records, mixer) for mixer in self.config.mixers}
        planned = []
        for seed, mixer in self.runs:
            point = chosen[mixer]
            trial = "" if point is None else self.config.folder(mixer, seed, point)
            if trial in records and records[trial].error is None:
                name = self.config.folder(mixer, seed, {})
                planned.append(PlannedRun(name, mixer, seed, point or {}, start=trial))
        return planned


def _key(record: RunRecord) -> tuple[str, int, Point]:
    return record.subject, record.seed, record.settings


def plan_comparison(
    config: CompareConfig,
    out: Path,
    *,
    task: Task | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> ComparePlan:
    """Check everything without writing.

    Args:
        config: the settings.
        out: results folder, new, empty or of an earlier run with the same settings.
        task: the data, if it is already loaded.
        data_dir: folder of the task's data files.
        progress: called with the progress of loading data.

    Returns:
        The plan, for `run_comparison`.

    Raises:
        InputError: packages of the extra `compare` are not installed, data is missing or damaged,
            a mixer cannot be built at this shape or split over processes as asked, `out` cannot be
            written or belongs to something else.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import plan_comparison, resolve
        >>> config = resolve(rm.tasks.task_card("digits"), {"csp": "csp", "tssa": "tssa"}, [0])
        >>> plan = plan_comparison(config, Path("runs/digits"))
        >>> len(plan.runs), plan.out.exists()
        (2, False)
    """
    require_packages("a comparison", "compare", *_PACKAGES)
    check_processes(config.context_parallel)
    check_batch(config.train, count_processes() // config.context_parallel)
    check_folder(out)
    if task is None:
        task = load_task(config.task, data_dir=data_dir, progress=progress, **config.task_options)
    task = judged_by(task, config.train.metric)
    check_targets(task, config.train)
    config = config.with_threads(task, out)
    sizes = {mixer: check_model(config, task, mixer) for mixer in config.mixers}
    parameters = {mixer: size.parameters for mixer, size in sizes.items()}
    states = {mixer: size.state for mixer, size in sizes.items()}
    settings = config.to_dict() | {
        "task_options": dict(task.options),
        "data": task.fingerprint(),
    }
    check_same_settings(out, settings, free=FREE)
    return ComparePlan(config, task, parameters, states, out, settings, blind_accuracy(task))


def reopen_comparison(
    out: Path,
    settings: Mapping[str, Any],
    *,
    task: Task | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> ComparePlan:
    """Plan the comparison in a folder again.

    Args:
        out: folder of the comparison.
        settings: content of its config.json.
        task: data that is not in the registry.
        data_dir: folder of the task's data files.
        progress: called with the progress of loading data.

    Raises:
        InputError: as `plan_comparison`, or the data differs from the data of the comparison.
    """
    if task is None and settings.get("task") not in list_tasks():
        raise bad_argument(
            "folder",
            "the comparison of a registered task",
            f"{settings.get('task')!r}, a Task of a Python program",
            "call rm.compare with the same Task and `out`",
        )
    config = CompareConfig.from_dict(settings, None if task is None else task.card)
    return plan_comparison(config, out, task=task, data_dir=data_dir, progress=progress)


def blind_accuracy(task: Task) -> dict[str, float] | None:
    """Return the accuracy of an answer that ignores the inputs; None if it is unknown.

    For classes, the answer is the most frequent class of the split, or of its tokens. The result
    is empty if a sample does not have exactly one class, for example several labels.
    """
    if isinstance(task, AnswersBlindly):
        return {name: task.blind_accuracy(name) for name in _JUDGED}
    if card_of(task).output not in ("classes", "tokens"):
        return None
    counts = {name: task.class_counts(name) for name in _JUDGED}
    return {name: max(found) / sum(found) for name, found in counts.items() if found is not None}
