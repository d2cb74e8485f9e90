"""Evaluation of a model on a whole split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rifflemix.compat import evaluation_mode
from rifflemix.errors import bad_argument
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.data import (
    check_finite,
    evaluation_batches,
    evaluation_order,
    further_tests,
    to_device,
)
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.observed import Observed, is_split_metric, needs_scores
from rifflemix.lab.train.protocols import Batch, MeasuresWriting, Summarises, TrainableTask
from rifflemix.lab.train.run_folder import TrainingDiverged
from rifflemix.lab.train.seeds import derive_seed, rng_state, seed_everything, set_rng_state

_NOISE = 3  # purpose of the derived seed
_OPTIONS = ("key_padding_mask", "decoder_inputs", "distances", "path_edges")


def run_model(model: nn.Module, batch: Batch) -> Tensor:
    """Run `model` on the inputs and optional entries of a batch."""
    outputs: Tensor = model(batch["inputs"], **model_options(batch))
    return outputs


def model_options(batch: Batch) -> Batch:
    """Return the keyword arguments of a model from a batch."""
    return {name: batch[name] for name in _OPTIONS if name in batch}


def evaluate(
    engine: Engine,
    model: nn.Module,
    task: TrainableTask,
    split_name: str,
    config: TrainConfig,
    should_stop: Callable[[], bool],
    on_confusion: Callable[[list[list[int]]], object] | None = None,
) -> dict[str, float] | None:
    """Return the mean metrics over a split, or None if stopped.

    "test" also evaluates the additional test splits of the task; their names prefix the names of
    the metrics. The training noise is neither used nor changed: a model that is noisy in
    evaluation draws the same noise each time. `on_confusion` receives the confusion matrix of the
    test split, if the task has one.

    Raises:
        InputError: the data contains NaN, or the metrics lack the task's own metric.
        TrainingDiverged: a metric is not finite.
    """
    observed = Observed(engine, is_needed=needs_scores(task, split_name))
    noise = rng_state(engine.device)
    seed_everything(derive_seed(config.seed, _NOISE, engine.rank))
    try:
        with evaluation_mode(model):
            sums = _sum_metrics(engine, model, task, split_name, config, should_stop, observed)
    finally:
        set_rng_state(noise, engine.device)
    if sums is None:
        return None
    means = _means(sums, task, split_name, observed.scores(task))
    if split_name == "test" and on_confusion is not None:
        found = observed.confusion(task)
        if found is not None:
            on_confusion(found)
    for name in further_tests(task) if split_name == "test" else ():
        more = evaluate(engine, model, task, name, config, should_stop)
        if more is None:
            return None
        means |= {f"{name}_{metric}": mean for metric, mean in more.items()}
    return means


@torch.no_grad()
def _sum_metrics(
    engine: Engine,
    model: nn.Module,
    task: TrainableTask,
    split_name: str,
    config: TrainConfig,
    should_stop: Callable[[], bool],
    observed: Observed,
) -> dict[str, tuple[float, float]] | None:
    split = task.split(split_name)
    order = evaluation_order(task, split, config, engine.replica, engine.replicas)
    sums: dict[str, tuple[float, float]] = {}
    batches = evaluation_batches(task, split, order, config, engine.device)
    stop = _Stop(should_stop)
    measure = _measurement(engine, model, task, split_name, stop, observed)
    for indices, counts, cpu_batch in zip(order.batches, order.counts, batches, strict=True):
        if stop.is_asked():
            return None
        check_finite(cpu_batch, indices, split_name)
        batch = to_device(cpu_batch, engine.device)
        observed.counts = bool(counts)
        for name, (value, count) in measure(batch).items():
            total, seen = sums.get(name, (0.0, 0.0))
            sums[name] = (total + counts * float(value), seen + counts * count)
        if stop.was_asked:  # stopped during writing
            return None
    flat = engine.total([number for pair in sums.values() for number in pair])
    return dict(zip(sums, zip(flat[::2], flat[1::2], strict=True), strict=True))


class _Stop:
    """Stop request that stays true once `should_stop` returned True."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self.should_stop = should_stop
        self.was_asked = False

    def is_asked(self) -> bool:
        self.was_asked = self.was_asked or self.should_stop()
        return self.was_asked


def _measurement(
    engine: Engine,
    model: nn.Module,
    task: TrainableTask,
    split_name: str,
    stop: _Stop,
    observed: Observed,
) -> Callable[[Batch], Mapping[str, tuple[float, int]]]:
    """Build a function that returns the metrics of a batch."""

    def measured(batch: Batch) -> Mapping[str, tuple[float, int]]:
        outputs = run_model(model, batch)
        found = task.metrics(outputs, batch)
        observed.add(task, outputs, batch)
        return found

    is_shared = engine.is_sharded or engine.context_parallel > 1
    if split_name != "test" or is_shared or not isinstance(task, MeasuresWriting):
        return measured
    writer, writing_metrics = engine.accelerator.unwrap_model(model), task.writing_metrics
    # Processes write sequences of different lengths, so they cannot synchronize between tokens.
    between_tokens = stop.is_asked if engine.processes == 1 else lambda: False
    return lambda batch: {
        **measured(batch),
        **writing_metrics(writer, batch, should_stop=between_tokens),
    }


def _means(
    sums: dict[str, tuple[float, float]],
    task: TrainableTask,
    split_name: str,
    scores: Mapping[str, float],
) -> dict[str, float]:
    means = {name: total / count for name, (total, count) in sums.items() if count}
    if isinstance(task, Summarises):
        means.update(task.summarise(means))
    means |= scores
    # Names with an underscore are only inputs of `summarise`.
    means = {name: mean for name, mean in means.items() if not name.startswith("_")}
    for needed in ("loss", task.metric):
        if is_split_metric(needed) and needed not in means and scores:
            raise bad_argument(
                "metric", f"one that the {split_name} split of task {task.name} defines", needed,
                "the split has a single class",
            )  # fmt: skip
        if needed not in means:
            raise bad_argument(f"metrics of task {task.name!r}", f"{needed!r}", sorted(means))
    for name, value in means.items():
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"training diverged: {name} on the {split_name} split is {value}; "
                "lower lr, lengthen warmup_steps or set clip_norm"
            )
    return means
