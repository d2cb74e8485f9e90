"""Workarounds for torch: private and version-dependent APIs. Add new ones here.

`rifflemix.parallel.compat` has the ones for several processes.

C functions of torch are assigned without a wrapper: a Python call would slow down hot paths, and
torch.compile recognizes these functions by identity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.autograd import forward_ad
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

_F = TypeVar("_F", bound=Callable[..., Any])

BatchNorm = torch.nn.modules.batchnorm._BatchNorm

_dynamo_traces: Callable[[], bool] = torch.compiler.is_dynamo_compiling
in_function_transform: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Return whether a torch.func transform (vmap, grad, jvp) is active."""
is_zerotensor: Callable[[Tensor], bool] = Tensor._is_zerotensor
"""Return whether a tensor is a zero tensor without memory (torch's ZeroTensor)."""
is_batch: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
"""Return whether a tensor is a legacy batched tensor, as gradients with `is_grads_batched`."""


def values_can_be_read() -> bool:
    """Return whether tensors have readable values.

    They have none while a graph is compiled, exported or traced, and inside torch.func transforms.
    """
    traced = torch.jit._trace.is_tracing()
    return not (torch.compiler.is_compiling() or traced or in_function_transform())


def operators_are_watched() -> bool:
    """Return whether a compiler, profiler, dispatch mode or transform records torch operators."""
    return (
        torch.compiler.is_compiling()
        or torch._C._autograd._profiler_enabled()
        or torch._C._len_torch_dispatch_stack() > 0
        or in_function_transform()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def has_plain_autograd() -> bool:
    """Return whether torch.func transforms and forward-mode differentiation are both inactive.

    Both need torch's own operators. The forward-mode level is -1 if the mode is inactive.
    """
    return not in_function_transform() and forward_ad._current_level < 0


def hooks_of(module: nn.Module) -> list[Callable[..., Any]]:
    """Return the forward and backward hooks that a call of `module` runs."""
    return [
        *module._forward_hooks.values(),
        *module._forward_pre_hooks.values(),
        *module._backward_hooks.values(),
        *module._backward_pre_hooks.values(),
    ]


sizes_are_tensors: Callable[[], bool] = torch.jit._trace.is_tracing
"""Return whether torch.jit.trace is active. It turns every size into a 0-d tensor."""


def leaves_package() -> bool:
    """Return whether a graph is exported or traced, to run without rifflemix."""
    return torch.compiler.is_exporting() or sizes_are_tensors()


def runs_kernels() -> bool:
    """Return whether a call may run a kernel: `has_plain_autograd` and not `leaves_package`."""
    return not (
        torch.compiler.is_exporting()
        or sizes_are_tensors()
        or in_function_transform()
        or forward_ad._current_level >= 0
    )


def becomes_onnx() -> bool:
    """Return whether a graph is exported to ONNX."""
    return leaves_package() and torch.onnx.is_in_onnx_export()


# Importing the compiler takes a second, so these functions import it only inside a graph. Under
# torch.jit.trace, sizes are 0-d tensors.


def statically_known_true(condition: bool | torch.SymBool) -> bool:
    """Return whether a condition is true, for all values of symbolic sizes."""
    if not _dynamo_traces() and not isinstance(condition, torch.SymBool):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true as is_known

    return is_known(condition)


def is_known(size: int | torch.SymInt) -> bool:
    """Return whether a size is a number and not symbolic."""
    if not _dynamo_traces() and not isinstance(size, torch.SymInt):
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return has_static_value(size)


def as_constant(size: int | torch.SymInt) -> int:
    """Return a size as an int, and specialize traced graphs to it."""
    if not _dynamo_traces() and not isinstance(size, torch.SymInt):
        return int(size)
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return int(guard_scalar(size))


def as_operand(size: int, device: torch.device) -> int | Tensor:
    """Return a size as an operand: an int, or a 0-d tensor.

    ONNX needs the tensor for symbolic sizes.
    """
    return size if is_known(size) else torch.full((), size, device=device)


def stable_order(x: Tensor, dim: int) -> Tensor:
    """Return the indices that sort `x` along `dim`, in a stable order."""
    # The only sort of ONNX is stable, and the exporter supports it only without stable=True.
    if becomes_onnx():
        return x.sort(dim=dim).indices
    return x.sort(dim=dim, stable=True).indices


def widest_float(device: torch.device) -> torch.dtype:
    """Return the dtype of long streaming sums: float64, or float32 on MPS."""
    return torch.float32 if device.type == "mps" else torch.float64


def elu_into(x: Tensor, out: Tensor) -> Tensor:
    """Write elu(x) into `out`, of any layout. torch.nn.functional.elu has no `out` argument."""
    return torch.ops.aten.elu.out(x, out=out)


def take_first(table: Tensor, length: int, dim: int) -> Tensor:
    """Return the first `length` entries along `dim`; `length` may be symbolic.

    A slice of symbolic length would compile or export for every length except the full one.
    """
    if is_known(length):
        return table.narrow(dim, 0, length)
    return table.index_select(dim, torch.arange(length, device=table.device))


def scan(
    step: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, Tensor]],
    first: Tensor,
    inputs: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Run `step(state, inputs[i])` over the first axis in an exported graph, of any length.

    `step` returns the next state and an output, which share no memory with its inputs. Returns the
    last state and the stacked outputs.
    """
    from torch._higher_order_ops.scan import scan as graph_scan  # it imports the compiler

    last, outputs = graph_scan(step, first, tuple(inputs), dim=0)
    return last, outputs


def running_count(flags: Tensor, dim: int) -> Tensor:
    """Count the true flags up to and including each position along `dim`, not the first axis.

    A batch of one is summed without its axis. Otherwise torch.export compares strides N and N^2. It
    cannot prove that they differ if the sizes contain a maximum.
    """
    if statically_known_true(flags.shape[0] == 1):
        return flags.squeeze(0).cumsum(dim - 1).unsqueeze(0)
    return flags.cumsum(dim)


def constant_for_compiler(function: _F) -> _F:
    """Mark a function of constants: traced graphs store only its result.

    Same effect as `torch.compiler.assume_constant_result`, without importing the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def outside_graphs(function: _F) -> _F:
    """Exclude a function, and everything it calls, from torch.compile (a graph break).

    Same effect as `torch.compiler.disable`, but imports the compiler only during compilation.
    """

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return torch.compiler.disable(function)(*args) if _dynamo_traces() else function(*args)

    return cast(_F, run)


def attention_on_cpu() -> tuple[Any, Any]:
    """Return the forward and backward operators of fused attention on the CPU."""
    aten = torch.ops.aten
    return (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )


def shapes_only() -> AbstractContextManager[Any]:
    """Return a context with fake tensors: shapes and dtypes without values."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # it imports sympy

    return FakeTensorMode()


def is_to_empty(function: Callable[..., Any]) -> bool:
    """Return whether the argument of `Module._apply` comes from `Module.to_empty`."""
    return getattr(function, "__qualname__", "").startswith("Module.to_empty.")


def has_values(tensor: Tensor) -> bool:
    """Return whether a tensor has values: not a meta or fake tensor."""
    return type(tensor).__name__ != "FakeTensor" and not tensor.is_meta


class UnknownShape(Exception):
    """The output shape of an operator depends on values, and the tensors have none."""


class OperatorWatch(TorchDispatchMode):
    """Context that calls `saw` after every operator, also in backward passes.

    Tensors inside `shapes_only` have no values: reading a number returns 1, reading a bool False.

    Raises:
        UnknownShape: if the output shape depends on values, as for `nonzero`.
    """

    def saw(self, operator: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
        """Override this method: it receives every operator, its inputs and its output."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and pass it to `saw`."""
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
    """Return an equal key for all tensors with the same storage.

    It is valid while the storage exists.
    """
    return tensor.untyped_storage()._cdata


def fused_attention_node(y: Tensor) -> Any:
    """Return the autograd node of fused CPU attention behind `y`, or None."""
    node = y.grad_fn
    is_fused = node is not None and node.name() == "ScaledDotProductFlashAttentionForCpuBackward0"
    return node if is_fused else None


def fused_attention_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool]:
    """Return queries, keys, values, mask and is_causal of the running `fused_attention_node`."""
    node: Any = torch._C._current_autograd_node()
    return (
        node._saved_query,
        node._saved_key,
        node._saved_value,
        node._saved_attn_mask,
        node._saved_is_causal,
    )


def memory_changes(record: profile) -> list[int]:
    """Return bytes allocated (+) and freed (-) on the CPU, in order.

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


def runs_on_gpu(event: Any) -> bool:
    """Return whether an entry of `record.key_averages()` is a GPU kernel."""
    return bool(event.device_type == DeviceType.CUDA)


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Return a context in which a model is in evaluation mode.

    Each module then returns to its previous mode. `model.train()` would also set frozen modules to
    training.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training
