"""Block-diagonal maps by a compiled kernel, which reads and writes features in butterfly order.

The gradient of the features is such a map again, with each block transposed. The kernel is in
ops/native/block_linear.cpp.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import autocast_enabled
from rifflemix.compat import has_plain_autograd, leaves_package
from rifflemix.ops.butterfly import eager
from rifflemix.ops.native import (
    TYPE_NAMES,
    checked,
    in_huge_pages,
    instruction_level,
    library,
    require_library,
)
from rifflemix.ops.operands import check_count, check_operand, on_one_device, refuse_values
from rifflemix.ops.operator import operator

# Looked up once: a graph that is being traced must not meet the loading of a library.
_KERNELS = library()
# Without vector instructions torch's matrix products are faster.
_HAS_VECTORS = instruction_level() >= 2
_FEWEST_ROWS = 16  # that lie side by side, for which the kernel reads them so
# For fewer numbers, or where blocks are wider on both sides, torch's products are as fast.
_LARGE, _NARROW = 1 << 16, 12


def supports(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel can run this.

    An exported program must run where this library is not.
    """
    return (
        _HAS_VECTORS
        and x.device.type == "cpu"
        and x.dtype in TYPE_NAMES
        and x.dtype == weight.dtype
        and (bias is None or bias.dtype == x.dtype)
        and 0 not in weight.shape
        and x.numel() > 0
        and not autocast_enabled("cpu")
        and not leaves_package()
        and has_plain_autograd()
    )


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel is faster than torch's matrix products."""
    return x.numel() >= _LARGE and min(weight.shape[1:]) <= _NARROW


def block_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, in_stride: int, out_stride: int
) -> Tensor:
    """See `rifflemix.ops.block_linear`."""
    lead = x.shape[:-1]
    if x.dim() != 3:
        x = x.reshape(1, -1, x.shape[-1]) if x.dim() < 3 else x.flatten(0, -3)
    y: Tensor = _apply(x, weight, bias, in_stride, out_stride)
    return y if len(lead) == 2 else y.reshape(*lead, y.shape[-1])


def _lies_across(x: Tensor) -> bool:
    """Whether rows lie side by side in memory, not the features of a row."""
    return x.stride(2) != 1 and x.stride(1) == 1 and x.shape[1] >= _FEWEST_ROWS


def _readable(x: Tensor) -> Tensor:
    """(outer, inner, features) with rows or features side by side: a copy only if neither is."""
    return x if x.stride(2) == 1 or _lies_across(x) else x.contiguous()


def _empty_like(x: Tensor, features: int) -> Tensor:
    """(outer, inner, features) that lies in memory as `x` does."""
    outer, inner, _ = x.shape
    if _lies_across(x):
        return x.new_empty((outer, features, inner)).transpose(1, 2)
    return x.new_empty((outer, inner, features))


@operator("rifflemix::block_linear", device_types="cpu")
def _apply(
    x: Tensor, weight: Tensor, bias: Tensor | None, in_stride: int, out_stride: int
) -> Tensor:
    _check(x, weight, in_stride, out_stride)
    blocks, _, out = weight.shape
    if bias is not None:
        check_operand("bias", bias, (blocks, out), x.dtype, x.device)
    y = in_huge_pages(_empty_like(x, blocks * out))
    maps = (_wide(weight), None if bias is None else _wide(bias))
    _call(_readable(x), y, weight, in_stride, out_stride, maps, (None, None))
    return y


@_apply.register_fake
@on_one_device
def _(x: Tensor, weight: Tensor, bias: Tensor | None, in_stride: int, out_stride: int) -> Tensor:
    return _empty_like(x, weight.shape[0] * weight.shape[2])


@operator("rifflemix::block_linear_sums", device_types="cpu")
def _sum(
    x: Tensor, weight: Tensor, grad_y: Tensor, in_stride: int, out_stride: int
) -> tuple[Tensor, Tensor]:
    """Gradients of the weight, of which only the shape matters, and of the bias."""
    _check(x, weight, in_stride, out_stride)
    blocks, _, out = weight.shape
    check_operand("grad_y", grad_y, (*x.shape[:2], blocks * out), x.dtype, x.device)
    wide = torch.promote_types(x.dtype, torch.float32)
    sums = (weight.new_empty(weight.shape, dtype=wide), weight.new_empty((blocks, out), dtype=wide))
    _call(_readable(x), _readable(grad_y), weight, in_stride, out_stride, (None, None), sums)
    return sums[0].to(x.dtype), sums[1].to(x.dtype)


@_sum.register_fake
@on_one_device
def _(
    x: Tensor, weight: Tensor, grad_y: Tensor, in_stride: int, out_stride: int
) -> tuple[Tensor, Tensor]:
    return weight.new_empty(weight.shape), weight.new_empty((weight.shape[0], weight.shape[2]))


def _call(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    in_stride: int,
    out_stride: int,
    maps: tuple[Tensor | None, Tensor | None],
    sums: tuple[Tensor | None, Tensor | None],
) -> None:
    """Run the kernel: `y` is written by `maps`, or it is the gradient that `sums` are made of."""
    across = [_lies_across(side) for side in (x, y)]
    sizes = (
        *(*x.shape[:2], *weight.shape, in_stride, out_stride, *map(int, across)),
        *(torch.get_num_threads(), x.element_size()),
    )
    tensors = [x, *maps, y, *sums]
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    strides = [side.stride(at) for side, a in zip((x, y), across, strict=True) for at in (0, 1 + a)]
    function = getattr(require_library(_KERNELS), f"rifflemix_block_linear_{TYPE_NAMES[x.dtype]}")
    result = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        (ctypes.c_void_p * len(addresses))(*addresses),
        (ctypes.c_int64 * len(strides))(*strides),
    )
    checked(result)


def _wide(parameter: Tensor) -> Tensor:
    """A parameter as the kernel takes it, in the type of its sums."""
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32)).contiguous()


def _check(x: Tensor, weight: Tensor, in_stride: int, out_stride: int) -> None:
    """Raise unless the tensors fit each other, with something along all sizes but the batch."""
    if weight.dim() != 3 or weight.dtype not in TYPE_NAMES or 0 in weight.shape:
        refuse_values("weight", weight, 3, "(blocks, in, out)", TYPE_NAMES)
    blocks, width, _ = weight.shape
    if x.dim() != 3 or x.dtype not in TYPE_NAMES or 0 in x.shape[1:]:
        refuse_values("x", x, 3, "(outer, inner, blocks * in)", TYPE_NAMES)
    check_operand("x", x, (*x.shape[:2], blocks * width), weight.dtype, weight.device)
    check_count("in_stride", in_stride, blocks, "blocks")
    check_count("out_stride", out_stride, blocks, "blocks")


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.strides = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    in_stride, out_stride = ctx.strides
    grad_x = grad_weight = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_x = _apply(grad_y, weight.mT, None, out_stride, in_stride)
    if any(ctx.needs_input_grad[1:3]):
        if torch.is_grad_enabled():
            sums = eager.parameter_gradients(x, weight, grad_y, in_stride, out_stride)
        else:
            sums = _sum(x, weight, grad_y, in_stride, out_stride)
        grad_weight, grad_bias = sums[0], sums[1] if ctx.has_bias else None
    return grad_x, grad_weight, grad_bias, None, None


_apply.register_autograd(_differentiate, setup_context=_save)
