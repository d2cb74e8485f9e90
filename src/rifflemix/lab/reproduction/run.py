"""Run a reproduction: train or resume, compute the model FLOP utilization, write results.json."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from rifflemix.json_values import content_hash, encode
from rifflemix.lab.experiments import (
    ALONE,
    ONLY_RUN,
    Caller,
    OneRun,
    Outcome,
    PlannedRun,
    Records,
    Role,
    RunStore,
    Trained,
    Utilisation,
    carry_out,
    files_of,
    held_folder,
    write_summary,
)
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.cost import flops_of
from rifflemix.lab.reproduction.plan import ReproducePlan, build_model
from rifflemix.lab.reproduction.records import FORMAT, RESULTS_FILE, Reproduction, TaskData
from rifflemix.lab.runs.build_for_task import split_model
from rifflemix.lab.runs.environment import using_threads
from rifflemix.lab.runs.measure import seconds_of
from rifflemix.lab.runs.options import count_processes
from rifflemix.lab.runs.status import (
    OnStatus,
    ShouldStop,
    StatusFeed,
    never,
    point_label,
    protocol,
    silent,
)
from rifflemix.lab.tasks import Task
from rifflemix.lab.tasks.core.base import SPLITS, Batch
from rifflemix.lab.train import TrainConfig, TrainResult, train
from rifflemix.lab.train.config import free_settings
from rifflemix.lab.train.data import LengthOrder
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.length_batches import sample_lengths
from rifflemix.lab.train.run_folder import Metrics, read_log
from rifflemix.models import Model

_BATCHES = 8  # average over samples of similar lengths
_SAMPLES = 2  # FLOPs are counted on this number of samples, then multiplied


def utilisation(
    model: Model,
    task: Task,
    config: TrainConfig,
    steps_per_second: float,
    device: torch.device,
) -> Utilisation:
    """Measure the utilization of a model that trains at `steps_per_second`.

    Only matrix products count, not sorts, shifts or Fourier transforms. So a low share does not
    mean a slow layer.
    """
    flops = _step_flops(model, task, config)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    peak = matmul_flops_per_second(device, dtype)
    rate = flops * steps_per_second
    return Utilisation(flops, rate, peak, rate / (peak * count_processes()))


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best of a few timings of one large matrix product."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    return 2.0 * size**3 / min(seconds_of(lambda: torch.mm(a, a), device) for _ in range(5))


def _step_flops(model: Model, task: Task, config: TrainConfig) -> int:
    split = task.split("train")
    model.cpu().train()
    if config.token_batches is not None:
        batches = list(islice(LengthOrder(sample_lengths(split, task.name), config, 0), _BATCHES))
        flops = [_flops(model, task, [index for index, _ in batch]) for batch in batches]
        return round(sum(flops) / len(flops))
    together = max(1, config.batch_size // (config.accumulation * count_processes()))
    flops_together = _flops(model, task, [i * len(split) // together for i in range(together)])
    return round(flops_together * config.batch_size / together)


def _flops(model: Model, task: Task, samples: Sequence[int]) -> float:
    """Count the FLOPs of a pass and its backward pass, on the first samples of a batch."""
    split = task.split("train")
    whole = task.collate([split[index] for index in samples])
    batch = {name: value[:_SAMPLES] for name, value in whole.items()}
    flops = flops_of(
        lambda: task.loss(run_model(model, batch), batch).backward(), _valid_tokens(whole)
    )
    return flops * len(samples) / len(batch["labels"])


def _valid_tokens(batch: Batch) -> float:
    """Return the root mean square of the valid tokens of a sample."""
    is_padding = batch.get("key_padding_mask")
    if is_padding is None:
        return math.inf
    return float((~is_padding).sum(-1).double().square().mean().sqrt())


def results_of(plan: ReproducePlan, outcome: Outcome) -> Reproduction:
    """Derive the results.

    Args:
        plan: the reproduction.
        outcome: the record of the run, or the outcome so far of a stopped run.
    """
    run, result = outcome.single, outcome.single.trained
    recipe, task = plan.recipe, plan.task
    ours = _in_unit(recipe, result.test or {})
    tests = result.tests or ({recipe.weights: result.test} if result.test else {})
    difference = None
    if ours is not None and recipe.printed is not None and not recipe.not_comparable:
        difference = ours - recipe.printed
    results = Reproduction(
        format=FORMAT,
        status="complete" if result.finished else "partial",
        recipe=recipe,
        seed=plan.seed,
        printed=recipe.printed,
        ours=ours,
        weights=recipe.weights,
        ours_best=_in_unit(recipe, tests.get("best", {})),
        ours_last=_in_unit(recipe, tests.get("last", {})),
        difference=difference,
        validation=_of_best(recipe, result),
        unit=recipe.unit,
        steps=result.step,
        steps_planned=recipe.steps_of_the_paper,
        batch_size_planned=plan.batch_size_planned,
        is_reduced=_is_reduced(recipe, result, plan.batch_size_planned),
        started_from=None if plan.start is None else plan.start.origin,
        command=run.environment.command,
        protocol=protocol(task, recipe.weights, tests_both=True),
        task=TaskData(
            name=task.name,
            options=dict(task.options),
            data=task.data_source,
            sizes={name: len(task.split(name)) for name in (*SPLITS, *task.further_tests)},
        ),
        parameters=result.parameters,
        steps_per_second=result.steps_per_second,
        tokens_per_second=result.tokens_per_second,
        utilisation=run.utilisation,
        peak_memory_bytes=run.peak_memory_bytes,
        wall_seconds=result.seconds["total"],
        seconds=result.seconds,
        environment=run.environment,
        result=result,
        train_curve=_train_curve(plan),
    )
    return replace(results, sha256=content_hash(encode(results)))


def _train_curve(plan: ReproducePlan) -> list[Metrics]:
    log = files_of(plan.out, ONLY_RUN) / "log.jsonl"
    return list(read_log(log)) if log.exists() else []


def _of_best(recipe: Recipe, result: TrainResult) -> float | None:
    """Return the recipe's metric at the best evaluation. Another metric can choose it."""
    at_best = [entry for entry in result.validation if entry["step"] == result.best_step]
    return _in_unit(recipe, at_best[0]) if at_best else None


def _in_unit(recipe: Recipe, metrics: Mapping[str, float]) -> float | None:
    """Return the recipe's metric, or None if it was not measured here."""
    return recipe.shown(metrics[recipe.metric]) if recipe.metric in metrics else None


def _is_reduced(recipe: Recipe, result: TrainResult, batch_size_planned: int) -> bool:
    return (
        recipe.width != 1.0
        or result.step < recipe.steps_of_the_paper
        or recipe.train.batch_size < batch_size_planned
    )


def forget_memory(device: str) -> None:
    """Reset the peak memory of a GPU, so that earlier runs of the process do not count."""
    if device.startswith("cuda"):
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)


def process_memory(device: str) -> int:
    """Return the peak memory in bytes: of this process, or of its tensors on a GPU."""
    import resource  # missing on Windows

    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


SETTINGS_FORMAT = "rifflemix.reproduction/1"


def run_reproduction(
    plan: ReproducePlan,
    *,
    on_status: OnStatus | None = None,
    should_stop: ShouldStop | None = None,
    time_is_up: ShouldStop | None = None,
    role: Role = ALONE,
) -> Reproduction:
    """Train to the end or until stopped. The same call continues.

    Args:
        plan: a checked recipe.
        on_status: called at every step with the status of the run.
        should_stop: polled at every step.
        time_is_up: polled after every step, so that each call makes a step and ends an evaluation.
        role: role of this process among those that share the runs.

    Returns:
        The content of results.json; its status is "partial" after a stop.

    Raises:
        InputError: the folder cannot be written, is in use or belongs to another run.
        TrainingDiverged: the loss, a metric or a weight is not finite.
        RunFailed: the run failed repeatedly.
    """
    engine = Engine(plan.recipe.train, plan.device, plan.context_parallel)
    trainer = RecipeTrainer(lambda run: plan, on_status, time_is_up, is_whole=True)
    with using_threads(plan.threads):
        caller = Caller(should_stop=should_stop or never, role=role)
        outcome = carry_out(experiment_of(plan), trainer, engine, caller)
    results = results_of(plan, outcome)
    engine.on_main(lambda: write_summary(plan.out / RESULTS_FILE, encode(results)))
    return results


def collect_reproduction(plan: ReproducePlan) -> Reproduction | None:
    """Write results.json of a run that a worker has finished.

    Returns:
        The content of results.json, or None if the run is not finished.

    Raises:
        InputError: the folder cannot be written.
        RunFailed: the run failed repeatedly.
    """
    store = RunStore(experiment_of(plan))
    if not (records := store.records()):
        return None
    results = results_of(plan, Outcome(records, None))
    store.tidy()
    write_summary(plan.out / RESULTS_FILE, encode(results))
    return results


def open_reproductions(out: Path, recipes: Sequence[str]) -> None:
    """Write config.json of a folder with several reproductions.

    Raises:
        InputError: the folder contains something else or cannot be written.
    """
    settings = {"format": "rifflemix.reproductions/1", "recipes": list(recipes)}
    with held_folder(out, settings):
        pass


def experiment_of(plan: ReproducePlan) -> OneRun:
    """Return the experiment of a reproduction: one run."""
    settings, free = _settings(plan), free_settings("train")
    return OneRun(plan.out, plan.recipe.name, plan.seed, settings, free)


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
        memory = process_memory(
            plan.device
        )  # measured before a timed matrix product, which needs more
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
        **({} if plan.start is None else {"started_from": encode(plan.start.origin)}),
    }


def _utilisation(plan: ReproducePlan, result: TrainResult) -> Utilisation | None:
    if result.steps_per_second is None or plan.context_parallel > 1:
        return None  # the counted step may not fit on one device
    model = build_model(plan.recipe, plan.task, plan.seed)
    return utilisation(
        model, plan.task, plan.recipe.train, result.steps_per_second, torch.device(plan.device)
    )
