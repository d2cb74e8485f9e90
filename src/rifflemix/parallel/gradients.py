"""Gradients of a model whose sequence is in shards: the mean over the processes that share it."""

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
    """Average the gradients of all parameters, where that is not done already.

    FSDP2 replaces parameters, and with them what is registered here; it averages over the processes
    of its own mesh, which must be enough. What FSDP1 makes of parameters has a hook here or not,
    by its settings. A copy of a model has new parameters, too.

    Raises:
        InputError: the mesh of FSDP2 leaves processes of the sequence out, or FSDP1.
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
    """`average_gradients` before a call of the model that may be differentiated."""
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
