"""What torch lacks, and every private or version-dependent use of it: a new one is met here.

Names that torch implements in C are handed on as they are: they stand in paths where a call of
Python's more would be felt, and torch's compiler knows them by what they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

_F = TypeVar("_F", bound=Callable[..., Any])

_dynamo_traces: Callable[[], bool] = torch.compiler.is_dynamo_compiling
in_function_transform: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Whether a transform of torch.func (vmap, grad, jvp) is at work."""
is_zerotensor: Callable[[Tensor], bool] = Tensor._is_zerotensor
"""Whether a tensor is nothing but zeros, and has no memory for them."""
is_batch: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
"""Whether a tensor stands for several, as gradients do under `is_grads_batched`."""


def values_can_be_read() -> bool:
    """Whether tensors have values now: no graph is being compiled, exported, traced or mapped."""
    traced = torch.jit._trace.is_tracing()
    return not (torch.compiler.is_compiling() or traced or in_function_transform())


def operators_are_watched() -> bool:
    """Whether a compiler, profiler, dispatch mode or transform has to see torch's operators."""
    return (
        torch.compiler.is_compiling()
        or torch._C._autograd._profiler_enabled()
        or torch._C._len_torch_dispatch_stack() > 0
        or in_function_transform()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def has_plain_autograd() -> bool:
    """Whether neither torch.func's transforms nor forward-mode differentiation are at work.

    Both need operators that torch knows from the inside; a level of forward mode is -1 outside.
    """
    return not in_function_transform() and forward_ad._current_level < 0


def hooks_of(module: nn.Module) -> list[Callable[..., Any]]:
    """What a call of `module` runs beside its forward and its backward."""
    return [
        *module._forward_hooks.values(),
        *module._forward_pre_hooks.values(),
        *module._backward_hooks.values(),
        *module._backward_pre_hooks.values(),
    ]


sizes_are_tensors: Callable[[], bool] = torch.jit._trace.is_tracing
"""Whether torch.jit.trace is at work, which makes a tensor of one number of every size."""


def leaves_package() -> bool:
    """Whether a graph is being made that will run where this package is not: exported or traced."""
    return torch.compiler.is_exporting() or sizes_are_tensors()


def becomes_onnx() -> bool:
    """Whether a graph is being made for ONNX."""
    return leaves_package() and torch.onnx.is_in_onnx_export()


# The compiler's own functions take a second to import, and outside a graph nobody needs them. Under
# torch.jit.trace sizes are tensors of one number each.


def statically_known_true(condition: bool | torch.SymBool) -> bool:
    """Whether a condition holds, and for every size of a traced graph where sizes are symbols."""
    if not _dynamo_traces() and not isinstance(condition, torch.SymBool):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true as is_known

    return is_known(condition)


def is_known(size: int | torch.SymInt) -> bool:
    """Whether a size is a number, and no symbol that stands for any size in a traced graph."""
    if not _dynamo_traces() and not isinstance(size, torch.SymInt):
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return has_static_value(size)


def as_constant(size: int | torch.SymInt) -> int:
    """The number that a size is now; a traced graph then holds for this number alone."""
    if not _dynamo_traces() and not isinstance(size, torch.SymInt):
        return int(size)
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return int(guard_scalar(size))


def as_operand(size: int, device: torch.device) -> int | Tensor:
    """A size to reckon with tensors: a number, or a tensor of a symbol, which ONNX has no other."""
    return size if is_known(size) else torch.full((), size, device=device)


def stable_order(x: Tensor, dim: int) -> Tensor:
    """The indices that sort `x`, of equal values the first one first."""
    # ONNX has no other sort than one that is stable, and torch finds it only if not asked for one.
    if becomes_onnx():
        return x.sort(dim=dim).indices
    return x.sort(dim=dim, stable=True).indices


def widest_float(device: torch.device) -> torch.dtype:
    """The dtype for sums that a stream continues without end: float64, which MPS lacks."""
    return torch.float32 if device.type == "mps" else torch.float64


def elu_into(x: Tensor, out: Tensor) -> Tensor:
    """Write elu(x) to a tensor of any layout, which torch.nn.functional.elu does not offer."""
    y: Tensor = torch.ops.aten.elu.out(x, out=out)
    return y


def take_first(table: Tensor, length: int, dim: int) -> Tensor:
    """The first `length` entries along `dim`, also where the length is a symbol.

    A slice of symbolic length would be compiled or exported for every length but that of the whole.
    """
    if is_known(length):
        return table.narrow(dim, 0, length)
    return table.index_select(dim, torch.arange(length, device=table.device))


def running_count(flags: Tensor, dim: int) -> Tensor:
    """Count the flags (B, ..., N, ...) up to each place along `dim`, not the first axis.

    One sample is summed without its axis. With it, torch.export compares strides N and N^2, and for
    sizes with a maximum in them it cannot tell that they differ.
    """
    if statically_known_true(flags.shape[0] == 1):
        return flags.squeeze(0).cumsum(dim - 1).unsqueeze(0)
    return flags.cumsum(dim)


def constant_for_compiler(function: _F) -> _F:
    """Mark a function of constants whose result, not whose steps, belongs into a traced graph.

    It does what `torch.compiler.assume_constant_result` does, which would import the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def outside_graphs(function: _F) -> _F:
    """Have torch.compile leave a function, and all that it calls, as it is: its graph ends there.

    It does what `torch.compiler.disable` does, and imports the compiler only while it is at work.
    """

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return torch.compiler.disable(function)(*args) if _dynamo_traces() else function(*args)

    return cast(_F, run)


def attention_on_cpu() -> tuple[Any, Any]:
    """The operators behind `scaled_dot_product_attention` on a CPU, forward and backward."""
    aten = torch.ops.aten
    return (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )


def shapes_only() -> AbstractContextManager[Any]:
    """Inside, new tensors have shapes and types but no values, and operators compute only those."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # it imports sympy

    return FakeTensorMode()


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor has values; within `shapes_only`, and on the device meta, it has none."""
    return type(tensor).__name__ != "FakeTensor" and not tensor.is_meta


class UnknownShape(Exception):
    """The shape of an operator's result depends on values, which are not there."""


class OperatorWatch(TorchDispatchMode):
    """Inside, `saw` is told of every operator that ran, also of those of a backward pass.

    Within `shapes_only` tensors have no values: a number that is read from one is 1, a flag False.

    Raises:
        UnknownShape: from an operator such as `nonzero`.
    """

    def saw(self, operator: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
        """An operator ran."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """What torch calls for each operator."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return False if args[0].dtype is torch.bool else 1
        options = kwargs or {}
        try:
            out = func(*args, **options)
        except RuntimeError as error:
            if type(error).__name__ == "DynamicOutputShapeException":
                raise UnknownShape(str(error)) from error
            raise
        self.saw(func, args, options, out)
        return out


def storage_key(tensor: Tensor) -> int:
    """The same for all tensors that share their memory, while it lives."""
    key: int = tensor.untyped_storage()._cdata
    return key


def fused_attention_node(y: Tensor) -> Any:
    """The node of autograd behind torch's fused attention on a CPU; None behind anything else."""
    node = y.grad_fn
    is_fused = node is not None and node.name() == "ScaledDotProductFlashAttentionForCpuBackward0"
    return node if is_fused else None


def fused_attention_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool]:
    """Queries, keys, values, mask and is_causal of the `fused_attention_node` that runs now."""
    node: Any = torch._C._current_autograd_node()
    return (
        node._saved_query,
        node._saved_key,
        node._saved_value,
        node._saved_attn_mask,
        node._saved_is_causal,
    )


def memory_changes(record: profile) -> list[int]:
    """Bytes that torch's CPU allocator handed out (+) and took back (-), in order of time.

    Args:
        record: a finished profile made with `profile_memory=True`.
    """
    profiler: Any = record.profiler
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == DeviceType.CPU
    ]
    return [change for _, change in sorted(changes, key=lambda pair: pair[0])]


def has_differentiable_collectives() -> bool:
    """Whether this torch knows the gradients of its functional collectives, all-reduce included."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed import _functional_collectives as collectives

    return hasattr(collectives, "all_reduce_backward")


# The waiting forms of torch's functional collectives: compilers trace them, and autograd knows them
# (the gradient of a sum is the sum of the gradients, of an exchange the exchange back). Their
# asynchronous tensors are of a class that no kernel of ours takes.


def all_reduce(x: Tensor, group: Any) -> Tensor:
    """The sum of `x` over the processes of a group."""
    from torch.distributed import _functional_collectives as collectives

    operator = torch.ops._c10d_functional.all_reduce
    summed: Tensor = collectives.wait_tensor(operator(x.contiguous(), "sum", group.group_name))
    return summed


def all_gather(x: Tensor, group: Any) -> Tensor:
    """(A, ...) of each process of a group, one after the other: (processes * A, ...)."""
    from torch.distributed import _functional_collectives as collectives

    operator = torch.ops._c10d_functional.all_gather_into_tensor
    gathered: Tensor = collectives.wait_tensor(
        operator(x.contiguous(), group.size(), group.group_name)
    )
    return gathered


def all_to_all(x: Tensor, received: list[int], sent: list[int], group: Any) -> Tensor:
    """Rows of `x` to each process of a group, as many as `sent` says; all rows that came from each.

    Args:
        x: (sum of `sent`, ...).
        received: rows that come from each process.
        sent: rows that go to each.
        group: the processes.

    Returns:
        (sum of `received`, ...).
    """
    from torch.distributed import _functional_collectives as collectives

    operator = torch.ops._c10d_functional.all_to_all_single
    arrived: Tensor = collectives.wait_tensor(
        operator(x.contiguous(), received, sent, group.group_name)
    )
    return arrived


def fsdp_processes(model: nn.Module) -> list[list[int]]:
    """The processes over which FSDP2 averages the gradients of a model, of each of its meshes.

    Those of modules around the model are among them, once it was called and where it has modules
    that were sharded by themselves. Empty where FSDP2 has not sharded anything in the model.
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
    """Whether FSDP, the first or the second, around a model or inside, has its parameters."""
    return any(getattr(part, "_is_fsdp_managed_module", False) for part in model.modules())


def first_fsdp_holds(model: nn.Module) -> bool:
    """Whether FullyShardedDataParallel, the first FSDP, has parameters of a model.

    It is seen from the outside in calls that are differentiated: there parameters are tensors that
    were computed, or none at all.
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
    """Bytes of floating-point numbers that a process sends by an operator; 0 if it sends none.

    Args:
        operator: as `OperatorWatch.saw` is told it.
        args: its arguments.
        rank: the process in the group.
        size: processes of the group. An all-reduce and a gathering send what a ring of them would.

    Raises:
        NotImplementedError: another collective than this package uses.
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


def runs_on_gpu(event: Any) -> bool:
    """Whether an average of a profile, `record.key_averages()`, is of a GPU's kernel."""
    return bool(event.device_type == DeviceType.CUDA)


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Inside, a model is in evaluation mode; then each module is in the mode that it was in.

    `model.train()` would put all of them into training, those too that somebody froze.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


__all__ = [
    "BatchNorm",
    "OperatorWatch",
    "TorchDispatchMode",
    "UnknownShape",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "as_constant",
    "as_operand",
    "attention_on_cpu",
    "constant_for_compiler",
    "evaluation_mode",
    "first_fsdp_holds",
    "fsdp_holds",
    "fsdp_processes",
    "fused_attention_inputs",
    "fused_attention_node",
    "has_differentiable_collectives",
    "has_plain_autograd",
    "has_values",
    "in_function_transform",
    "is_batch",
    "is_known",
    "leaves_package",
    "memory_changes",
    "outside_graphs",
    "running_count",
    "runs_on_gpu",
    "sent_bytes",
    "shapes_only",
    "stable_order",
    "statically_known_true",
    "storage_key",
    "take_first",
    "values_can_be_read",
    "widest_float",
]
