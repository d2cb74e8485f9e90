"""State of a run in memory and on disk, and the results of finished runs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.errors import InputError
from rifflemix.files import (
    damaged_run,
    make_folder,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from rifflemix.json_values import check_seal
from rifflemix.lab.train.checkpoint import (
    Checkpoint,
    Progress,
    Tensors,
    check_tensors,
    load_checkpoint,
    load_model_weights,
    load_optimizer_state,
    model_weights,
    optimizer_state,
    save_checkpoint,
    state_shapes,
    weight_shapes,
)
from rifflemix.lab.train.engine import Engine
from rifflemix.lab.train.protocols import HasRecord, TrainableTask
from rifflemix.lab.train.run_folder import RunFolder, TrainingDiverged, TrainResult, Weights
from rifflemix.lab.train.seeds import rng_state, seed_everything, set_rng_state

_TEST_AGAIN = "remove it to have the trained model tested again"
_WRITE_AGAIN = "remove {} to have the checkpoint's weights written and tested again"


def claim(
    folder: RunFolder, description: dict[str, Any], task: TrainableTask, stack: ExitStack
) -> Any:
    """Lock a run's folder until `stack` closes and return training.json, or None.

    If the task has a record, write it.

    Raises:
        InputError: `RunFolder.opened` failed, or training.json is damaged.
    """
    stack.enter_context(folder.opened(description))
    if isinstance(task, HasRecord):
        write_json(folder.task, task.record().to_json())
    return read_json(folder.result, _TEST_AGAIN) if folder.result.exists() else None


def load_chosen(engine: Engine, folder: RunFolder, model: nn.Module, weights: Weights) -> None:
    """Load the chosen weights of a finished run into a model.

    Raises:
        InputError: the file of the weights is missing or damaged.
    """
    path, advice = folder.chosen(weights), _WRITE_AGAIN.format(folder.result)
    if not path.exists():
        raise InputError(f"{path} is missing; {advice}")
    tensors, _ = read_tensors(path, advice)
    check_tensors(path, tensors, weight_shapes(model), advice)
    load_model_weights(model.to(engine.device), tensors, processes=1)


def read_result(folder: RunFolder) -> TrainResult:
    """Read the result of a finished run.

    Raises:
        InputError: the file is missing or damaged.
    """
    return _decoded(folder, read_json(folder.result, _TEST_AGAIN))


def _decoded(folder: RunFolder, stored: Any) -> TrainResult:
    try:
        check_seal(stored)
        return TrainResult.from_dict(stored)
    except ValueError as error:
        raise damaged_run(folder.result, str(error), _TEST_AGAIN) from error


def stored_result(folder: RunFolder, stored: Any, metric: str) -> TrainResult:
    """Decode the stored result of a finished run.

    Raises:
        InputError: the result is damaged, or has another metric.
    """
    result = _decoded(folder, stored)
    if not result.finished or not result.test or result.metric != metric:
        reason = f"expected a finished run, chosen by {metric}"
        raise damaged_run(folder.result, reason, _TEST_AGAIN)
    return result


_NO_TENSORS = Checkpoint({}, {}, {}, {}, {})


class RunState:
    """Weights, optimizer, best weights, noise and progress of one process.

    Args:
        engine: access to the device and to the other processes.
        folder: folder of the run; only the main process reads and writes it.
        model, optimizer: model and optimizer from `engine.prepare`.
        metric: metric that selects the best weights.
        noise_seed: seed of the noise of this process if there is no checkpoint.
    """

    def __init__(
        self,
        engine: Engine,
        folder: RunFolder,
        model: nn.Module,
        optimizer: Optimizer,
        metric: str,
        noise_seed: int,
    ) -> None:
        self.engine = engine
        self.folder = folder
        self.model = model
        self.optimizer = optimizer
        self.metric = metric
        self.best: Tensors = {}  # on the CPU of the main process, as `last`
        self.last: Tensors = {}
        self.keeps_last = False
        self.has_new_best = False
        self.progress = Progress()
        self.is_resumed = self._restore()
        if not self.is_resumed:
            seed_everything(noise_seed)

    def keep_best(self, value: float) -> None:
        """Keep the current weights as the best; the next checkpoint writes them."""
        self.progress.best_step = self.progress.step
        self.progress.best_value = value
        self.best = model_weights(self.model)
        self.has_new_best = True

    def write_best(self) -> None:
        """Write the best weights to best.safetensors, unless the file has them."""
        meta = {"step": self.progress.best_step, self.metric: self.progress.best_value}

        def write() -> None:
            if self.has_new_best or not self.folder.best.exists():
                write_tensors(self.folder.best, self.best, meta)

        self.engine.on_main(write)
        self.has_new_best = False

    def keep_last(self) -> None:
        """Keep the current weights as the last and write them to last.safetensors."""
        self.last, self.keeps_last = model_weights(self.model), True
        meta = {"step": self.progress.step}
        self.engine.on_main(lambda: write_tensors(self.folder.last, self.last, meta))

    def keep_weights(self) -> None:
        """Write the current weights to weights/STEP.safetensors."""
        weights, path = model_weights(self.model), self.folder.weights_at(self.progress.step)

        def write() -> None:
            make_folder(path.parent)
            write_tensors(path, weights, {"step": self.progress.step})

        self.engine.on_main(write)

    def load(self, weights: Weights) -> None:
        """Load the best or last weights into the model.

        If `keep_last` was not called, the model already has the last weights.
        """
        held = self.best if weights == "best" else self.last
        if weights == "best" or self.keeps_last:
            load_model_weights(self.model, held, self.engine.processes)

    def save(self) -> None:
        """Write a checkpoint and the best weights.

        Raises:
            InputError: the checkpoint cannot be written. The previous checkpoint is kept.
            TrainingDiverged: a weight is not finite. The previous checkpoint is kept.
        """
        weights = model_weights(self.model)
        moments = optimizer_state(self.model, self.optimizer)
        rng = {
            name: self.engine.stack(state) for name, state in rng_state(self.engine.device).items()
        }
        name = self.engine.on_main(lambda: _not_finite(weights, moments))
        if name is not None:  # raised in all processes, so that they start the next run together
            raise TrainingDiverged(
                f"training diverged: parameter {name} is not finite after step "
                f"{self.progress.step}; lower lr, lengthen warmup_steps or set clip_norm"
            )
        self.engine.on_main(lambda: self._write(weights, moments, rng))
        if self.has_new_best:
            self.write_best()

    def _write(self, weights: Tensors, moments: Tensors, rng: Tensors) -> None:
        self.progress.log_bytes, self.progress.log_sha256 = self.folder.settle_log()
        progress = self.progress.to_dict()
        save_checkpoint(
            self.folder.checkpoint, Checkpoint(weights, moments, self.best, rng, progress)
        )

    def _restore(self) -> bool:
        """Restore the checkpoint; return False if there is no checkpoint."""
        held = _NO_TENSORS
        shapes = state_shapes(self.model, self.optimizer)  # collective: call in all processes
        shapes["rng"] = {
            name: ((self.engine.processes, *state.shape), state.dtype)
            for name, state in rng_state(self.engine.device).items()
        }

        def read() -> Any:
            nonlocal held
            if not self.folder.checkpoint.exists():
                self.folder.cut_log(0)
                return None
            held = load_checkpoint(self.folder.checkpoint, shapes)
            self.folder.cut_log(held.progress["log_bytes"], held.progress.get("log_sha256", ""))
            return {
                "progress": held.progress,
                "rng": {name: states.tolist() for name, states in held.rng.items()},
            }

        found = self.engine.on_main(read)
        if found is None:
            return False
        processes = self.engine.processes
        load_model_weights(self.model, held.model, processes)
        load_optimizer_state(self.model, self.optimizer, held.optimizer, processes)
        self.best = held.best
        self.progress = Progress.from_dict(found["progress"])
        self.has_new_best = self.progress.best_step is not None
        rng = {name: _bytes(states[self.engine.rank]) for name, states in found["rng"].items()}
        try:
            set_rng_state(rng, self.engine.device)
        except (RuntimeError, ValueError) as error:
            reason = "it holds no state of the random generators"
            raise damaged_run(self.folder.checkpoint, reason) from error
        return True


def _not_finite(weights: Tensors, moments: Tensors) -> str | None:
    """Return the first trained parameter that is not finite, or None."""
    trained = sorted({key.rpartition("/")[0] for key in moments})
    return next((name for name in trained if not bool(torch.isfinite(weights[name]).all())), None)


def _bytes(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)
