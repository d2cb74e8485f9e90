"""One training run: updates, evaluation, weight selection, checkpoints and exact resume."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from rifflemix.files import damaged_run, write_json
from rifflemix.json_values import sealed
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.evaluate import Updates, evaluate
from rifflemix.lab.train.optim import allocate_state, decay_groups
from rifflemix.lab.train.protocols import TrainableTask
from rifflemix.lab.train.run_folder import (
    WEIGHTS,
    RunFolder,
    TrainEvent,
    TrainingDiverged,
    TrainResult,
    Weights,
    protocol,
)
from rifflemix.lab.train.seeds import derive_seed
from rifflemix.lab.train.state import RunState

OnEvent = Callable[[TrainEvent], None]


ShouldStop = Callable[[], bool]


_NOISE = 4  # number of this purpose when a seed is derived


class Run:
    """One call of `train` on an open folder."""

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        optimizer: Optimizer,
        task: TrainableTask,
        config: TrainConfig,
        folder: RunFolder,
        on_event: OnEvent | None,
        stops: tuple[ShouldStop | None, ShouldStop | None],
        *,
        keeps: bool,
        weights: Weights,
        until: int,
    ) -> None:
        self.engine = engine
        self.task = task
        self.config = config
        self.folder = folder
        self.on_event = on_event
        self.should_stop, self.time_is_up = stops
        self.keeps = keeps
        self.confusion: list[list[int]] | None = None
        self.weights: Weights = weights
        self.until = until
        self.validates = len(task.split("validation")) > 0
        sizes = {name: p.numel() for name, p in model.named_parameters()}
        groups = decay_groups(model, decay_all=config.decay_all)
        self.decayed = sum(sizes[name] for name in groups.decayed)
        self.parameters = self.decayed + sum(sizes[name] for name in groups.not_decayed)
        # Loaded models are in eval mode. Submodules in eval mode stay so if the model trains.
        if not model.training:
            model.train()
        self.model, self.optimizer = engine.prepare(model, optimizer)
        allocate_state(self.optimizer)
        noise_seed = derive_seed(config.seed, _NOISE, engine.rank)
        self.state = RunState(engine, folder, self.model, self.optimizer, task.metric, noise_seed)
        self.progress = self.state.progress
        if self.progress.step > config.max_steps:
            reason = f"it is of step {self.progress.step}, but the run has {config.max_steps}"
            raise damaged_run(folder.checkpoint, reason)
        if not self.state.is_resumed:
            self._log_start()
            self._keep_weights()
        self.first_step = self.progress.step
        self.saved = self._moment()
        self.saved_time = time.monotonic()
        self.updates = Updates(engine, self.model, self.optimizer, task, config, self.progress)

    def to_the_end(self, *, tests: bool, both: bool) -> TrainResult:
        """Update, evaluate and save until the run is finished or stopped."""
        while True:
            if self._evaluation_is_due() and not self._validate():
                return self._stop()
            if self.progress.step >= self.config.max_steps or self._is_exhausted():
                return self._finish(both=both) if tests else self._finish_untested()
            if self.progress.step >= self.until:
                return self._finish_untested()
            stop, save = self._requests()
            if stop:
                return self._stop()
            if save:
                self._save()
            self._update()

    def _evaluation_is_due(self) -> bool:
        step, every = self.progress.step, self.config.eval_every
        history = self.progress.validation
        is_done = bool(history) and history[-1]["step"] == step
        if step == 0 or is_done or not self.validates:
            return False
        return step >= self.config.max_steps or (every is not None and step % every == 0)

    def _is_exhausted(self) -> bool:
        """Check whether the validation metric has not improved for `patience` evaluations."""
        patience, progress = self.config.patience, self.progress
        if patience is None or progress.best_step is None:
            return False
        return sum(at["step"] > progress.best_step for at in progress.validation) >= patience

    def _requests(self) -> tuple[bool, bool]:
        """Return whether to stop and whether to save now. All processes return the same answer."""
        every, seconds = self.config.checkpoint_every, self.config.checkpoint_seconds
        is_late = seconds is not None and time.monotonic() - self.saved_time >= seconds
        is_over = self._has_worked() and self.time_is_up is not None and bool(self.time_is_up())
        stop, save = self._agree(is_over or self._is_asked_to_stop(), is_late)
        return stop, save or (every is not None and self.progress.step % every == 0)

    def _is_asked_to_stop(self) -> bool:
        return self.should_stop is not None and bool(self.should_stop())

    def _agree(self, *wishes: bool) -> list[bool]:
        """Return, for each flag, whether it is true in any process."""
        return [votes > 0 for votes in self.engine.total([float(wish) for wish in wishes])]

    def _moment(self) -> tuple[int, int]:
        return self.progress.step, len(self.progress.validation)

    def _save(self) -> None:
        """Write a checkpoint, unless the current state is already saved."""
        if self._moment() == self.saved:
            return
        self._read_losses()
        with self.progress.clock("checkpoint"):
            self.state.save()
        self.saved = self._moment()
        self.saved_time = time.monotonic()
        self._tell("checkpoint")

    def _stop(self) -> TrainResult:
        self._save()
        return self._result(finished=False, tests={})

    def _finish(self, *, both: bool) -> TrainResult:
        self._save()
        tests = self._tests(both=both)
        if tests is None:
            return self._result(finished=False, tests={})
        result, test = self._result(finished=True, tests=tests), tests[self.weights]
        step = self.progress.best_step if self.weights == "best" else self.progress.step
        self._log({"step": step, "split": "test", **test})
        self.engine.on_main(lambda: write_json(self.folder.result, sealed(result.to_dict())))
        self._tell("done", split="test", metrics=test)
        return result

    def _tests(self, *, both: bool) -> dict[str, dict[str, float]] | None:
        """Return test metrics by name of the weights, or None if stopped.

        Afterwards the model has the chosen weights.
        """
        best_step, tests = self.progress.best_step, dict[str, dict[str, float]]()
        if best_step is not None:
            self.state.write_best()  # the file may have been deleted
        if self.weights == "last":
            self.state.keep_last()
        names = WEIGHTS if self.weights == "last" else WEIGHTS[::-1]
        for name in names if both and best_step is not None else names[1:]:
            self.state.load(name)
            is_same = bool(tests) and best_step == self.progress.step
            metrics = tests[names[0]] if is_same else self._evaluate("test")
            if metrics is None:
                return None
            tests[name] = metrics
        return tests

    def _finish_untested(self) -> TrainResult:
        """Save a checkpoint. A later call continues from it, or tests the model."""
        self._save()
        return self._result(finished=True, tests={})

    def _update(self) -> None:
        step, config, is_first = self.progress.step + 1, self.config, not self._has_worked()
        rate = self.updates.update(is_timed=not is_first)
        is_logged = step % config.log_every == 0 or step == config.max_steps
        if is_first or is_logged:
            self._read_losses(is_timed=not is_first)
        if is_logged:
            self._log_losses(rate)
        self._tell("step", lr=rate)

    def _has_worked(self) -> bool:
        return self.progress.step > self.first_step

    def _read_losses(self, *, is_timed: bool = True) -> None:
        """Copy the losses from the device to the CPU.

        The copy waits for the device, so it does not run at every update.

        Raises:
            TrainingDiverged: a loss is not finite.
        """
        try:
            self.updates.read_losses(is_timed=is_timed)
        except TrainingDiverged as error:
            path, at = self.folder.path, self.saved[0]
            kept = f"the last checkpoint in {path} is of step {at}" if at else ""
            raise TrainingDiverged(error.reason, kept) from None

    def _log_losses(self, rate: float) -> None:
        progress = self.progress
        progress.train_loss = math.fsum(progress.losses) / len(progress.losses)
        progress.losses = []
        self._log(
            {"step": progress.step, "split": "train", "loss": progress.train_loss, "lr": rate}
        )

    def _validate(self) -> bool:
        """Evaluate and keep the best weights; return False if stopped."""
        self._read_losses()
        metrics = self._evaluate("validation")
        if metrics is None:
            return False
        progress = self.progress
        entry = {"step": progress.step, **metrics}
        progress.validation.append(entry)
        self._log({"step": progress.step, "split": "validation", **metrics})
        if self._is_better(metrics[self.task.metric]):
            self.state.keep_best(metrics[self.task.metric])
        self._keep_weights()
        self._tell("eval", split="validation", metrics=metrics)
        return True

    def _keep_weights(self) -> None:
        if self.keeps:
            with self.progress.clock("checkpoint"):
                self.state.keep_weights()

    def _is_better(self, value: float) -> bool:
        """Return whether the metric improved. Equal values keep the earlier weights."""
        best = self.progress.best_value
        if best is None:
            return True
        return value > best if self.task.higher_is_better else value < best

    def _evaluate(self, split: str) -> dict[str, float] | None:
        def is_stopped() -> bool:
            return self._agree(self._is_asked_to_stop())[0]

        with self.progress.clock("evaluation"):
            return evaluate(
                self.engine, self.model, self.task, split, self.config, is_stopped,
                self._keep_confusion,
            )  # fmt: skip

    def _keep_confusion(self, found: list[list[int]]) -> None:
        self.confusion = found

    def _log(self, entry: Mapping[str, Any]) -> None:
        self.engine.on_main(lambda: self.folder.append_log(entry))

    def _log_start(self) -> None:
        self._log({"step": 0, "parameters": self.parameters, "decayed_parameters": self.decayed})

    def _tell(
        self,
        kind: Literal["step", "eval", "checkpoint", "done"],
        *,
        lr: float | None = None,
        split: str | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        if self.on_event is None or not self.engine.is_main:
            return
        progress = self.progress
        steps = progress.timed_steps + len(self.updates.unread)
        self.on_event(
            TrainEvent(
                kind=kind,
                step=progress.step,
                max_steps=self.until,
                loss=progress.train_loss,
                lr=lr,
                steps_per_second=progress.per_second(steps),
                split=split,
                metrics=metrics or {},
            )
        )

    def _result(self, *, finished: bool, tests: dict[str, dict[str, float]]) -> TrainResult:
        progress, task = self.progress, self.task
        seconds = {
            name: progress.seconds.get(name, 0.0)
            for name in ("train", "data", "evaluation", "checkpoint")
        }
        return TrainResult(
            finished=finished,
            step=progress.step,
            max_steps=self.config.max_steps,
            metric=task.metric,
            best_step=progress.best_step,
            best_value=progress.best_value,
            validation=list(progress.validation),
            test=tests.get(self.weights),
            tests=tests,
            protocol=protocol(task, self.weights, len(tests)),
            train_loss=progress.train_loss,
            parameters=self.parameters,
            decayed_parameters=self.decayed,
            samples=progress.samples,
            tokens=progress.tokens,
            steps_per_second=progress.per_second(progress.timed_steps),
            tokens_per_second=progress.per_second(progress.timed_tokens),
            seconds={**seconds, "total": sum(seconds.values())},
            processes=self.engine.processes,
            device=str(self.engine.device),
            precision=self.config.precision,
            confusion=self.confusion,
        )
