"""`rifflemix train`: one mixer with one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rifflemix.errors import bad_argument
from rifflemix.json_values import ABSENT, content_hash, encode
from rifflemix.lab.comparison.config import CompareConfig
from rifflemix.lab.comparison.models import check_model, training_memory
from rifflemix.lab.comparison.plan import RESULTS_FILE, folds_of
from rifflemix.lab.comparison.run import train_mixer
from rifflemix.lab.experiments import (
    Caller,
    OneRun,
    Outcome,
    PlannedRun,
    Records,
    Trained,
    carry_out,
    write_summary,
)
from rifflemix.lab.runs.environment import Environment, using_threads
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.options import count_processes
from rifflemix.lab.runs.status import (
    OnStatus,
    Protocol,
    ShouldStop,
    Tracker,
    check_tracker,
    never,
    protocol,
)
from rifflemix.lab.tasks import Progress, Task, load_task
from rifflemix.lab.train import TrainResult
from rifflemix.lab.train.config import free_settings
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.targets import judged_by

FORMAT = "rifflemix.train/1"


@dataclass(frozen=True)
class SinglePlan:
    """A training of one mixer that has passed all checks and can start.

    Attributes:
        config: the settings, with one mixer and one seed.
        task: the loaded data.
        experiment: the run.
    """

    config: CompareConfig
    task: Task
    experiment: OneRun


@dataclass(frozen=True, kw_only=True)
class SingleResults:
    """Content of results.json of a single training.

    Attributes:
        command: command line of the newest call.
        config, seed: the settings.
        protocol: selection of weights.
        environment: versions and hardware.
        wall_seconds, peak_memory_bytes: time and memory of the training.
        result: outcome of the training; not finished after a stop.
        sha256: checksum of the other entries.
    """

    format: str
    command: str
    config: dict[str, Any]
    seed: int
    protocol: Protocol
    environment: Environment
    wall_seconds: float
    peak_memory_bytes: int | None
    result: TrainResult
    sha256: str | None = field(default=None, metadata=ABSENT)


def plan_single(
    config: CompareConfig,
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> SinglePlan:
    """Check everything without writing.

    Args:
        config: the settings, with one mixer and one seed.
        out: folder of the run, new or to be continued.
        data_dir: folder of the task's data files.
        progress: called with the progress of loading data.

    Returns:
        The plan.

    Raises:
        InputError: data is missing, the mixer cannot be built, or `out` cannot be used.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import plan_single, resolve
        >>> card = rm.tasks.task_card("digits")
        >>> config = resolve(card, {"csp": "csp"}, [0], max_steps=5)
        >>> plan = plan_single(config, Path("runs/csp"))
        >>> len(plan.task.split("train"))
        1087
    """
    check_folder(out)
    if (folds := folds_of(config.task_options)) is not None:
        expected = f"one fold with train, such as --task-option fold={folds - 1}"
        raise bad_argument("folds", expected, folds, "compare trains all folds")
    task = load_task(config.task, data_dir=data_dir, progress=progress, **config.task_options)
    task = judged_by(task, config.train.metric)
    config = config.with_threads(task, out)
    check_model(config, task, config.mixers[0])
    settings = {
        **config.to_dict(),
        "format": FORMAT,
        "task_options": dict(task.options),
        "data": task.fingerprint(),
        "device": torch.device(config.device).type,
        "processes": count_processes(),
    }
    free = ["threads", "train_options", *free_settings("train")]
    return SinglePlan(config, task, OneRun(out, config.mixers[0], config.seeds[0], settings, free))


def reopen_single(
    out: Path,
    settings: Mapping[str, Any],
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> SinglePlan:
    """Plan the training in a folder again.

    Args:
        out: folder of the training.
        settings: content of its config.json.
        data_dir: folder of the task's data files.
        progress: called with the progress of loading data.

    Raises:
        InputError: as `plan_single`.
    """
    return plan_single(CompareConfig.from_dict(settings), out, data_dir=data_dir, progress=progress)


def train_single(
    plan: SinglePlan,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
    tracker: str | None = None,
    keep_weights: bool = False,
) -> SingleResults:
    """Train or continue, and write results.json.

    Args:
        plan: a checked training.
        on_status: called at every step with the status of the run.
        should_stop: polled at every step.
        tracker: "tensorboard" or "wandb"; records losses and evaluations.
        keep_weights: also keep the weights of every evaluation.

    Returns:
        The content of results.json.

    Raises:
        InputError: the folder cannot be written, is in use or belongs to another run.
        TrainingDiverged: the loss, a metric or a weight is not finite.

    Example:
        >>> import rifflemix as rm
        >>> from pathlib import Path
        >>> from rifflemix.lab.comparison import plan_single, resolve, train_single
        >>> card = rm.tasks.task_card("digits")
        >>> config = resolve(card, {"csp": "csp"}, [0], max_steps=5)
        >>> train_single(plan_single(config, Path("runs/csp"))).result.finished
        True
    """
    check_tracker(tracker)
    config, out = plan.config, plan.experiment.out
    curves = None if tracker is None else Tracker(tracker, out, config.mixers[0])
    engine = Engine(config.train, config.device, config.context_parallel)
    trainer = _Trainer(plan, engine, on_status, curves, keep_weights)
    with using_threads(config.threads):
        caller = Caller(should_stop=should_stop or never)
        outcome = carry_out(plan.experiment, trainer, engine, caller)
    results = _results(plan, outcome)
    engine.on_main(lambda: write_summary(out / RESULTS_FILE, encode(results)))
    return results


@dataclass(frozen=True)
class _Trainer:
    plan: SinglePlan
    engine: Engine
    on_status: OnStatus | None
    tracker: Tracker | None
    keep_weights: bool

    def train(
        self, run: PlannedRun, folder: Path, records: Records, should_stop: ShouldStop
    ) -> Trained:
        """Train, then measure the memory of a training step."""
        config, task = self.plan.config, self.plan.task
        result = train_mixer(
            config,
            task,
            run.subject,
            run.seed,
            folder,
            on_status=self.on_status,
            should_stop=should_stop,
            tracker=self.tracker,
            keep_weights=self.keep_weights,
        )
        memory = training_memory(config, task, run.subject) if result.finished else None
        return Trained(result=result, peak_memory_bytes=memory)


def _results(plan: SinglePlan, outcome: Outcome) -> SingleResults:
    """Derive results.json from the record, or from the result of a stopped run."""
    run, result = outcome.single, outcome.single.trained
    results = SingleResults(
        format=FORMAT,
        command=run.environment.command,
        config=plan.config.to_dict() | {"task_options": dict(plan.task.options)},
        seed=plan.experiment.seed,
        protocol=protocol(plan.task),
        environment=run.environment,
        wall_seconds=result.seconds["total"],
        peak_memory_bytes=run.peak_memory_bytes,
        result=result,
    )
    return replace(results, sha256=content_hash(encode(results)))
