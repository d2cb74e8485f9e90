"""Checkpoints for exact resume, in one safetensors file without pickle.

torch's distributed state dicts return full tensors with the names of the original model, also
under DDP and FSDP. They are imported inside the functions, because the import takes a second and
most commands do not need it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.files import START_OVER, damaged_run, read_tensors, write_tensors
from rifflemix.json_values import check_json

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions


@dataclass
class Progress:
    """State of a run without its tensors, only JSON values.

    Attributes:
        step: completed updates.
        losses: losses of the updates since the last log line.
        train_loss: mean loss of the newest log line.
        validation: every evaluation, {"step", metric ...}.
        best_step, best_value: step and value of the best evaluation so far.
        samples, tokens: training data over all processes.
        seconds: wall time by activity.
        timed_steps, timed_tokens, timed_seconds: counts and time for the speed.
        log_bytes, log_sha256: size and checksum of the log at the checkpoint.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    train_loss: float | None = None
    validation: list[dict[str, float]] = field(default_factory=list)
    best_step: int | None = None
    best_value: float | None = None
    samples: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    timed_steps: int = 0
    timed_tokens: int = 0
    timed_seconds: float = 0.0
    log_bytes: int = 0
    log_sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """Read the progress from JSON values.

        Raises:
            ValueError: an entry is missing or has a wrong type.
        """
        if isinstance(values, dict):
            values = {"log_sha256": "", **values}  # missing in older checkpoints
        check_json(values, cls, "progress")
        progress = cls(**{entry.name: values[entry.name] for entry in fields(cls)})
        if not progress.log_bytes >= 0 or not progress.step >= 0:
            raise ValueError("expected progress.step and progress.log_bytes of at least 0")
        if not all("step" in evaluation for evaluation in progress.validation):
            raise ValueError("expected a step in each of progress.validation")
        return progress

    @contextmanager
    def clock(self, activity: str) -> Iterator[None]:
        """Add the time spent inside to `seconds[activity]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[activity] = self.seconds.get(activity, 0.0) + spent

    def per_second(self, amount: int) -> float | None:
        """Divide `amount` by the timed seconds; return None if zero."""
        return amount / self.timed_seconds if self.timed_seconds > 0 else None


Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

_GROUPS = ("model", "optimizer", "best", "rng")


@dataclass(frozen=True)
class Checkpoint:
    """State of a run at one step.

    Attributes:
        model: weights and buffers.
        optimizer: "<parameter>/<state>" -> tensor.
        best: best weights so far; empty before the first evaluation.
        rng: generator -> (processes, bytes) uint8.
        progress: counters, history and timing, JSON values.
    """

    model: Tensors
    optimizer: Tensors
    best: Tensors
    rng: Tensors
    progress: dict[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: a crash leaves the previous checkpoint.

    Raises:
        InputError: the file cannot be written.
    """
    tensors = {
        f"{group}/{name}": tensor
        for group in _GROUPS
        for name, tensor in getattr(checkpoint, group).items()
    }
    write_tensors(path, tensors, checkpoint.progress)


def load_checkpoint(path: Path, shapes: Mapping[str, Shapes]) -> Checkpoint:
    """Read a checkpoint that `save_checkpoint` wrote.

    Args:
        path: checkpoint file.
        shapes: expected shapes of the tensors of "model", "optimizer" and "rng".

    Raises:
        InputError: the file is missing, damaged, or belongs to another model.
    """
    tensors, progress = read_tensors(path)
    groups: dict[str, Tensors] = {group: {} for group in _GROUPS}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        if group not in groups:
            raise damaged_run(path, f"expected a checkpoint, got a file with tensor {key!r}")
        groups[group][name] = tensor
    try:
        has_best = Progress.from_dict(progress).best_step is not None
    except ValueError as error:
        raise damaged_run(path, str(error)) from error
    for group, wanted in {**shapes, "best": shapes["model"] if has_best else {}}.items():
        check_tensors(path, groups[group], wanted)
    return Checkpoint(**groups, progress=progress)


def check_tensors(path: Path, tensors: Tensors, wanted: Shapes, advice: str = START_OVER) -> None:
    """Raise InputError if names, shapes or types of tensors are unexpected."""
    for name in sorted(tensors.keys() | wanted.keys()):
        found = _shape_of(tensors[name]) if name in tensors else "none"
        expected = wanted.get(name, "none")
        if found != expected:
            raise damaged_run(path, f"tensor {name}: expected {expected}, got {found}", advice)


def state_shapes(model: nn.Module, optimizer: Optimizer) -> dict[str, Shapes]:
    """Return the tensor shapes of `model_weights` and `optimizer_state`, in all processes."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    states: Mapping[str, Mapping[str, Tensor]]
    states = get_optimizer_state_dict(model, optimizer).get("state", {})  # type: ignore[assignment]
    return {
        "model": weight_shapes(model),
        "optimizer": {
            f"{name}/{key}": _shape_of(tensor)
            for name, of in states.items()
            for key, tensor in of.items()
        },
    }


def weight_shapes(model: nn.Module) -> Shapes:
    """Return the tensor shapes of `model_weights` by name, in all processes."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return {name: _shape_of(tensor) for name, tensor in get_model_state_dict(model).items()}


def _shape_of(tensor: Any) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def model_weights(model: nn.Module) -> Tensors:
    """Copy all weights and buffers to the CPU.

    Other processes than the main process get an empty dict.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return _copies(get_model_state_dict(model, options=_whole()))


def load_model_weights(model: nn.Module, weights: Tensors, processes: int) -> None:
    """Load weights from `model_weights` into a model.

    Only the main process passes the weights; other processes pass an empty dict.
    """
    from torch.distributed.checkpoint.state_dict import set_model_state_dict
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):  # still whole after a forward pass without a backward
            module.reshard()
    set_model_state_dict(model, dict[str, Any](weights), options=_loading(processes))


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """Copy the optimizer's tensors to the CPU.

    Other processes than the main process get an empty dict.
    """
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    whole = get_optimizer_state_dict(model, optimizer, options=_whole())
    states: Mapping[str, Mapping[str, Tensor]] = whole.get("state", {})  # type: ignore[assignment]
    return _copies(
        {f"{name}/{key}": tensor for name, of in states.items() for key, tensor in of.items()}
    )


def load_optimizer_state(
    model: nn.Module, optimizer: Optimizer, state: Tensors, processes: int
) -> None:
    """Load tensors from `optimizer_state` into an optimizer.

    Only the main process passes the tensors; other processes pass an empty dict.
    Rates and decay of `optimizer` do not change.
    """
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    current = get_optimizer_state_dict(model, optimizer, options=_whole())
    if current:
        nested: dict[str, Tensors] = {}
        for key, tensor in state.items():
            name, entry = key.rsplit("/", 1)
            nested.setdefault(name, {})[entry] = tensor
        current["state"] = nested  # type: ignore[assignment]
    set_optimizer_state_dict(model, optimizer, current, options=_loading(processes))


def _whole() -> StateDictOptions:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True)


def _loading(processes: int) -> StateDictOptions:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, broadcast_from_rank0=processes > 1)


def _copies(tensors: Mapping[str, Any]) -> Tensors:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
