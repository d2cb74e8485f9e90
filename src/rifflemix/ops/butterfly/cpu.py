"""Block-diagonal maps by a compiled kernel, which reads and writes features in butterfly order.

Maps one after the other, with activations between, are one call: what lies between them stays in
the processor's cache, and backward finds it again. The kernel is in ops/native/block_maps.cpp.
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

# Looked up once: a graph that is being traced must not meet the loading of a library.
_KERNELS = library()
# Without vector instructions torch's matrix products are faster.
_HAS_VECTORS = instruction_level() >= 2
_FEWEST_ROWS = 16  # that lie side by side, for which the kernel reads them so
# For fewer numbers, or where blocks are wider on both sides, torch's products are as fast: those of
# a single map, and those of a chain, which the kernel spares what lies between.
_LARGE = 1 << 16
_NARROW, _NARROW_IN_CHAIN = 12, 32 if instruction_level() == 4 else 16


_ACTIVATIONS = {None: 0, "gelu": 1, "elu": 2}  # as in ops/native/activations.h


class _Map(NamedTuple):
    """Of a map, what the kernel takes beside its parameters, in its order."""

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
    """How many weights each map of `block_maps` has."""
    return [one.blocks * one.width * one.out for one in _maps(sizes)]


def supports(x: Tensor, maps: Sequence[BlockMap]) -> bool:
    """Whether the kernel can run this.

    An exported program must run where this library is not.
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
    """Whether the kernel is faster than torch's matrix products."""
    widest = _NARROW if len(maps) == 1 else _NARROW_IN_CHAIN
    return x.numel() >= _LARGE and all(min(m.weight.shape[1:]) <= widest for m in maps)


def block_mlp(x: Tensor, maps: Sequence[BlockMap]) -> Tensor:
    """See `rifflemix.ops.block_mlp`."""
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


@operator("rifflemix::block_maps", device_types="cpu")
def _apply(x: Tensor, parameters: Tensor, sizes: Sequence[int]) -> Tensor:
    """Maps of x, one after the other.

    Args:
        x: (outer, inner, features).
        parameters: of each map the weight, then the bias if it has one; one row of numbers.
        sizes: of each map the fields of `_Map`.
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
    """Gradients of x and of the parameters; nothing, in shape (0,), where not needed."""
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
    """Run the kernel on `tensors`; `sides` are x, y or its gradient, and the gradient of x."""
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
    """Parameters as the kernel takes them, in the type of its sums."""
    return parameters.to(torch.promote_types(parameters.dtype, torch.float32)).contiguous()


def _maps(sizes: Sequence[int]) -> list[_Map]:
    count = len(_Map._fields)
    if not sizes or len(sizes) % count:
        raise bad_argument("sizes", f"{count} numbers for each map", f"{len(sizes)} numbers")
    return [_Map(*sizes[at : at + count]) for at in range(0, len(sizes), count)]


def _check(x: Tensor, parameters: Tensor, sizes: Sequence[int]) -> list[_Map]:
    """The maps; raise unless all fits, with something along all sizes but the batch."""
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
    """The same in plain torch."""
    names = {number: name for name, number in _ACTIVATIONS.items()}
    found = []
    for one, own in zip(maps, parameters.split([m.num_parameters for m in maps]), strict=True):
        weight = own[: one.blocks * one.width * one.out].view(one.blocks, one.width, one.out)
        bias = own[weight.numel() :].view(one.blocks, one.out) if one.has_bias else None
        found.append(BlockMap(weight, bias, one.in_stride, one.out_stride, names[one.activation]))
    return (eager.block_mlp(x, found),)


_apply.register_autograd(_differentiate, setup_context=_save)
