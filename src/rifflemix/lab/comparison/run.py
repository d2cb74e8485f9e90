"""Run a comparison: one training per seed and mixer, and a summary after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rifflemix.files import write_bytes
from rifflemix.json_values import encode
from rifflemix.lab.comparison.choices import TOML_FILE, config_text
from rifflemix.lab.comparison.config import CompareConfig, trial_label
from rifflemix.lab.comparison.estimate import Estimate, TimeLeft, estimate_comparison
from rifflemix.lab.comparison.models import build_model, training_memory
from rifflemix.lab.comparison.plan import RESULTS_FILE, ComparePlan
from rifflemix.lab.comparison.records import Results
from rifflemix.lab.comparison.results import assemble
from rifflemix.lab.experiments import (
    ALL_RUNS,
    ALONE,
    Caller,
    PlannedRun,
    Records,
    Role,
    RunStore,
    Trained,
    carry_out,
    write_summary,
)
from rifflemix.lab.runs.build_for_task import split_model
from rifflemix.lab.runs.environment import using_threads
from rifflemix.lab.runs.status import (
    OnStatus,
    RunStatus,
    ShouldStop,
    StatusFeed,
    Tracker,
    check_tracker,
    never,
    silent,
    tracked,
)
from rifflemix.lab.tasks import Task
from rifflemix.lab.train import TrainEvent, TrainingDiverged, TrainResult, train
from rifflemix.lab.train.engine import Engine


def run_comparison(
    plan: ComparePlan,
    *,
    on_status: OnStatus | None = None,
    on_estimate: Callable[[Estimate], object] | None = None,
    should_stop: ShouldStop | None = None,
    tracker: str | None = None,
    keep_weights: bool = False,
    role: Role = ALONE,
) -> Results:
    """Train the unfinished runs. Write results.json again after every run.

    When settings are tuned, all trials come first, without the test split. Then validation chooses
    for each mixer, and the chosen settings are tested.

    Args:
        plan: a checked comparison.
        on_status: called at every step with the status of the current run.
        on_estimate: called before the first run with an estimate of the time of all runs. Without
            it, with several processes and for a shard, rifflemix makes no estimate.
        should_stop: polled at every step; when True, the current run is checkpointed and left.
        tracker: "tensorboard" or "wandb"; records losses and evaluations of every run.
        keep_weights: also keep the weights of every evaluation, as in `rifflemix.lab.train.train`.
        role: role of this process among those that share the runs.

    Returns:
        The content of results.json; its status is "partial" after a stop.

    Raises:
        InputError: the tracker is not installed, the folder cannot be written, or the data holds a
            NaN.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import plan_comparison, resolve, run_comparison
        >>> card = rm.tasks.task_card("digits")
        >>> config = resolve(card, {"csp": "csp"}, [0], max_steps=5)
        >>> results = run_comparison(plan_comparison(config, Path("runs/digits")))
        >>> results.status
        'complete'
    """
    check_tracker(tracker)
    engine = _engine(plan.config)

    def save(records: Records) -> Results:
        results = assemble(plan, records)
        engine.on_main(lambda: _write(plan, results))
        return results

    say, stops = on_status or silent, should_stop or never
    with using_threads(plan.config.threads):
        if on_estimate is not None and engine.processes == 1 and role.shard == ALL_RUNS:
            say = _with_estimate(plan, say, stops, on_estimate)
        trainer = _MixerTrainer(plan, engine, say, tracker, keep_weights)
        caller = Caller(stops, save, trainer.on_wait, role)
        return save(carry_out(plan, trainer, engine, caller).records)


def collect_comparison(plan: ComparePlan) -> Results:
    """Write results.json from the runs that workers have finished.

    Args:
        plan: plan of the comparison.

    Returns:
        The content of results.json.

    Raises:
        InputError: the folder cannot be written.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import collect_comparison, plan_comparison, resolve
        >>> from rifflemix.lab.comparison import run_comparison
        >>> card = rm.tasks.task_card("digits")
        >>> config = resolve(card, {"csp": "csp"}, [0], max_steps=5)
        >>> plan = plan_comparison(config, Path("runs/digits"))
        >>> results = run_comparison(plan)
        >>> collect_comparison(plan).runs_done
        1
    """
    store = RunStore(plan)
    results = assemble(plan, store.records())
    store.tidy()
    _write(plan, results)
    return results


def _with_estimate(
    plan: ComparePlan,
    say: OnStatus,
    should_stop: ShouldStop,
    on_estimate: Callable[[Estimate], object],
) -> OnStatus:
    """Estimate the time of all runs; add the time left to every status."""
    records = RunStore(plan).records()
    if len(plan.finished_runs(records).ended) == len(plan.runs):
        return say
    estimate = estimate_comparison(plan, records, say, should_stop)
    if estimate is None:
        return say
    on_estimate(estimate)
    return TimeLeft(estimate, say)


@dataclass(frozen=True)
class _MixerTrainer:
    """Trains the runs and trials of a comparison."""

    plan: ComparePlan
    engine: Engine
    on_status: OnStatus
    tracker: str | None
    keep_weights: bool

    def train(
        self, run: PlannedRun, folder: Path, records: Records, should_stop: ShouldStop
    ) -> Trained:
        """Measure the memory of a mixer once, then train."""
        start = time.perf_counter()
        memory = self._memory(run, records)
        until, trial = self._until(run), self._label(run)
        tracker = None if self.tracker is None else Tracker(self.tracker, self.plan.out, run.name)
        result, error = None, None
        try:
            result = train_mixer(
                self.plan.config.at(dict(run.settings)),
                self.plan.task,
                run.subject,
                run.seed,
                folder,
                on_status=lambda status: self.on_status(replace(status, trial=trial)),
                should_stop=should_stop,
                tests=run.tests,
                tracker=tracker,
                keep_weights=self.keep_weights,
                until=until,
            )
        except TrainingDiverged as diverged:
            error = diverged.reason
        seconds = time.perf_counter() - start
        return Trained(result=result, error=error, wall_seconds=seconds, peak_memory_bytes=memory)

    def on_wait(self, runs: Sequence[PlannedRun]) -> None:
        """Show the runs that other workers are making."""
        for run in runs:
            steps, trial = self._until(run) or self.plan.config.train.max_steps, self._label(run)
            self.on_status(RunStatus(run.subject, run.seed, "elsewhere", 0, steps, trial=trial))

    def _until(self, run: PlannedRun) -> int | None:
        """Return the step of the rung at which a run ends; None for a whole training."""
        return self.plan.trials.stopped_at(run.name)

    def _label(self, run: PlannedRun) -> str:
        return "" if run.tests else trial_label(dict(run.settings), self._until(run))

    def _memory(self, run: PlannedRun, records: Records) -> int | None:
        """Measure a mixer's memory unless a record has it."""
        if any(r.subject == run.subject and r.peak_memory_bytes for r in records.values()):
            return None
        config, mixer = self.plan.config, run.subject
        self.on_status(RunStatus(mixer, run.seed, "measuring", 0, config.train.max_steps))

        def measured() -> int:
            return training_memory(config, self.plan.task, mixer)

        if config.context_parallel > 1:
            found = measured()  # all processes measure together
            return int(self.engine.on_main(lambda: found))
        return int(self.engine.on_main(measured))


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
    until: int | None = None,
) -> TrainResult:
    """Train one mixer in a folder, or continue there.

    Args:
        config: the settings, with nothing to tune.
        task: the data.
        mixer: registry name, or label of a variant.
        seed: seed of the run.
        out: folder of the run.
        on_status: called at every step with the status of the run.
        should_stop: polled at every step.
        tests: False leaves the test split alone, as in `rifflemix.lab.train.train`.
        tracker: where the curves of the run go.
        keep_weights: also keep the weights of every evaluation, as in `rifflemix.lab.train.train`.
        until: end after this update, as in `rifflemix.lab.train.train`.

    Returns:
        Scores, curves, speed and memory of the run.

    Raises:
        InputError: as rifflemix.lab.train.train.
        TrainingDiverged: the loss, a metric or a weight is not finite.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import resolve, train_mixer
        >>> task = rm.tasks.load_task("digits")
        >>> config = resolve(rm.tasks.card_of(task), {"csp": "csp"}, [0], max_steps=5)
        >>> train_mixer(config, task, "csp", 0, Path("runs/csp")).step
        5
    """
    task = task.for_seed(seed)
    feed = StatusFeed(mixer, seed, until or config.train.max_steps, on_status, task.metric)
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
                until=until,
            )
        except TrainingDiverged:
            feed.show(state="diverged")
            raise
    feed.end(result)
    return result


def _engine(config: CompareConfig) -> Engine:
    return Engine(config.train, config.device, config.context_parallel)


def _write(plan: ComparePlan, results: Results) -> None:
    """Write config.toml and results.json."""
    text = config_text(plan.config)
    if text is not None:
        write_bytes(plan.out / TOML_FILE, text.encode())
    write_summary(plan.out / RESULTS_FILE, encode(results))
