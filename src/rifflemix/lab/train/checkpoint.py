"""Everything a run needs to resume exactly, in one safetensors file.

torch's distributed state dicts give whole tensors under the model's own names whether the model
is plain, under DDP or sharded by FSDP, so that all three share this code. Nothing is pickled.
They are imported where they are used: the import takes a second, and whoever only lists recipes or
measures layers never saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.files import START_OVER, damaged_run, read_tensors, write_tensors
from rifflemix.lab.train.progress import Progress

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

_GROUPS = ("model", "optimizer", "best", "rng")


@dataclass(frozen=True)
class Checkpoint:
    """One moment of a run.

    Attributes:
        model: weights and buffers.
        optimizer: "<parameter>/<state>" -> tensor.
        best: the best weights so far; empty before the first evaluation.
        rng: generator -> (processes, bytes) uint8.
        progress: counters, history and timing, JSON values.
    """

    model: Tensors
    optimizer: Tensors
    best: Tensors
    rng: Tensors
    progress: dict[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write atomically: a crash leaves the previous checkpoint.

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
    """Read what `save_checkpoint` wrote.

    Args:
        path: the file.
        shapes: of the tensors of "model", "optimizer" and "rng".

    Raises:
        InputError: the file is missing, damaged, or another model's.
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
    """Raise InputError unless the tensors of a file have the names, shapes and types wanted."""
    for name in sorted(tensors.keys() | wanted.keys()):
        found = _shape_of(tensors[name]) if name in tensors else "none"
        expected = wanted.get(name, "none")
        if found != expected:
            raise damaged_run(path, f"tensor {name}: expected {expected}, got {found}", advice)


def state_shapes(model: nn.Module, optimizer: Optimizer) -> dict[str, Shapes]:
    """Shapes of what `model_weights` and `optimizer_state` give the main process."""
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
    """Shapes of what `model_weights` gives the main process, by the same names, in all of them."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return {name: _shape_of(tensor) for name, tensor in get_model_state_dict(model).items()}


def _shape_of(tensor: Any) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def model_weights(model: nn.Module) -> Tensors:
    """Copies on the CPU of all weights and buffers; empty outside the main process."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return _copies(get_model_state_dict(model, options=_whole()))


def load_model_weights(model: nn.Module, weights: Tensors, processes: int) -> None:
    """Put back what `model_weights` gave the main process; the others pass an empty dict."""
    from torch.distributed.checkpoint.state_dict import set_model_state_dict

    set_model_state_dict(model, dict[str, Any](weights), options=_loading(processes))


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """Copies on the CPU of the optimiser's tensors; empty outside the main process."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    whole = get_optimizer_state_dict(model, optimizer, options=_whole())
    states: Mapping[str, Mapping[str, Tensor]] = whole.get("state", {})  # type: ignore[assignment]
    return _copies(
        {f"{name}/{key}": tensor for name, of in states.items() for key, tensor in of.items()}
    )


def load_optimizer_state(
    model: nn.Module, optimizer: Optimizer, state: Tensors, processes: int
) -> None:
    """Put back what `optimizer_state` gave the main process; the others pass an empty dict.

    The settings (rates, decay) stay as `optimizer` has them.
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
