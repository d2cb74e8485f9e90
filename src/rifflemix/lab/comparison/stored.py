"""Checks of the results.json that a resumed comparison finds."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypedDict

from rifflemix.json_values import check_json, check_seal
from rifflemix.lab.comparison.plan import ComparePlan
from rifflemix.lab.comparison.progress import Progress
from rifflemix.lab.runs.environment import Environment


def check_stored(results: Any, plan: ComparePlan) -> None:
    """Raise ValueError unless runs, memory and environment are what this comparison writes."""
    check_results(results)
    planned = {(mixer, seed) for seed, mixer in plan.runs}
    entries = [*results["runs"], *results["failed_runs"]]
    counts = Counter((run["mixer"], run["seed"]) for run in entries)
    for (mixer, seed), count in counts.items():
        if (mixer, seed) not in planned or count > 1:
            raise ValueError(f"expected one run of each planned, got {count} of {mixer}, {seed}")
    for run in results["runs"]:
        _check_run(run, plan.task.metric, ("validation", "test"))
    if plan.config.tuned:
        _check_trials(results, plan)
    for mixer in results["mixers"]:
        if mixer["name"] not in plan.config.mixers:
            raise ValueError(f"expected the mixers of this comparison, got {mixer['name']!r}")


def check_chosen(progress: Progress, plan: ComparePlan) -> None:
    """Raise ValueError unless runs are those that the trials chose, after all of these."""
    for run in (*progress.runs, *progress.failed):
        mixer, seed = run["mixer"], run["seed"]
        chosen = plan.config.folder(mixer, seed, progress.chosen(plan, mixer))
        if run["folder"] != chosen or not progress.is_tuned(plan):
            raise ValueError(f"expected run {mixer}, {seed} in {chosen}, got {run['folder']}")


def check_results(results: Any) -> None:
    """Raise ValueError unless a JSON value has the entries of every comparison's results."""
    check_json(results, _Results, "results")
    if "tuning" in results:
        check_json(results, _TunedResults, "results")


def check_seals(results: dict[str, Any]) -> None:
    """Raise ValueError where results, or a run of theirs, are not as they were written."""
    trials = results.get("tuning", {}).get("trials", [])
    for entry in (*results["runs"], *trials, results):
        check_seal(entry)


def _check_trials(results: dict[str, Any], plan: ComparePlan) -> None:
    check_json(results, _TunedResults, "results")
    tuning = results["tuning"]
    planned = {
        plan.config.folder(m, seed, point): (m, seed, point) for seed, point, m in plan.trials
    }
    entries = [*tuning["trials"], *tuning["failed_trials"]]
    counts = Counter(trial["folder"] for trial in entries)
    for trial in entries:
        folder = trial["folder"]
        is_known = planned.get(folder) == (trial["mixer"], trial["seed"], trial["settings"])
        if not is_known or counts[folder] > 1:
            raise ValueError(
                f"expected one trial of each planned, got {counts[folder]} of {folder}"
            )
    for trial in tuning["trials"]:
        _check_run(trial, plan.task.metric, ("validation",))


def _check_run(run: dict[str, Any], metric: str, splits: tuple[str, ...]) -> None:
    name = f"run {run['mixer']}, {run['seed']}"
    try:
        check_seal(run)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    for entry in (*(run[split] for split in splits), *run["validation_curve"]):
        if metric not in entry:
            raise ValueError(f"{name}: expected {metric} of each evaluation, got none")
    if not all("step" in at for at in run["validation_curve"]):
        raise ValueError(f"{name}: expected the step of each evaluation, got none")


class _Loss(TypedDict):
    step: int
    loss: float


class _Trained(TypedDict):
    mixer: str
    seed: int
    folder: str
    steps: int
    best_step: int
    parameters: int
    steps_per_second: float | None
    tokens_per_second: float | None
    wall_seconds: float
    seconds: dict[str, float]
    validation: dict[str, float]
    validation_curve: list[dict[str, float]]
    train_curve: list[_Loss]


class _Run(_Trained):
    test: dict[str, float]


class _Trial(_Trained):
    settings: dict[str, Any]


class _FailedRun(TypedDict):
    mixer: str
    seed: int
    folder: str
    error: str


class _FailedTrial(_FailedRun):
    settings: dict[str, Any]
    wall_seconds: float


class _Tuning(TypedDict):
    trials: list[_Trial]
    failed_trials: list[_FailedTrial]


class _Mixer(TypedDict):
    name: str
    peak_memory_bytes: int | None


class _Results(TypedDict):
    runs: list[_Run]
    failed_runs: list[_FailedRun]
    mixers: list[_Mixer]
    environment: Environment


class _TunedResults(TypedDict):
    tuning: _Tuning
