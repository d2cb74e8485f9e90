"""Updates of a model (batches, gradients, optimizer steps), and evaluation on a whole split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.compat import evaluation_mode
from rifflemix.errors import bad_argument
from rifflemix.lab.train.checkpoint import Progress
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.data import (
    check_finite,
    count_tokens,
    evaluation_batches,
    evaluation_order,
    further_tests,
    to_device,
    training_batches,
    training_order,
)
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.optim import learning_rate, momentum, set_rates
from rifflemix.lab.train.protocols import (
    Batch,
    CountsLabels,
    MeasuresWriting,
    Summarises,
    TrainableTask,
)
from rifflemix.lab.train.run_folder import TrainingDiverged
from rifflemix.lab.train.seeds import derive_seed, rng_state, seed_everything, set_rng_state
from rifflemix.lab.train.targets import (
    Observed,
    class_weights,
    is_split_metric,
    needs_scores,
    training_loss,
)

_NOISE = 3  # purpose of the derived seed
_OPTIONS = ("key_padding_mask", "decoder_inputs", "distances", "path_edges")


def run_model(model: nn.Module, batch: Batch) -> Tensor:
    """Run `model` on the inputs and optional entries of a batch."""
    return model(batch["inputs"], **model_options(batch))


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


class Updates:
    """Updates of a run from `progress.step` on.

    Args:
        engine: access to the device and to the other processes.
        model, optimizer: model and optimizer from `engine.prepare`.
        task: data and loss.
        config: training settings.
        progress: counters of the run; each update changes them.

    Attributes:
        unread: losses that are still on the device.
    """

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        optimizer: Optimizer,
        task: TrainableTask,
        config: TrainConfig,
        progress: Progress,
    ) -> None:
        self.engine = engine
        self.model = model
        self.optimizer = optimizer
        self.task = task
        self.config = config
        self.progress = progress
        self.unread: list[Tensor] = []
        self._unread_tokens = 0
        weights = class_weights(task, config)
        self._class_weights = None if weights is None else weights.to(engine.device)
        split = task.split("train")
        self._order = training_order(
            task, split, config, progress.step, engine.replica, engine.replicas
        )
        self._batches = training_batches(task, split, self._order, config, engine.device)

    def update(self, *, is_timed: bool) -> float:
        """Update the model once and return the learning rate."""
        progress, config = self.progress, self.config
        rate = learning_rate(config, progress.step)
        set_rates(self.optimizer, rate, momentum(config, progress.step))
        loss = torch.zeros((), device=self.engine.device)
        for batch, weight in self._parts():
            with self._working(is_timed=is_timed):
                loss += self._forward_backward(to_device(batch, self.engine.device), weight)
        self.unread.append(loss / config.accumulation)
        progress.step += 1
        return rate

    def read_losses(self, *, is_timed: bool = True) -> None:
        """Fetch the losses from the device, which synchronizes with it.

        Raises:
            TrainingDiverged: a loss is not finite.
        """
        if not self.unread:
            return
        progress, count = self.progress, len(self.unread)
        with self._working(is_timed=is_timed):
            own = [float(loss) for loss in torch.stack(self.unread).tolist()]
            *totals, tokens = self.engine.total([*own, float(self._unread_tokens)])
        losses = [total / self.engine.processes for total in totals]
        tokens //= self.engine.context_parallel
        self.unread, self._unread_tokens = [], 0
        for step, loss in enumerate(losses, start=progress.step - count + 1):
            if not math.isfinite(loss):
                raise TrainingDiverged(
                    f"training diverged: the loss is {loss} at step {step}; lower lr "
                    f"({self.config.lr}), lengthen warmup_steps or set clip_norm"
                )
        progress.losses += losses
        progress.tokens += int(tokens)
        if is_timed:
            progress.timed_steps += count
            progress.timed_tokens += int(tokens)

    def _parts(self) -> Iterator[tuple[Batch, float]]:
        """Yield the micro-batches of an update and their loss weights."""
        step, count = self.progress.step, self.config.accumulation
        batches = map(self._next_batch, self._order.micro_batches(step))
        if isinstance(self.task, CountsLabels) and count * self.engine.processes > 1:
            loaded = list(batches)
            labels = [float(self.task.count_labels(batch)) for batch in loaded]
            mean = self.engine.total([sum(labels)])[0] / (count * self.engine.processes)
            yield from ((batch, n / mean) for batch, n in zip(loaded, labels, strict=True))
        else:
            yield from ((batch, 1.0) for batch in batches)

    def _next_batch(self, indices: list[int]) -> Batch:
        with self.progress.clock("data"):
            batch = next(self._batches)
            check_finite(batch, indices, "train")
            self.progress.samples += len(indices) * self.engine.replicas
            self._unread_tokens += count_tokens(batch)
            return batch

    def _forward_backward(self, batch: Batch, weight: float) -> Tensor:
        accelerator = self.engine.accelerator
        with accelerator.accumulate(self.model):
            outputs, smoothing = run_model(self.model, batch), self.config.label_smoothing
            loss = weight * training_loss(self.task, outputs, batch, smoothing, self._class_weights)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                self._clip()
                self.optimizer.step()
                self.optimizer.zero_grad()
        return loss.detach()

    def _clip(self) -> None:
        accelerator, config = self.engine.accelerator, self.config
        if config.clip_norm is not None:
            accelerator.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        if config.clip_value is not None:
            accelerator.clip_grad_value_(self.model.parameters(), config.clip_value)

    @contextmanager
    def _working(self, *, is_timed: bool) -> Iterator[None]:
        """Measure the time of updates, and of timed parts for the speed."""
        before = self.progress.seconds.get("train", 0.0)
        with self.progress.clock("train"):
            yield
        if is_timed:
            self.progress.timed_seconds += self.progress.seconds["train"] - before
