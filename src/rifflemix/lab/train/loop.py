"""Training loop: updates, evaluation, weight selection, checkpoints and exact resume."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.errors import check_choice
from rifflemix.files import damaged_run, write_json
from rifflemix.json_values import sealed
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.data import (
    check_finite,
    check_splits,
    count_tokens,
    loading_processes,
    to_device,
    training_batches,
    training_order,
)
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.evaluate import evaluate, run_model
from rifflemix.lab.train.finished import claim, load_chosen, stored_result
from rifflemix.lab.train.optim import allocate_state, build_optimizer, decay_groups, set_rates
from rifflemix.lab.train.protocols import Batch, CountsLabels, TrainableTask
from rifflemix.lab.train.results import TrainEvent, TrainingDiverged, TrainResult, protocol
from rifflemix.lab.train.run_folder import WEIGHTS, RunFolder, Weights, describe_run
from rifflemix.lab.train.schedules import learning_rate, momentum
from rifflemix.lab.train.seeds import derive_seed
from rifflemix.lab.train.state import RunState
from rifflemix.lab.train.targets import check_targets, training_loss

OnEvent = Callable[[TrainEvent], None]
ShouldStop = Callable[[], bool]

_NOISE = 4  # purpose of derived seeds


def train(
    model: nn.Module,
    task: TrainableTask,
    config: TrainConfig,
    out_dir: str | Path,
    *,
    device: str | torch.device | None = None,
    on_event: OnEvent | None = None,
    should_stop: ShouldStop | None = None,
    time_is_up: ShouldStop | None = None,
    model_settings: Mapping[str, Any] | None = None,
    tests: bool = True,
    keep_weights: bool = False,
    context_parallel: int = 1,
    weights: Weights = "best",
    tests_both: bool = False,
) -> TrainResult:
    """Train `model` on `task`, select the weights and test them once.

    The run writes config.json, log.jsonl, checkpoint.safetensors and best.safetensors to
    `out_dir`. At the end it writes training.json and, with `weights="last"`, last.safetensors.

    A second call with the same arguments resumes from the last checkpoint. On the CPU the result
    is bitwise equal to an uninterrupted run. If the run is finished, the call returns the stored
    result. Call `seed_everything` before you create the model; the data order and the noise depend
    only on `config.seed`.

    Args:
        model: called as model(inputs, key_padding_mask=...). Afterwards it is on the training
            device and has the chosen weights, or the current weights if training was stopped.
            Under FSDP it stays sharded.
        task: data, loss and metrics; see TrainableTask.
        config: training settings; see TrainConfig.
        out_dir: folder of the run, created if it does not exist.
        device: "cpu", "cuda", "cuda:1" ...; None uses an accelerator if there is one.
        on_event: called in the main process after each update, evaluation and checkpoint.
        should_stop: called after each update and during evaluations; True writes a checkpoint
            and returns a result with `finished=False`.
        time_is_up: same as `should_stop`, but called only after updates. A running evaluation is
            completed, because a resumed run would have to repeat it.
        model_settings: settings the model was built from (JSON values); stored in config.json and
            compared on resume.
        tests: False skips the test split, and `test` of the result is None. A later call with
            True only tests the chosen weights.
        keep_weights: also write the initial weights and the weights of every evaluation to
            weights/STEP.safetensors. A resumed run may change this argument.
        context_parallel: number of processes that get the same samples, for a model that splits
            sequences over processes.
        weights: "best" chooses the weights of the best evaluation on the validation split. "last"
            chooses the weights of the last update; the validation split may then be empty.
        tests_both: test the weights of the best evaluation and of the last update. The result's
            `tests` contains both. The chosen weights stay the same.

    Returns:
        The result, equal in every process.

    Raises:
        InputError: the folder belongs to another run, is in use, damaged or not writable; the
            batch size is not divisible; a split is empty; the data contains NaN; the labels cannot
            be smoothed or mixed; accelerate is not installed.
        TrainingDiverged: loss, metric or weights are not finite; the last checkpoint is kept.
        RunFailed: a loading process was killed; the last checkpoint is kept.
    """
    check_choice("weights", weights, WEIGHTS)
    check_splits(task, validates=weights == "best")
    check_targets(task, config)
    engine = Engine(config, device, context_parallel)
    # On a CPU, torch's fused Adafactor is not faster.
    fused = engine.device.type == "cuda" or config.optimizer != "adafactor"
    optimizer = build_optimizer(model, config, fused=fused)
    description = describe_run(
        model,
        task,
        config,
        model_settings or {},
        engine.processes,
        engine.device.type,
        context_parallel,
        weights,
    )
    folder = RunFolder(Path(out_dir))
    with ExitStack() as stack:
        stored = engine.on_main(lambda: claim(folder, description, stack))
        if stored is not None:
            result = stored_result(folder, stored, task.metric)
            load_chosen(engine, folder, model, weights)
            return result
        stack.callback(engine.release, model)
        stops = (should_stop, time_is_up)
        run = _Run(
            engine,
            model,
            optimizer,
            task,
            config,
            folder,
            on_event,
            stops,
            keeps=keep_weights,
            weights=weights,
        )
        with loading_processes():
            return run.to_the_end(tests=tests, both=tests_both)


class _Run:
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
    ) -> None:
        self.engine = engine
        self.task = task
        self.config = config
        self.folder = folder
        self.on_event = on_event
        self.should_stop, self.time_is_up = stops
        self.keeps = keeps
        self.weights: Weights = weights
        self.validates = len(task.split("validation")) > 0
        split = task.split("train")
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
        self.state = RunState(engine, folder, self.model, self.optimizer, noise_seed)
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
        self.unread: list[Tensor] = []  # losses still on the device
        self.unread_tokens = 0
        self.order = training_order(
            task, split, config, self.first_step, engine.replica, engine.replicas
        )
        self.batches = training_batches(task, split, self.order, config, engine.device)

    def to_the_end(self, *, tests: bool, both: bool) -> TrainResult:
        """Update, evaluate and save until the run is finished or stopped."""
        while True:
            if self._evaluation_is_due() and not self._validate():
                return self._stop()
            if self.progress.step >= self.config.max_steps:
                return self._finish(both=both) if tests else self._finish_untested()
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

    def _requests(self) -> tuple[bool, bool]:
        """Return (stop, save), equal in every process."""
        every, seconds = self.config.checkpoint_every, self.config.checkpoint_seconds
        is_late = seconds is not None and time.monotonic() - self.saved_time >= seconds
        has_worked = self.progress.step > self.first_step
        is_over = has_worked and self.time_is_up is not None and bool(self.time_is_up())
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
            self.state.write_best(self.task.metric)  # the file may have been deleted
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
        """Save a checkpoint for the later call that tests."""
        self._save()
        return self._result(finished=True, tests={})

    def _update(self) -> None:
        progress, config = self.progress, self.config
        rate = learning_rate(config, progress.step)
        set_rates(self.optimizer, rate, momentum(config, progress.step))
        is_first = progress.step == self.first_step
        loss = torch.zeros((), device=self.engine.device)
        for batch, weight in self._parts():
            with self._working(is_timed=not is_first):
                loss += self._forward_backward(to_device(batch, self.engine.device), weight)
        self.unread.append(loss / config.accumulation)
        progress.step += 1
        is_logged = progress.step % config.log_every == 0 or progress.step == config.max_steps
        if is_first or is_logged:
            self._read_losses(is_timed=not is_first)
        if is_logged:
            self._log_losses(rate)
        self._tell("step", lr=rate)

    def _parts(self) -> Iterator[tuple[Batch, float]]:
        """Yield the micro-batches of an update and their loss weights."""
        step, count = self.progress.step, self.config.accumulation
        batches = map(self._next_batch, self.order.micro_batches(step))
        if isinstance(self.task, CountsLabels) and count * self.engine.processes > 1:
            loaded = list(batches)
            labels = [float(self.task.count_labels(batch)) for batch in loaded]
            mean = self.engine.total([sum(labels)])[0] / (count * self.engine.processes)
            yield from ((batch, n / mean) for batch, n in zip(loaded, labels, strict=True))
        else:
            yield from ((batch, 1.0) for batch in batches)

    def _next_batch(self, indices: list[int]) -> Batch:
        with self.progress.clock("data"):
            batch = next(self.batches)
            check_finite(batch, indices, "train")
            self.progress.samples += len(indices) * self.engine.replicas
            self.unread_tokens += count_tokens(batch)
            return batch

    def _forward_backward(self, batch: Batch, weight: float) -> Tensor:
        accelerator = self.engine.accelerator
        with accelerator.accumulate(self.model):
            outputs, smoothing = run_model(self.model, batch), self.config.label_smoothing
            loss = weight * training_loss(self.task, outputs, batch, smoothing)
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

    def _read_losses(self, *, is_timed: bool = True) -> None:
        """Fetch the losses from the device.

        This synchronizes with the device, so it does not run at every update.

        Raises:
            TrainingDiverged: a loss is not finite.
        """
        if not self.unread:
            return
        progress, count = self.progress, len(self.unread)
        with self._working(is_timed=is_timed):
            own = [float(loss) for loss in torch.stack(self.unread).tolist()]
            *totals, tokens = self.engine.total([*own, float(self.unread_tokens)])
        losses = [total / self.engine.processes for total in totals]
        tokens //= self.engine.context_parallel
        self.unread, self.unread_tokens = [], 0
        for step, loss in enumerate(losses, start=progress.step - count + 1):
            if not math.isfinite(loss):
                path, at = self.folder.path, self.saved[0]
                raise TrainingDiverged(
                    f"training diverged: the loss is {loss} at step {step}; lower lr "
                    f"({self.config.lr}), lengthen warmup_steps or set clip_norm",
                    f"the last checkpoint in {path} is of step {at}" if at else "",
                )
        progress.losses += losses
        progress.tokens += int(tokens)
        if is_timed:
            progress.timed_steps += count
            progress.timed_tokens += int(tokens)

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
            with progress.clock("checkpoint"):
                self.state.keep_best(metrics[self.task.metric], self.task.metric)
        self._keep_weights()
        self._tell("eval", split="validation", metrics=metrics)
        return True

    def _keep_weights(self) -> None:
        if self.keeps:
            with self.progress.clock("checkpoint"):
                self.state.keep_weights()

    def _is_better(self, value: float) -> bool:
        """Compare strictly, so that the earliest of equal evaluations is kept."""
        best = self.progress.best_value
        if best is None:
            return True
        return value > best if self.task.higher_is_better else value < best

    def _evaluate(self, split: str) -> dict[str, float] | None:
        def is_stopped() -> bool:
            return self._agree(self._is_asked_to_stop())[0]

        with self.progress.clock("evaluation"):
            return evaluate(self.engine, self.model, self.task, split, self.config, is_stopped)

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
        self.on_event(
            TrainEvent(
                kind=kind,
                step=progress.step,
                max_steps=self.config.max_steps,
                loss=progress.train_loss,
                lr=lr,
                steps_per_second=progress.per_second(progress.timed_steps + len(self.unread)),
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
        )
