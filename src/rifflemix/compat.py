"""Every private or version-dependent use of torch, so that a new torch is met in one place.

Names that torch implements in C are handed on as they are: they stand in paths where a call of
Python's more would be felt, and torch's compiler knows them by what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

_F = TypeVar("_F", bound=Callable[..., Any])

in_function_transform: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Whether a transform of torch.func (vmap, grad, jvp) is at work."""


def values_can_be_read() -> bool:
    """Whether tensors have values now: no graph is being compiled, exported, traced or mapped."""
    traced = torch.jit._trace.is_tracing()
    return not (torch.compiler.is_compiling() or traced or in_function_transform())


def has_plain_autograd() -> bool:
    """Whether neither torch.func's transforms nor forward-mode differentiation are at work.

    Both need operators that torch knows from the inside; a level of forward mode is -1 outside.
    """
    return not in_function_transform() and forward_ad._current_level < 0


def statically_known_true(condition: bool | torch.SymBool) -> bool:
    """Whether a condition holds, and for every size of a traced graph where sizes are symbols."""
    # The compiler's own function takes a second to import, and outside a graph nobody needs it.
    if not torch.compiler.is_dynamo_compiling() and isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true as is_known

    return is_known(condition)


def constant_for_compiler(function: _F) -> _F:
    """Mark a function of constants whose result, not whose steps, belongs into a traced graph.

    It does what `torch.compiler.assume_constant_result` does, which would import the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


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


def runs_on_gpu(event: Any) -> bool:
    """Whether an average of a profile, `record.key_averages()`, is of a GPU's kernel."""
    return bool(event.device_type == DeviceType.CUDA)


__all__ = [
    "BatchNorm",
    "OperatorWatch",
    "UnknownShape",
    "attention_on_cpu",
    "constant_for_compiler",
    "has_plain_autograd",
    "has_values",
    "in_function_transform",
    "memory_changes",
    "runs_on_gpu",
    "shapes_only",
    "statically_known_true",
    "storage_key",
    "values_can_be_read",
]
