"""Short convolution in compiled CPU kernels, which read and write every token once.

The gradient of the tokens is a convolution with the factors in reversed order. The kernels are in
ops/native/short_convolution.cpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rifflemix.compat import runs_kernels
from rifflemix.errors import bad_argument
from rifflemix.ops.convolution import eager
from rifflemix.ops.define import define
from rifflemix.ops.native import (
    TYPE_NAMES,
    in_huge_pages,
    library,
    raise_on_error,
    require_library,
)

# Loaded once at import, because a traced graph must not contain the loading of a library.
_KERNELS = library()


def supports(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether the kernels support these arguments.

    They do not during export, because an exported program must run without rifflemix.
    """
    return (
        _KERNELS is not None
        and x.device.type == "cpu"
        and x.dtype in TYPE_NAMES
        and weight.device == x.device
        and (bias is None or bias.device == x.device)
        and runs_kernels()
    )


def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, first: int, length: int
) -> Tensor:
    """See `rifflemix.ops.convolution.backends.short_convolution`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    weight, bias = weight.to(wide), None if bias is None else bias.to(wide)
    return _convolve(x, weight, bias, first, length)


def _check_length(*arguments: Any) -> dict[str, int]:
    length = arguments[-1]
    if length < 0:
        raise bad_argument("length", "a number of outputs, at least 0", length)
    return {"OUT": length}


def _check_taps(*arguments: Any) -> None:
    taps = arguments[-1]
    if taps < 1:
        raise bad_argument("taps", "at least 1", taps)


def _empty(x: Tensor, length: int) -> Tensor:
    return x.new_empty((x.shape[0], length, x.shape[2]))


def _gradient(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    first: int,
    length: int,
    needs: Sequence[bool],
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    of_x = of_weight = of_bias = None
    if needs[0]:
        of_x = _convolve(grad, weight.flip(0), None, 1 - len(weight) - first, x.shape[1])
    if needs[1] or needs[2]:
        of_weight, of_bias = _weight_gradient(x, grad, first, len(weight))
    return of_x, of_weight, None if bias is None else of_bias


@define(
    "short_convolution",
    shapes="x: B N C, weight: K C wide, bias: C wide",
    dtypes=TYPE_NAMES,
    check=_check_length,
    like=lambda x, weight, bias, first, length: _empty(x, length),
    saves="x weight bias first length needs",
    backward=_gradient,
    formula=eager.short_convolution,
    device_types="cpu",
)
def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, first: int, length: int) -> Tensor:
    """Compute y[n, c] = bias[c] + sum over i of weight[i, c] x[n + first + i, c]."""
    x = _with_adjacent_channels(x)
    y = in_huge_pages(_empty(x, length))
    _call("short_convolution", x, y, first, len(weight), weight.contiguous(), bias)
    return y


@define(
    "short_convolution_weights",
    shapes="x: B N C, grad: B OUT C",
    dtypes=TYPE_NAMES,
    check=_check_taps,
    like=lambda x, grad, first, taps: _empty_sums(x, taps),
    device_types="cpu",
)
def _weight_gradient(x: Tensor, grad: Tensor, first: int, taps: int) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the factors (taps, C) and of the bias (C,)."""
    sums = _empty_sums(x, taps)
    tensors = _with_adjacent_channels(x), _with_adjacent_channels(grad)
    _call("short_convolution_weights", *tensors, first, taps, *sums)
    return sums


def _empty_sums(x: Tensor, taps: int) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((taps, x.shape[2]), dtype=wide), x.new_empty((x.shape[2],), dtype=wide)


def _with_adjacent_channels(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def _call(
    kernel: str,
    x: Tensor,
    y: Tensor,
    first: int,
    taps: int,
    weight: Tensor,
    bias: Tensor | None,
) -> None:
    """Run a kernel on the tokens and the outputs, or the gradient of the outputs."""
    sizes = (*x.shape, y.shape[1], taps, first, *x.stride()[:2], *y.stride()[:2])
    sizes = (*sizes, torch.get_num_threads())
    function = getattr(require_library(_KERNELS), f"rifflemix_{kernel}_{TYPE_NAMES[x.dtype]}")
    bias = None if bias is None else bias.contiguous()
    addresses = [None if t is None else t.data_ptr() for t in (x, y, weight, bias)]
    raise_on_error(
        function(
            (ctypes.c_int64 * len(sizes))(*sizes),
            *[ctypes.c_void_p(address) for address in addresses],
        )
    )
