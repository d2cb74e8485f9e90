"""Running a comparison: one training run per seed and mixer, results kept after each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rifflemix.comparison.config import CompareConfig
from rifflemix.comparison.models import build_model, training_memory
from rifflemix.comparison.plan import RESULTS_FILE, ComparePlan
from rifflemix.comparison.results import Run, assemble, failed_run, finished_run
from rifflemix.comparison.stored import check_stored
from rifflemix.errors import InputError
from rifflemix.files import claimed_folder, read_json, write_json
from rifflemix.runs.device import using_threads
from rifflemix.runs.status import OnStatus, RunStatus, ShouldStop, StatusFeed, never, silent
from rifflemix.tasks import Task
from rifflemix.train import TrainingDiverged, TrainResult, train


@dataclass
class _Progress:
    """The runs done so far, by this and by earlier processes."""

    runs: list[Run] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)
    peak_memory: dict[str, int] = field(default_factory=dict)

    def has(self, seed: int, mixer: str) -> bool:
        return any(
            run["seed"] == seed and run["mixer"] == mixer for run in (*self.runs, *self.failed)
        )


def run_comparison(
    plan: ComparePlan,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
) -> dict[str, Any]:
    """Train what has not been trained yet; results.json is rewritten after every run.

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
        progress, complete = _load(plan)
        if complete is not None:
            return complete
        for seed, mixer in plan.runs:
            if progress.has(seed, mixer):
                continue
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
) -> TrainResult:
    """One training run of a comparison, or of its own; continues where `out` was left.

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
        )
    except TrainingDiverged:
        feed.show(state="diverged")
        raise
    feed.show(state="done" if result.finished else "stopped")
    return result


def _run(
    plan: ComparePlan,
    seed: int,
    mixer: str,
    progress: _Progress,
    say: OnStatus,
    stop: ShouldStop,
) -> bool:
    """One run, from where it was left; False if it was stopped again."""
    config, folder = plan.config, f"{mixer}/seed{seed}"
    if mixer not in progress.peak_memory:
        say(RunStatus(mixer, seed, "measuring", 0, config.train.max_steps))
        progress.peak_memory[mixer] = training_memory(config, plan.task, mixer)
    try:
        result = train_mixer(
            config, plan.task, mixer, seed, plan.out / folder, on_status=say, should_stop=stop
        )
    except TrainingDiverged as error:
        progress.failed.append(failed_run(mixer, seed, folder, str(error)))
        return True
    if result.finished:
        progress.runs.append(finished_run(mixer, seed, folder, result, plan.out / folder))
    return result.finished


def _load(plan: ComparePlan) -> tuple[_Progress, dict[str, Any] | None]:
    """The progress of earlier processes, and their results if they are complete."""
    path = plan.out / RESULTS_FILE
    if not path.exists():
        return _Progress(), None
    results = read_json(path)
    try:
        check_stored(results, plan)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; remove it, the runs are kept") from None
    memory = {
        mixer["name"]: mixer["peak_memory_bytes"]
        for mixer in results["mixers"]
        if mixer["peak_memory_bytes"] is not None
    }
    progress = _Progress(results["runs"], results["failed_runs"], memory)
    if not all(progress.has(seed, mixer) for seed, mixer in plan.runs):
        return progress, None
    # Everything else follows from the runs: it is put together again, not believed.
    made_in = results["environment"]
    whole = assemble(plan, progress.runs, progress.failed, memory, made_in=made_in)
    if whole != results:
        write_json(path, whole)
    return progress, whole


def _save(plan: ComparePlan, progress: _Progress) -> dict[str, Any]:
    results = assemble(plan, progress.runs, progress.failed, progress.peak_memory)
    write_json(plan.out / RESULTS_FILE, results)
    return results
