"""Gradients of a sharded model: the mean over the processes of the sequence."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.compat import all_reduce, first_fsdp_holds, fsdp_processes
from rifflemix.errors import bad_argument
from rifflemix.parallel.shards import SequenceGroup

_MARK = "is_averaged_over_sequence"


def average_gradients(sequence: SequenceGroup, model: nn.Module) -> None:
    """Register hooks that average the gradients of parameters without such a hook.

    FSDP2 replaces parameters and loses their hooks. It averages over its own mesh, so the mesh must
    contain all processes of the sequence. FSDP1 is not supported: depending on its settings, it
    loses the hooks. A copied model has new parameters and needs new hooks.

    Raises:
        InputError: FSDP1 manages parameters, or the mesh of FSDP2 does not contain all processes
            of the sequence.
    """
    if first_fsdp_holds(model):
        raise bad_argument(
            "model",
            "one without FSDP1 (FullyShardedDataParallel), under which not all gradients are "
            "averaged over the sequence",
            "one that it wraps",
            "use torch.distributed.fsdp.fully_shard (FSDP2), with a mesh of all dimensions",
        )
    sharded = fsdp_processes(model)
    for processes in sharded:
        _check_covers(processes, sequence)
    if sharded:
        return
    for parameter in model.parameters():
        if parameter.requires_grad and not hasattr(parameter, _MARK):
            parameter.register_hook(partial(_mean_gradient, sequence))
            setattr(parameter, _MARK, True)


def check_gradients(
    sequence: SequenceGroup, model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Run `average_gradients` before a model call with gradients enabled."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        average_gradients(sequence, model)


def _check_covers(processes: list[int], sequence: SequenceGroup) -> None:
    own = torch.distributed.get_process_group_ranks(sequence.group)
    if not set(own) <= set(processes):
        raise bad_argument(
            "model",
            f"one that fully_shard was given a mesh for with all processes of its sequence, {own}",
            f"one of {processes}",
            "FSDP2 averages gradients over its mesh alone, so give it all dimensions",
        )


def _mean_gradient(sequence: SequenceGroup, gradient: Tensor) -> Tensor:
    return all_reduce(gradient / sequence.size, sequence.group)
