"""Workarounds for torch: private and version-dependent APIs of distributed training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def has_differentiable_collectives() -> bool:
    """Return whether torch's functional collectives, including all-reduce, have gradients."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed import _functional_collectives as collectives

    return hasattr(collectives, "all_reduce_backward")


# Functional collectives, followed by a wait. Compilers trace them, and they have gradients: an
# all-reduce for an all-reduce, the reverse exchange for an all-to-all. The wait is necessary:
# kernels of rifflemix do not accept asynchronous collective tensors.


def all_reduce(x: Tensor, group: Any) -> Tensor:
    """Sum `x` over the processes of a group."""
    from torch.distributed import _functional_collectives as collectives

    operator = torch.ops._c10d_functional.all_reduce
    return collectives.wait_tensor(operator(x.contiguous(), "sum", group.group_name))


def all_gather(x: Tensor, group: Any) -> Tensor:
    """Concatenate (A, ...) of all processes of a group: (processes * A, ...)."""
    from torch.distributed import _functional_collectives as collectives

    operator = torch.ops._c10d_functional.all_gather_into_tensor
    return collectives.wait_tensor(operator(x.contiguous(), group.size(), group.group_name))


def all_to_all(x: Tensor, received: list[int], sent: list[int], group: Any) -> Tensor:
    """Exchange entries of `x` along dim 0 between all processes.

    Args:
        x: (sum of `sent`, ...), ordered by receiving process.
        received: number of entries from each process.
        sent: number of entries for each process.
        group: process group.

    Returns:
        (sum of `received`, ...), ordered by sending process.
    """
    from torch.distributed import _functional_collectives as collectives

    operator = torch.ops._c10d_functional.all_to_all_single
    return collectives.wait_tensor(operator(x.contiguous(), received, sent, group.group_name))


def fsdp_processes(model: nn.Module) -> list[list[int]]:
    """Return the ranks over which FSDP2 averages gradients, for each mesh.

    The list is empty if FSDP2 shards nothing inside the model. Meshes of enclosing modules are
    included after the first call, if FSDP2 shards a submodule of the model separately.
    """
    if not torch.distributed.is_available():
        return []
    from torch.distributed.fsdp import FSDPModule

    states = [part._get_fsdp_state() for part in model.modules() if isinstance(part, FSDPModule)]
    states += [other for state in states for other in state._state_ctx.all_states]
    meshes = [group.mesh_info.mesh for state in states for group in state._fsdp_param_groups]
    found = {tuple(map(int, mesh.mesh.flatten())) for mesh in meshes}
    return [list(processes) for processes in sorted(found)]


def fsdp_holds(model: nn.Module) -> bool:
    """Return whether FSDP1 or FSDP2 manages parameters of a model.

    FSDP may be inside or around the model.
    """
    return any(getattr(part, "_is_fsdp_managed_module", False) for part in model.modules())


def first_fsdp_holds(model: nn.Module) -> bool:
    """Return whether FullyShardedDataParallel (FSDP1) manages parameters of a model.

    An FSDP1 wrapper around the model is visible only in calls with gradients. The parameters are
    then missing, or they are not leaf tensors.
    """
    if not fsdp_holds(model):
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel

    return (
        any(isinstance(part, FullyShardedDataParallel) for part in model.modules())
        or any(not getattr(part, "_fsdp_use_orig_params", True) for part in model.modules())
        or any(not parameter.is_leaf for parameter in model.parameters())
    )


def sent_bytes(operator: Any, args: tuple[Any, ...], rank: int, size: int) -> float:
    """Return the bytes of floating-point data that an operator sends.

    Args:
        operator: first argument of `OperatorWatch.saw`.
        args: arguments of the operator.
        rank: rank of the process in the group.
        size: number of processes. All-reduce, all-gather and reduce-scatter count as rings.

    Raises:
        NotImplementedError: a collective that rifflemix does not use.
    """
    names = torch.ops._c10d_functional
    if not str(operator).startswith("_c10d_functional") or not args[0].is_floating_point():
        return 0.0
    nbytes = float(args[0].numel() * args[0].element_size())
    if operator is names.all_reduce.default:
        return 2 * (size - 1) / size * nbytes
    if operator is names.all_gather_into_tensor.default:
        return (size - 1) * nbytes
    if operator is names.reduce_scatter_tensor.default:
        return (size - 1) / size * nbytes
    if operator is names.all_to_all_single.default:
        rows = sum(args[2])
        return float(nbytes * (rows - args[2][rank]) / max(rows, 1))
    if operator is names.wait_tensor.default:
        return 0.0
    raise NotImplementedError(f"{operator} is not counted")
