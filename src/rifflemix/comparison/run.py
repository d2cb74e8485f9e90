"""Running a comparison: one training run per seed and mixer, results kept after each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rifflemix.comparison.config import CompareConfig
from rifflemix.comparison.models import build_model, training_memory
from rifflemix.comparison.plan import RESULTS_FILE, ComparePlan
from rifflemix.comparison.progress import Progress
from rifflemix.comparison.results import assemble, failed_run, finished_run
from rifflemix.comparison.stored import check_chosen, check_stored
from rifflemix.comparison.toml_file import TOML_FILE, config_text
from rifflemix.errors import InputError
from rifflemix.files import claimed_folder, read_json, write_bytes, write_json
from rifflemix.runs.device import using_threads
from rifflemix.runs.grid import Point, point_label
from rifflemix.runs.status import OnStatus, RunStatus, ShouldStop, StatusFeed, never, silent
from rifflemix.tasks import Task
from rifflemix.train import TrainingDiverged, TrainResult, train


def run_comparison(
    plan: ComparePlan,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
) -> dict[str, Any]:
    """Train what has not been trained yet; results.json is rewritten after every run.

    Where settings are tuned all trials come first, without the test split. Then validation chooses
    for each mixer, and what it chose is tested.

    Args:
        plan: a checked comparison.
        on_status: told where the current run stands, at every step.
        should_stop: polled at every step; when True the current run is checkpointed and left.

    Returns:
        What results.json holds: "status" is "complete", or "partial" after a stop.

    Raises:
        InputError: the folder cannot be written or is in use, or the data holds a NaN.
    """
    say = on_status or silent
    stop = should_stop or never
    with claimed_folder(plan.out, plan.settings), using_threads(plan.config.threads):
        text = config_text(plan.config)
        if text is not None:
            write_bytes(plan.out / TOML_FILE, text.encode())
        progress, complete = _load(plan)
        if complete is not None:
            return complete
        for seed, point, mixer in plan.trials:
            if not progress.has_trial(plan.config.folder(mixer, seed, point)):
                if stop() or not _try(plan, seed, point, mixer, progress, say, stop):
                    return _save(plan, progress)
                _save(plan, progress)
        for seed, mixer in plan.runs:
            if not progress.has_run(mixer, seed):
                if stop() or not _run(plan, seed, mixer, progress, say, stop):
                    break
                _save(plan, progress)
        return _save(plan, progress)


def train_mixer(
    config: CompareConfig,
    task: Task,
    mixer: str,
    seed: int,
    out: Path,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
    tests: bool = True,
) -> TrainResult:
    """One training run of a comparison, or of its own; continues where `out` was left.

    Without `tests` the test split is not looked at, as in `rifflemix.train.train`.

    Raises:
        InputError: as rifflemix.train.train.
        TrainingDiverged: loss, metric or weights are not finite.
    """
    feed = StatusFeed(mixer, seed, config.train.max_steps, on_status, task.metric)
    try:
        result = train(
            build_model(config, task, mixer, seed),
            task,
            replace(config.train, seed=seed),
            out,
            device=config.device,
            on_event=feed.on_event,
            should_stop=should_stop,
            model_settings=config.model_settings(mixer),
            tests=tests,
        )
    except TrainingDiverged:
        feed.show(state="diverged")
        raise
    feed.show(state="done" if result.finished else "stopped")
    return result


def _try(
    plan: ComparePlan,
    seed: int,
    point: Point,
    mixer: str,
    progress: Progress,
    say: OnStatus,
    stop: ShouldStop,
) -> bool:
    """One trial, from where it was left; False if it was stopped again."""
    folder = plan.config.folder(mixer, seed, point)
    _measure(plan, seed, mixer, progress, say)
    start = time.perf_counter()
    try:
        result = train_mixer(
            plan.config.at(point),
            plan.task,
            mixer,
            seed,
            plan.out / folder,
            on_status=lambda status: say(replace(status, trial=point_label(point))),
            should_stop=stop,
            tests=False,
        )
    except TrainingDiverged as error:
        spent = time.perf_counter() - start
        failed = failed_run(mixer, seed, folder, str(error))
        progress.failed_trials.append(failed | {"settings": point, "wall_seconds": spent})
        return True
    if result.finished:
        entry = finished_run(mixer, seed, folder, result, plan.out / folder)
        progress.trials.append(entry | {"settings": point, "test": None})
    return result.finished


def _run(
    plan: ComparePlan,
    seed: int,
    mixer: str,
    progress: Progress,
    say: OnStatus,
    stop: ShouldStop,
) -> bool:
    """One run, from where it or its trial was left; False if it was stopped again."""
    point = progress.chosen(plan, mixer)
    folder = plan.config.folder(mixer, seed, point)
    diverged = progress.failed_trial(folder)
    if diverged is not None:
        progress.failed.append(failed_run(mixer, seed, folder, diverged["error"]))
        return True
    _measure(plan, seed, mixer, progress, say)
    config, out = plan.config.at(point), plan.out / folder
    try:
        result = train_mixer(config, plan.task, mixer, seed, out, on_status=say, should_stop=stop)
    except TrainingDiverged as error:
        progress.failed.append(failed_run(mixer, seed, folder, str(error)))
        return True
    if result.finished:
        progress.runs.append(finished_run(mixer, seed, folder, result, out))
    return result.finished


def _measure(plan: ComparePlan, seed: int, mixer: str, progress: Progress, say: OnStatus) -> None:
    """The memory of a mixer, once."""
    if mixer not in progress.peak_memory:
        say(RunStatus(mixer, seed, "measuring", 0, plan.config.train.max_steps))
        progress.peak_memory[mixer] = training_memory(plan.config, plan.task, mixer)


def _load(plan: ComparePlan) -> tuple[Progress, dict[str, Any] | None]:
    """The progress of earlier processes, and their results if they are complete."""
    path = plan.out / RESULTS_FILE
    if not path.exists():
        return Progress(), None
    results = read_json(path)
    try:
        check_stored(results, plan)
        progress = _stored_progress(results)
        check_chosen(progress, plan)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; remove it, the runs are kept") from None
    if not all(progress.has_run(mixer, seed) for seed, mixer in plan.runs):
        return progress, None
    # Everything else follows from the runs: it is put together again, not believed.
    whole = assemble(plan, progress, made_in=results["environment"])
    if whole != results:
        write_json(path, whole)
    return progress, whole


def _stored_progress(results: Mapping[str, Any]) -> Progress:
    memory = {
        mixer["name"]: mixer["peak_memory_bytes"]
        for mixer in results["mixers"]
        if mixer["peak_memory_bytes"] is not None
    }
    tuning = results.get("tuning", {"trials": [], "failed_trials": []})
    trials, failed_trials = tuning["trials"], tuning["failed_trials"]
    return Progress(results["runs"], results["failed_runs"], trials, failed_trials, memory)


def _save(plan: ComparePlan, progress: Progress) -> dict[str, Any]:
    results = assemble(plan, progress)
    write_json(plan.out / RESULTS_FILE, results)
    return results
