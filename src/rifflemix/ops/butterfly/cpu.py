"""Block-diagonal layers in a compiled CPU kernel that reads and writes in butterfly order.

One call runs a sequence of layers with activations. The intermediate features stay in the processor
cache, and the backward pass recomputes them. The kernel is in ops/native/block_maps.cpp.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import autocast_enabled
from rifflemix.compat import has_plain_autograd, leaves_package
from rifflemix.errors import bad_argument
from rifflemix.ops.butterfly import eager
from rifflemix.ops.butterfly.maps import BlockMap
from rifflemix.ops.gradients import second_order_gradients
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

# Loaded once at import, because a traced graph must not contain the loading of a library.
_KERNELS = library()
# Without vector instructions torch's matrix products are faster.
_HAS_VECTORS = instruction_level() >= 2
_FEWEST_ROWS = 16  # fewest adjacent rows for which the kernel uses the transposed layout
# Limits of the kernel: torch is as fast for fewer numbers, or if both sides of a block are wider.
# The width limit is higher for a sequence of layers: the kernel keeps the intermediates in cache.
_LARGE = 1 << 16
_NARROW, _NARROW_IN_CHAIN = 12, 32 if instruction_level() == 4 else 16


_ACTIVATIONS = {None: 0, "gelu": 1, "elu": 2}  # as in ops/native/activations.h


class _Map(NamedTuple):
    """Settings of a layer as the kernel expects them, in the order of the kernel."""

    blocks: int
    width: int
    out: int
    in_stride: int
    out_stride: int
    has_bias: int
    activation: int

    @property
    def num_parameters(self) -> int:
        return self.blocks * (self.width + self.has_bias) * self.out


def weights_of_maps(sizes: Sequence[int]) -> list[int]:
    """Return the number of weights of each layer of `block_maps`."""
    return [one.blocks * one.width * one.out for one in _maps(sizes)]


def supports(x: Tensor, maps: Sequence[BlockMap]) -> bool:
    """Return whether the kernel supports these arguments.

    It does not during export, because an exported program must run without rifflemix.
    """
    return (
        _HAS_VECTORS
        and x.device.type == "cpu"
        and x.dtype in TYPE_NAMES
        and all(x.dtype == m.weight.dtype and 0 not in m.weight.shape for m in maps)
        and all(m.bias is None or m.bias.dtype == x.dtype for m in maps)
        and x.numel() > 0
        and not autocast_enabled("cpu")
        and not leaves_package()
        and has_plain_autograd()
    )


def pays(x: Tensor, maps: Sequence[BlockMap]) -> bool:
    """Return whether the kernel is faster than torch's matrix products."""
    widest = _NARROW if len(maps) == 1 else _NARROW_IN_CHAIN
    return x.numel() >= _LARGE and all(min(m.weight.shape[1:]) <= widest for m in maps)


def block_mlp(x: Tensor, maps: Sequence[BlockMap]) -> Tensor:
    """Run `rifflemix.ops.block_mlp`."""
    lead = x.shape[:-1]
    if x.dim() != 3:
        x = x.reshape(1, -1, x.shape[-1]) if x.dim() < 3 else x.flatten(0, -3)
    parts = [p.flatten() for m in maps for p in (m.weight, m.bias) if p is not None]
    sizes = tuple(
        size
        for m in maps
        for size in (
            *(*m.weight.shape, m.in_stride, m.out_stride),
            *(int(m.bias is not None), _ACTIVATIONS[m.activation]),
        )
    )
    y: Tensor = _apply(x, parts[0] if len(parts) == 1 else torch.cat(parts), sizes)
    return y if len(lead) == 2 else y.reshape(*lead, y.shape[-1])


def _lies_across(x: Tensor) -> bool:
    """Return whether rows instead of features are adjacent in memory."""
    return x.stride(2) != 1 and x.stride(1) == 1 and x.shape[1] >= _FEWEST_ROWS


def _readable(x: Tensor) -> Tensor:
    """Return `x` with adjacent rows or adjacent features, copied only if necessary."""
    return x if x.stride(2) == 1 or _lies_across(x) else x.contiguous()


def _empty_like(x: Tensor, features: int) -> Tensor:
    """Allocate (outer, inner, features) with the memory layout of `x`."""
    outer, inner, _ = x.shape
    if _lies_across(x):
        return x.new_empty((outer, features, inner)).transpose(1, 2)
    return x.new_empty((outer, inner, features))


@operator("rifflemix::block_maps", device_types="cpu")
def _apply(x: Tensor, parameters: Tensor, sizes: Sequence[int]) -> Tensor:
    """Apply the layers to x one after the other.

    Args:
        x: (outer, inner, features).
        parameters: 1-d tensor with the weight and the bias (if any) of each layer.
        sizes: fields of `_Map` of each layer.
    """
    maps = _check(x, parameters, sizes)
    y = in_huge_pages(_empty_like(x, maps[-1].blocks * maps[-1].out))
    x = _readable(x)
    _call(maps, (x, y, x), [x, _wide(parameters), y, None, None], is_backward=False)
    return y


@_apply.register_fake
@on_one_device
def _(x: Tensor, parameters: Tensor, sizes: Sequence[int]) -> Tensor:
    last = _maps(sizes)[-1]
    return _empty_like(x, last.blocks * last.out)


@operator("rifflemix::block_maps_backward", device_types="cpu")
def _backward(
    x: Tensor,
    parameters: Tensor,
    grad_y: Tensor,
    sizes: Sequence[int],
    needs_x: bool,
    needs_parameters: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of x and the parameters.

    A gradient that is not needed has shape (0,).
    """
    maps = _check(x, parameters, sizes)
    features = maps[-1].blocks * maps[-1].out
    check_operand("grad_y", grad_y, (*x.shape[:2], features), x.dtype, x.device)
    wide = _wide(parameters)
    x, grad_y = _readable(x), _readable(grad_y)
    grad_x = in_huge_pages(_empty_like(x, x.shape[2])) if needs_x else x.new_empty(0)
    sums = wide.new_empty(wide.shape if needs_parameters else 0)
    wanted = [grad_x if needs_x else None, sums if needs_parameters else None]
    sides = (x, grad_y, grad_x if needs_x else x)
    _call(maps, sides, [x, wide, grad_y, *wanted], is_backward=True)
    return grad_x, sums.to(x.dtype)


@_backward.register_fake
@on_one_device
def _(
    x: Tensor,
    parameters: Tensor,
    grad_y: Tensor,
    sizes: Sequence[int],
    needs_x: bool,
    needs_parameters: bool,
) -> tuple[Tensor, Tensor]:
    grad_x = _empty_like(x, x.shape[2]) if needs_x else x.new_empty(0)
    return grad_x, parameters.new_empty(parameters.shape if needs_parameters else 0)


def _call(
    maps: list[_Map],
    sides: tuple[Tensor, Tensor, Tensor],
    tensors: Sequence[Tensor | None],
    *,
    is_backward: bool,
) -> None:
    """Run the kernel on `tensors`.

    `sides` are x, then y (or its gradient), then the gradient of x (or x). The kernel needs their
    strides.
    """
    x = sides[0]
    across = [_lies_across(side) for side in sides]
    sizes = (
        *(*x.shape[:2], len(maps), *map(int, across[:2])),
        *(torch.get_num_threads(), x.element_size()),
    )
    numbers = [number for one in maps for number in one]
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    strides = [side.stride(at) for side, a in zip(sides, across, strict=True) for at in (0, 1 + a)]
    function = getattr(require_library(_KERNELS), f"rifflemix_block_maps_{TYPE_NAMES[x.dtype]}")
    result = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        (ctypes.c_int64 * len(numbers))(*numbers),
        (ctypes.c_void_p * len(addresses))(*addresses),
        (ctypes.c_int64 * len(strides))(*strides),
        ctypes.c_int64(is_backward),
    )
    checked(result)


def _wide(parameters: Tensor) -> Tensor:
    """Convert parameters to the accumulation dtype of the kernel."""
    return parameters.to(torch.promote_types(parameters.dtype, torch.float32)).contiguous()


def _maps(sizes: Sequence[int]) -> list[_Map]:
    count = len(_Map._fields)
    if not sizes or len(sizes) % count:
        raise bad_argument("sizes", f"{count} numbers for each map", f"{len(sizes)} numbers")
    return [_Map(*sizes[at : at + count]) for at in range(0, len(sizes), count)]


def _check(x: Tensor, parameters: Tensor, sizes: Sequence[int]) -> list[_Map]:
    """Check the arguments and return the layers.

    Only the batch size may be 0.
    """
    maps = _maps(sizes)
    if x.dim() != 3 or x.dtype not in TYPE_NAMES or 0 in x.shape[1:]:
        refuse_values("x", x, 3, "(outer, inner, features)", TYPE_NAMES)
    features = x.shape[2]
    for one in maps:
        if min(one[:3]) < 1 or one.blocks * one.width != features:
            raise bad_argument("sizes", f"maps of blocks that are {features} features", one[:3])
        check_count("in_stride", one.in_stride, one.blocks, "blocks")
        check_count("out_stride", one.out_stride, one.blocks, "blocks")
        if one.has_bias not in (0, 1) or one.activation not in _ACTIVATIONS.values():
            raise bad_argument("sizes", "a bias of 0 or 1, an activation of 0 to 2", one[5:])
        features = one.blocks * one.out
    count = sum(one.num_parameters for one in maps)
    check_operand("parameters", parameters, (count,), x.dtype, x.device)
    return maps


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, parameters, ctx.sizes = inputs
    ctx.save_for_backward(x, parameters)


def _differentiate(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    x, parameters = ctx.saved_tensors
    if torch.is_grad_enabled():
        formula = functools.partial(_formula, _maps(ctx.sizes))
        return (*second_order_gradients(formula, [x, parameters], [grad_y]), None)
    needs_x, needs_parameters, _ = ctx.needs_input_grad
    grad_x, grads = _backward(x, parameters, grad_y, ctx.sizes, needs_x, needs_parameters)
    return grad_x if needs_x else None, grads if needs_parameters else None, None


def _formula(maps: list[_Map], x: Tensor, parameters: Tensor) -> tuple[Tensor]:
    """Compute the output in plain torch, for second-order gradients."""
    names = {number: name for name, number in _ACTIVATIONS.items()}
    found = []
    for one, own in zip(maps, parameters.split([m.num_parameters for m in maps]), strict=True):
        weight = own[: one.blocks * one.width * one.out].view(one.blocks, one.width, one.out)
        bias = own[weight.numel() :].view(one.blocks, one.out) if one.has_bias else None
        found.append(BlockMap(weight, bias, one.in_stride, one.out_stride, names[one.activation]))
    return (eager.block_mlp(x, found),)


_apply.register_autograd(_differentiate, setup_context=_save)
