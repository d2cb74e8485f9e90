"""Block-diagonal layers in a compiled CPU kernel that reads and writes in butterfly order.

One call runs a sequence of layers with activations. The intermediate features stay in the processor
cache, and the backward pass recomputes them. The kernel is in ops/native/block_maps.cpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import autocast_enabled, check_divides
from rifflemix.compat import runs_kernels
from rifflemix.errors import bad_argument
from rifflemix.ops.butterfly import eager
from rifflemix.ops.butterfly.eager import BlockMap
from rifflemix.ops.define import define
from rifflemix.ops.native import (
    TYPE_NAMES,
    in_huge_pages,
    instruction_level,
    library,
    raise_on_error,
    require_library,
)

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
        and runs_kernels()
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


def _check(x: Tensor, parameters: Tensor, *settings: Any) -> dict[str, int]:
    """Check the settings of the layers; return the numbers of parameters and outputs."""
    (sizes,) = (value for value in settings if isinstance(value, list | tuple))
    maps, features = _maps(sizes), x.shape[2]
    for one in maps:
        if min(one[:3]) < 1 or one.blocks * one.width != features:
            raise bad_argument("sizes", f"maps of blocks that are {features} features", one[:3])
        check_divides("in_stride", one.in_stride, one.blocks, "blocks")
        check_divides("out_stride", one.out_stride, one.blocks, "blocks")
        if one.has_bias not in (0, 1) or one.activation not in _ACTIVATIONS.values():
            raise bad_argument("sizes", "a bias of 0 or 1, an activation of 0 to 2", one[5:])
        features = one.blocks * one.out
    return {"P": sum(one.num_parameters for one in maps), "OUT": features}


def _empty_gradients(x: Tensor, parameters: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    *_, needs_x, needs_parameters = settings
    grad_x = _empty_like(x, x.shape[2]) if needs_x else x.new_empty(0)
    return grad_x, parameters.new_empty(parameters.shape if needs_parameters else 0)


@define(
    "block_maps_backward",
    shapes="x: OUTER INNER IN, parameters: P, grad_y: OUTER INNER OUT",
    dtypes=TYPE_NAMES,
    check=_check,
    like=_empty_gradients,
    device_types="cpu",
)
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
    maps = _maps(sizes)
    wide = _wide(parameters)
    x, grad_y = _readable(x), _readable(grad_y)
    grad_x = in_huge_pages(_empty_like(x, x.shape[2])) if needs_x else x.new_empty(0)
    sums = wide.new_empty(wide.shape if needs_parameters else 0)
    wanted = [grad_x if needs_x else None, sums if needs_parameters else None]
    sides = (x, grad_y, grad_x if needs_x else x)
    _call(maps, sides, [x, wide, grad_y, *wanted], is_backward=True)
    return grad_x, sums.to(x.dtype)


def _gradient(
    x: Tensor,
    parameters: Tensor,
    sizes: Sequence[int],
    needs: tuple[bool, ...],
    grad_y: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    grad_x, grads = _backward(x, parameters, grad_y, sizes, *needs[:2])
    return grad_x if needs[0] else None, grads if needs[1] else None


def _formula(x: Tensor, parameters: Tensor, sizes: Sequence[int]) -> Tensor:
    names = {number: name for name, number in _ACTIVATIONS.items()}
    found = []
    maps = _maps(sizes)
    for one, own in zip(maps, parameters.split([m.num_parameters for m in maps]), strict=True):
        weight = own[: one.blocks * one.width * one.out].view(one.blocks, one.width, one.out)
        bias = own[weight.numel() :].view(one.blocks, one.out) if one.has_bias else None
        found.append(BlockMap(weight, bias, one.in_stride, one.out_stride, names[one.activation]))
    return eager.block_mlp(x, found)


@define(
    "block_maps",
    shapes="x: OUTER INNER IN, parameters: P",
    dtypes=TYPE_NAMES,
    check=_check,
    like=lambda x, _, sizes: _empty_like(x, _maps(sizes)[-1].blocks * _maps(sizes)[-1].out),
    saves="x parameters sizes needs",
    backward=_gradient,
    formula=_formula,
    device_types="cpu",
)
def _apply(x: Tensor, parameters: Tensor, sizes: Sequence[int]) -> Tensor:
    """Apply the layers to x one after the other.

    Args:
        x: (outer, inner, features).
        parameters: 1-d tensor with the weight and the bias (if any) of each layer.
        sizes: fields of `_Map` of each layer.
    """
    maps = _maps(sizes)
    y = in_huge_pages(_empty_like(x, maps[-1].blocks * maps[-1].out))
    x = _readable(x)
    _call(maps, (x, y, x), [x, _wide(parameters), y, None, None], is_backward=False)
    return y


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
    raise_on_error(result)


def _wide(parameters: Tensor) -> Tensor:
    """Convert parameters to the accumulation dtype of the kernel."""
    return parameters.to(torch.promote_types(parameters.dtype, torch.float32)).contiguous()


def _maps(sizes: Sequence[int]) -> list[_Map]:
    count = len(_Map._fields)
    if not sizes or len(sizes) % count:
        raise bad_argument("sizes", f"{count} numbers for each map", f"{len(sizes)} numbers")
    return [_Map(*sizes[at : at + count]) for at in range(0, len(sizes), count)]
