"""Updates of a model: batches, gradients, optimizer steps and losses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.lab.train.checkpoint import Progress
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.data import (
    check_finite,
    count_tokens,
    to_device,
    training_batches,
    training_order,
)
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.optim import learning_rate, momentum, set_rates
from rifflemix.lab.train.protocols import Batch, CountsLabels, TrainableTask
from rifflemix.lab.train.run_folder import TrainingDiverged
from rifflemix.lab.train.targets import class_weights, training_loss


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
