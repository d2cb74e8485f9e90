"""Running a comparison: one training run per seed and mixer, results kept after each."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.files import claimed_folder, read_json, write_bytes, write_json
from rifflemix.json_values import sealed
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.comparison.estimate import Estimate, TimeLeft, estimate_comparison
from rifflemix.lab.comparison.models import build_model, training_memory
from rifflemix.lab.comparison.plan import FREE, RESULTS_FILE, RUNS_ARE_KEPT, ComparePlan
from rifflemix.lab.comparison.progress import Progress, stored_progress
from rifflemix.lab.comparison.results import assemble, failed_run, finished_run
from rifflemix.lab.comparison.stored import check_chosen, check_stored
from rifflemix.lab.comparison.toml_file import TOML_FILE, config_text
from rifflemix.lab.runs.device import using_threads
from rifflemix.lab.runs.grid import Point, point_label
from rifflemix.lab.runs.split import split_model
from rifflemix.lab.runs.status import OnStatus, RunStatus, ShouldStop, StatusFeed, never, silent
from rifflemix.lab.runs.trackers import Tracker, check_tracker, tracked
from rifflemix.lab.tasks import Task
from rifflemix.lab.train import TrainEvent, TrainingDiverged, TrainResult, train
from rifflemix.lab.train.engine import Engine


@dataclass(frozen=True)
class _Caller:
    """What the caller of a comparison wants to hear, and whether it shall stop.

    Every process of several makes the same runs together; the first alone writes and measures.
    """

    engine: Engine
    say: OnStatus
    stop: ShouldStop
    tracker: str | None
    keep_weights: bool

    def is_stopped(self) -> bool:
        """Whether any of the processes shall stop; the same in all."""
        return self.engine.total([float(self.stop())])[0] > 0

    def tracker_of(self, plan: ComparePlan, folder: str) -> Tracker | None:
        """Where the curves of the run in a folder go."""
        return None if self.tracker is None else Tracker(self.tracker, plan.out, folder)


def run_comparison(
    plan: ComparePlan,
    *,
    on_status: OnStatus | None = None,
    on_estimate: Callable[[Estimate], object] | None = None,
    should_stop: ShouldStop | None = None,
    tracker: str | None = None,
    keep_weights: bool = False,
) -> dict[str, Any]:
    """Train what has not been trained yet; results.json is rewritten after every run.

    Where settings are tuned all trials come first, without the test split. Then validation chooses
    for each mixer, and what it chose is tested.

    Args:
        plan: a checked comparison.
        on_status: called with the status of the current run at every step.
        on_estimate: called before the first run with an estimate of the time of all runs. Without
            it, and with several processes, rifflemix makes no estimate.
        should_stop: polled at every step; when True the current run is checkpointed and left.
        tracker: "tensorboard" or "wandb", which is told losses and evaluations of every run.
        keep_weights: also keep the weights of every evaluation, as in `rifflemix.lab.train.train`.

    Returns:
        What results.json holds: "status" is "complete", or "partial" after a stop.

    Raises:
        InputError: the tracker is not installed, the folder cannot be written or is in use, or the
            data holds a NaN.
    """
    check_tracker(tracker)
    engine = _engine(plan.config)
    caller = _Caller(engine, on_status or silent, should_stop or never, tracker, keep_weights)
    with ExitStack() as stack, using_threads(plan.config.threads):
        stored = engine.on_main(lambda: _open(plan, stack))
        progress = Progress() if stored is None else stored_progress(stored)
        if stored is not None and _is_complete(plan, progress):
            return dict(stored)
        if on_estimate is not None and engine.processes == 1:
            estimate = estimate_comparison(plan, progress, caller.say, caller.is_stopped)
            if estimate is not None:
                on_estimate(estimate)
                caller = replace(caller, say=TimeLeft(estimate, caller.say))
        for seed, point, mixer in plan.trials:
            if not progress.has_trial(plan.config.folder(mixer, seed, point)):
                if caller.is_stopped() or not _try(plan, seed, point, mixer, progress, caller):
                    return _save(plan, progress, engine)
                _save(plan, progress, engine)
        for seed, mixer in plan.runs:
            if not progress.has_run(mixer, seed):
                if caller.is_stopped() or not _run(plan, seed, mixer, progress, caller):
                    break
                _save(plan, progress, engine)
        return _save(plan, progress, engine)


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
    tracker: Tracker | None = None,
    keep_weights: bool = False,
) -> TrainResult:
    """One training run of a comparison, or of its own; continues where `out` was left.

    Args:
        config: the settings, with nothing to tune.
        task: the data.
        mixer: registry name, or a label of a variant.
        seed: of the run.
        out: its folder.
        on_status: told where it stands, at every step.
        should_stop: polled at every step.
        tests: False leaves the test split alone, as in `rifflemix.lab.train.train`.
        tracker: where its curves go.
        keep_weights: also keep the weights of every evaluation, as in `rifflemix.lab.train.train`.

    Raises:
        InputError: as rifflemix.lab.train.train.
        TrainingDiverged: loss, metric or weights are not finite.
    """
    feed = StatusFeed(mixer, seed, config.train.max_steps, on_status, task.metric)
    settings = config.model_settings(mixer)
    with tracked(tracker, settings, config.train.log_every) as draw:

        def on_event(event: TrainEvent) -> None:
            feed.on_event(event)
            draw(event)

        try:
            result = train(
                split_model(build_model(config, task, mixer, seed), _engine(config)),
                task,
                replace(config.train, seed=seed),
                out,
                device=config.device,
                on_event=on_event,
                should_stop=should_stop,
                model_settings=settings,
                tests=tests,
                keep_weights=keep_weights,
                context_parallel=config.context_parallel,
            )
        except TrainingDiverged:
            feed.show(state="diverged")
            raise
    feed.end(result)
    return result


def _try(
    plan: ComparePlan,
    seed: int,
    point: Point,
    mixer: str,
    progress: Progress,
    caller: _Caller,
) -> bool:
    """One trial, from where it was left; False if it was stopped again."""
    folder = plan.config.folder(mixer, seed, point)
    _measure(plan, seed, mixer, progress, caller)
    start = time.perf_counter()
    try:
        result = train_mixer(
            plan.config.at(point),
            plan.task,
            mixer,
            seed,
            plan.out / folder,
            on_status=lambda status: caller.say(replace(status, trial=point_label(point))),
            should_stop=caller.stop,
            tests=False,
            tracker=caller.tracker_of(plan, folder),
            keep_weights=caller.keep_weights,
        )
    except TrainingDiverged as error:
        spent = time.perf_counter() - start
        failed = failed_run(mixer, seed, folder, error.reason)
        progress.failed_trials.append(failed | {"settings": point, "wall_seconds": spent})
        return True
    if result.finished:
        entry = finished_run(mixer, seed, folder, result, plan.out / folder)
        progress.trials.append(sealed(entry | {"settings": point, "test": None}))
    return result.finished


def _run(
    plan: ComparePlan,
    seed: int,
    mixer: str,
    progress: Progress,
    caller: _Caller,
) -> bool:
    """One run, from where it or its trial was left; False if it was stopped again."""
    point = progress.chosen(plan, mixer)
    folder = plan.config.folder(mixer, seed, point)
    diverged = progress.failed_trial(folder)
    if diverged is not None:
        progress.failed.append(failed_run(mixer, seed, folder, diverged["error"]))
        return True
    _measure(plan, seed, mixer, progress, caller)
    config, out = plan.config.at(point), plan.out / folder
    try:
        result = train_mixer(
            config,
            plan.task,
            mixer,
            seed,
            out,
            on_status=caller.say,
            should_stop=caller.stop,
            tracker=caller.tracker_of(plan, folder),
            keep_weights=caller.keep_weights,
        )
    except TrainingDiverged as error:
        progress.failed.append(failed_run(mixer, seed, folder, error.reason))
        return True
    if result.finished:
        progress.runs.append(sealed(finished_run(mixer, seed, folder, result, out)))
    return result.finished


def _measure(plan: ComparePlan, seed: int, mixer: str, progress: Progress, caller: _Caller) -> None:
    """The memory of a mixer, once."""
    if mixer not in progress.peak_memory:
        caller.say(RunStatus(mixer, seed, "measuring", 0, plan.config.train.max_steps))

        def measured() -> int:
            return training_memory(plan.config, plan.task, mixer)

        if plan.config.context_parallel > 1:
            found = measured()  # by all together
            progress.peak_memory[mixer] = caller.engine.on_main(lambda: found)
        else:
            progress.peak_memory[mixer] = caller.engine.on_main(measured)


def _engine(config: CompareConfig) -> Engine:
    return Engine(config.train, config.device, config.context_parallel)


def _open(plan: ComparePlan, stack: ExitStack) -> dict[str, Any] | None:
    """Hold the results folder; the results of earlier processes, None where there are none."""
    stack.enter_context(claimed_folder(plan.out, plan.settings, free=FREE))
    text = config_text(plan.config)
    if text is not None:
        write_bytes(plan.out / TOML_FILE, text.encode())
    path = plan.out / RESULTS_FILE
    if not path.exists():
        return None
    results: dict[str, Any] = read_json(path, RUNS_ARE_KEPT)
    try:
        check_stored(results, plan)
        progress = stored_progress(results)
        check_chosen(progress, plan)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; {RUNS_ARE_KEPT}") from None
    if not _is_complete(plan, progress):
        return results
    # Everything else follows from the runs: it is put together again, not believed.
    whole = assemble(plan, progress, made_in=results["environment"])
    if whole != results:
        write_json(path, whole)
    return whole


def _is_complete(plan: ComparePlan, progress: Progress) -> bool:
    return all(progress.has_run(mixer, seed) for seed, mixer in plan.runs)


def _save(plan: ComparePlan, progress: Progress, engine: Engine) -> dict[str, Any]:
    results = assemble(plan, progress)
    engine.on_main(lambda: write_json(plan.out / RESULTS_FILE, results))
    return results
