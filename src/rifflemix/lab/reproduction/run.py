"""Running a reproduction: train or resume, write results.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rifflemix.json_values import sealed
from rifflemix.lab.experiments import (
    Caller,
    OneRun,
    PlannedRun,
    Records,
    Trained,
    Utilisation,
    carry_out,
    write_summary,
)
from rifflemix.lab.reproduction.plan import ReproducePlan, build_model
from rifflemix.lab.reproduction.results import (
    RESULTS_FILE,
    SETTINGS_FORMAT,
    forget_memory,
    process_memory,
    results_of,
)
from rifflemix.lab.reproduction.utilisation import utilisation
from rifflemix.lab.runs.device import using_threads
from rifflemix.lab.runs.grid import point_label
from rifflemix.lab.runs.processes import count_processes
from rifflemix.lab.runs.split import split_model
from rifflemix.lab.runs.status import OnStatus, ShouldStop, StatusFeed, never, silent
from rifflemix.lab.train import TrainResult, train
from rifflemix.lab.train.config import free_settings
from rifflemix.lab.train.engine import Engine


def run_reproduction(
    plan: ReproducePlan,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
    time_is_up: ShouldStop | None = None,
) -> dict[str, Any]:
    """Train to the end, or until stopped; the same call continues.

    Args:
        plan: a checked recipe.
        on_status: called at every step with the status of the run.
        should_stop: polled at every step.
        time_is_up: polled after every step, so that each call makes a step and ends an evaluation.

    Returns:
        The content of results.json: "status" is "complete" or "partial".

    Raises:
        InputError: the folder cannot be written, is in use or belongs to another run.
        TrainingDiverged: the loss, a metric or a weight is not finite.
    """
    engine = Engine(plan.recipe.train, plan.device, plan.context_parallel)
    experiment = OneRun(
        plan.out, plan.recipe.name, plan.seed, _settings(plan), free_settings("train")
    )
    trainer = RecipeTrainer(lambda run: plan, on_status, time_is_up, is_whole=True)
    with using_threads(plan.threads):
        caller = Caller(should_stop=should_stop or never)
        outcome = carry_out(experiment, trainer, engine, caller)
    results = sealed(results_of(plan, outcome))
    engine.on_main(lambda: write_summary(plan.out / RESULTS_FILE, results))
    return results


def _settings(plan: ReproducePlan) -> dict[str, Any]:
    """Return the identity of a reproduction; equal settings may continue each other."""
    return {
        "format": SETTINGS_FORMAT,
        **_identity(plan),
        "seed": plan.seed,
        "weights": plan.recipe.weights,
        "train": plan.recipe.train.to_dict(),
        "task_options": dict(plan.task.options),
        "data": plan.task.fingerprint(),
        "device": torch.device(plan.device).type,
        "processes": count_processes(),
        "context_parallel": plan.context_parallel,
    }


@dataclass(frozen=True)
class RecipeTrainer:
    """Trains runs of recipes.

    Attributes:
        plan_of: finds the plan of a run.
        on_status: called at every step with the status of the run.
        time_is_up: polled after every step; an evaluation that has begun is finished first.
        is_whole: also measure memory and the use of the processor, and test both the best and the
            last weights.
    """

    plan_of: Callable[[PlannedRun], ReproducePlan]
    on_status: OnStatus | None = None
    time_is_up: ShouldStop | None = None
    is_whole: bool = False

    def train(
        self, run: PlannedRun, folder: Path, records: Records, should_stop: ShouldStop
    ) -> Trained:
        """Train, then measure."""
        plan = self.plan_of(run)
        forget_memory(plan.device)
        result = self._train(plan, run, folder, should_stop)
        if not self.is_whole:
            return Trained(result=result)
        memory = process_memory(plan.device)  # before a timed matrix product needs more
        return Trained(
            result=result,
            peak_memory_bytes=memory,
            utilisation=_utilisation(plan, result),
        )

    def _train(
        self, plan: ReproducePlan, run: PlannedRun, folder: Path, should_stop: ShouldStop
    ) -> TrainResult:
        recipe = plan.recipe
        steps, metric = recipe.train.max_steps, plan.task.metric
        say, trial = self.on_status or silent, point_label(run.settings)
        feed = StatusFeed(
            recipe.name, plan.seed, steps, lambda status: say(replace(status, trial=trial)), metric
        )
        engine = Engine(recipe.train, plan.device, plan.context_parallel)
        result = train(
            split_model(build_model(recipe, plan.task, plan.seed, plan.start), engine),
            plan.task,
            recipe.train,
            folder,
            device=plan.device,
            on_event=feed.on_event,
            should_stop=should_stop,
            time_is_up=self.time_is_up,
            model_settings=_identity(plan),
            keep_weights=plan.keep_weights,
            context_parallel=plan.context_parallel,
            weights=recipe.weights,
            tests_both=self.is_whole,
        )
        feed.end(result)
        return result


def _identity(plan: ReproducePlan) -> dict[str, Any]:
    recipe = plan.recipe
    return {
        "recipe": recipe.name,
        "model": recipe.model,
        "model_settings": dict(recipe.model_settings),
        "width": recipe.width,
        **({} if plan.start is None else {"started_from": dict(plan.start.origin)}),
    }


def _utilisation(plan: ReproducePlan, result: TrainResult) -> Utilisation | None:
    if result.steps_per_second is None or plan.context_parallel > 1:
        return None  # one device could not hold the step whose FLOPs would be counted
    model = build_model(plan.recipe, plan.task, plan.seed)
    return utilisation(
        model, plan.task, plan.recipe.train, result.steps_per_second, torch.device(plan.device)
    )
