"""Functions on a device mesh: shard and gather tokens, average over tokens, average gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rifflemix.checks import check_integer, check_padding_mask, shown
from rifflemix.errors import InputError, bad_argument
from rifflemix.parallel.compat import (
    all_reduce,
    first_fsdp_holds,
    fsdp_processes,
    has_differentiable_collectives,
)
from rifflemix.parallel.shards import SequenceGroup


def sequence_group(mesh: DeviceMesh) -> SequenceGroup:
    """Return the processes of a one-dimensional mesh as a `SequenceGroup`.

    Raises:
        InputError: `mesh` is not a one-dimensional mesh with this process, or the collectives of
            this torch version have no gradients.
    """
    if not isinstance(mesh, DeviceMesh):
        raise bad_argument("mesh", "a torch.distributed DeviceMesh", shown(mesh))
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        hint = (
            f"choose one by its name, as mesh[{names[-1]!r}]"
            if names
            else "name them, and take one"
        )
        raise bad_argument("mesh", "one dimension, along the tokens", f"{mesh.ndim}", hint)
    if mesh.get_coordinate() is None:
        rank = torch.distributed.get_rank()
        raise bad_argument("mesh", f"one that process {rank} is in", mesh.mesh.tolist())
    if not has_differentiable_collectives():
        raise InputError(
            f"rifflemix.parallel needs collectives with gradients, which torch {torch.__version__} "
            "does not have; use torch 2.13 or newer"
        )
    group: Any = mesh.get_group()
    return SequenceGroup(group, torch.distributed.get_rank(group), group.size())


def shard_tokens(x: Tensor, mesh: DeviceMesh, *, dim: int = 1) -> Tensor:
    """Return this process's shard of a tensor.

    Args:
        x: ids (B, N), vectors, labels or a mask, equal on all processes.
        mesh: one-dimensional mesh, as for `shard_sequence`.
        dim: dimension of the tokens.

    Returns:
        A view of N / processes tokens along `dim`.

    Raises:
        InputError: the number of processes does not divide N, or `mesh` is not one-dimensional.

    Example:
        >>> import torch, rifflemix as rm
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> mesh = torch.distributed.init_device_mesh("cpu", (1,))
        >>> rm.parallel.shard_tokens(torch.zeros(2, 8), mesh).shape
        torch.Size([2, 8])
        >>> torch.distributed.destroy_process_group()
    """
    sequence = sequence_group(mesh)
    length = x.shape[_token_dim(x, dim)]
    if length % sequence.size:
        more = -length % sequence.size
        raise bad_argument(
            "x",
            f"a number of tokens that the {sequence.size} processes of the mesh divide",
            length,
            f"add {more} of padding and mark them in key_padding_mask",
        )
    each = length // sequence.size
    return x.narrow(dim, sequence.rank * each, each)


def gather_tokens(x: Tensor, mesh: DeviceMesh, *, dim: int = 1) -> Tensor:
    """Gather the tokens of all processes on each process (inverse of `shard_tokens`).

    The operation is differentiable.

    Args:
        x: (B, n, ...) shard of this process, of the same shape on all processes.
        mesh: one-dimensional mesh, as for `shard_sequence`.
        dim: dimension of the tokens.

    Returns:
        (B, N, ...) tokens of all processes, in the order of the mesh.

    Raises:
        InputError: `mesh` is not one-dimensional.

    Example:
        >>> import torch, rifflemix as rm
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> mesh = torch.distributed.init_device_mesh("cpu", (1,))
        >>> x = torch.randn(2, 8, 16)
        >>> torch.equal(rm.parallel.gather_tokens(rm.parallel.shard_tokens(x, mesh), mesh), x)
        True
        >>> torch.distributed.destroy_process_group()
    """
    dim = _token_dim(x, dim)
    return sequence_group(mesh).shards(x.shape[dim]).gather(x, dim)


def mean_over_tokens(
    values: Tensor, mesh: DeviceMesh, *, key_padding_mask: Tensor | None = None
) -> Tensor:
    """Average one number per token, for instance a loss, over all shards.

    Args:
        values: (B, n) numbers for the tokens of this process.
        mesh: one-dimensional mesh, as for `shard_sequence`.
        key_padding_mask: (B, n) bool, True = padding; padding is excluded from the mean.

    Returns:
        The mean over the valid tokens of all sequences, a scalar that is equal on all processes.

    Raises:
        InputError: `values` is not (B, n), or `mesh` is not one-dimensional.

    Example:
        >>> import torch, rifflemix as rm
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> mesh = torch.distributed.init_device_mesh("cpu", (1,))
        >>> rm.parallel.mean_over_tokens(torch.tensor([[1.0, 2.0, 6.0]]), mesh)
        tensor(3.)
        >>> torch.distributed.destroy_process_group()
    """
    if not isinstance(values, Tensor) or values.dim() != 2:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise bad_argument("values", "shape (B, n)", got)
    check_padding_mask(key_padding_mask, values)
    shards = sequence_group(mesh).shards(values.shape[1])
    if key_padding_mask is None:
        return shards.total(values.sum()) / (len(values) * shards.length)
    total = shards.total(values.masked_fill(key_padding_mask, 0.0).sum())
    return total / shards.total((~key_padding_mask).sum()).clamp(min=1)


def _token_dim(x: Tensor, dim: int) -> int:
    return check_integer("dim", dim, 0, x.dim() - 1)


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
