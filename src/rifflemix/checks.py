"""Argument checks shared by the operator families."""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
import sys
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from rifflemix.compat import has_values, leaves_package, sizes_are_tensors, values_can_be_read
from rifflemix.errors import bad_argument

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes that operators support. Narrower dtypes of torch are for storage only."""
# Tuples of types: torch 2.8 cannot trace unions of types.
_NUMBERS = (numbers.Real, torch.SymInt, torch.SymFloat)


def check_tokens(name: str, x: Tensor, *, rank: int = 3, layout: str = "(B, N, C)") -> None:
    """Raise unless `x` is a dense floating-point tensor with `rank` dimensions."""
    if isinstance(x, Tensor) and not x.is_nested and x.dim() != rank:
        raise bad_argument(name, f"shape {layout}", tuple(x.shape))
    if (
        not isinstance(x, Tensor)
        or x.dtype not in FLOATS
        or x.layout != torch.strided
        or x.is_nested
    ):
        check_floating(name, x, layout)


def check_padding_mask(mask: Tensor | None, x: Tensor, token_dim: int = 1) -> None:
    """Raise unless `mask` is None or a valid padding mask of `x`.

    A valid mask is a (B, N) bool tensor on the device of `x`, True = padding.
    """
    if mask is None:
        return
    expected = (x.shape[0], x.shape[token_dim])
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise bad_argument("key_padding_mask", "a bool tensor, True = padding", got)
    check_dense("key_padding_mask", mask)
    if tuple(mask.shape) != expected:
        raise bad_argument("key_padding_mask", f"shape (B, N) = {expected}", tuple(mask.shape))
    if mask.device != x.device:
        raise bad_argument("key_padding_mask", f"device {x.device}", mask.device)


def check_offsets(cu_seqlens: Tensor, length: int, device: torch.device) -> list[int]:
    """Read the offsets of the sequences in a packed batch of `length` tokens.

    Raises:
        InputError: not an int32 or int64 tensor of increasing numbers from 0 to `length`, or a
            traced program.
    """
    expected = "an int32 or int64 tensor of shape (sequences + 1,)"
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.is_nested:
        raise bad_argument("cu_seqlens", expected, shown(cu_seqlens))
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise bad_argument("cu_seqlens", expected, cu_seqlens.dtype)
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise bad_argument("cu_seqlens", expected, f"shape {tuple(cu_seqlens.shape)}")
    if cu_seqlens.device.type != "cpu" and cu_seqlens.device != device:
        places = "the CPU" if device.type == "cpu" else f"x's device {device}, or the CPU"
        raise bad_argument("cu_seqlens", places, cu_seqlens.device)
    if leaves_package():
        raise bad_argument(
            "cu_seqlens",
            "None in an exported or traced program, which would support these lengths only",
            shown(cu_seqlens),
        )
    if not has_values(cu_seqlens):
        raise bad_argument("cu_seqlens", "a tensor with values", "a tensor without values")
    offsets: list[int] = cu_seqlens.tolist()
    if offsets[0] != 0:
        raise bad_argument("cu_seqlens", "0 at its start", offsets[0])
    if offsets[-1] != length:
        raise bad_argument("cu_seqlens", f"the number of tokens {length} at its end", offsets[-1])
    for start, end in pairwise(offsets):
        if end < start:
            raise bad_argument("cu_seqlens", "numbers that do not decrease", f"{end} after {start}")
    return offsets


def check_integer(
    name: str, value: Any, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return an integer as an int; raise if out of bounds.

    Python and NumPy integers are accepted; other types raise. Without a maximum, the value must
    fit in 64 bits, like sizes in torch. Symbolic integers of a traced graph do not change.
    """
    number = _as_integer(value)
    if maximum is None and type(number) is int and not -(2**63) <= number < 2**63:
        raise bad_argument(name, "an integer that int64 holds", number)
    if (
        number is None
        or (minimum is not None and number < minimum)
        or (maximum is not None and number > maximum)
    ):
        expected = "an integer"
        if maximum is not None:
            expected += f" from {minimum} to {maximum}"
        elif minimum is not None:
            expected += f" of at least {minimum}"
        raise bad_argument(name, expected, shown(value) if number is None else number)
    return number


def check_integers(name: str, values: Any, minimum: int | None = None) -> tuple[int, ...]:
    """Return a sequence of integers as a tuple of ints.

    One-dimensional arrays and tensors are also accepted.
    """
    if isinstance(values, Tensor) and not values.is_meta:
        values = values.tolist()
    if isinstance(values, str | bytes | Tensor) or not hasattr(values, "__iter__"):
        raise bad_argument(name, "a sequence of integers", shown(values))
    return tuple([check_integer(name, value, minimum) for value in values])


def check_divides(name: str, divisor: Any, length: int, of_what: str, hint: str = "") -> int:
    """Return `divisor` as an int; raise unless a positive divisor of `length`."""
    number = check_integer(name, divisor)
    if number < 1 or length % number:
        raise bad_argument(name, f"a divisor of {of_what} = {length}", number, hint)
    return number


def check_layer(layer_index: Any, num_layers: Any) -> tuple[int, int]:
    """Return both numbers as ints; raise unless 0 <= `layer_index` < `num_layers`."""
    layers = check_integer("num_layers", num_layers, 1)
    index = check_integer("layer_index", layer_index)
    if not 0 <= index < layers:
        raise bad_argument("layer_index", f"0 to num_layers - 1 = {layers - 1}", index)
    return index, layers


def check_positive(name: str, value: Any) -> float:
    """Return `value`; raise unless it is a finite number above 0."""
    end = sys.float_info.max if type(value) is int else math.inf
    if not is_number(value) or not 0 < value < end:
        raise bad_argument(name, "a finite number above 0", shown(value))
    return _as_float(value)


def check_probability(name: str, value: Any) -> float:
    """Return `value`; raise unless it is a number in [0, 1)."""
    if not is_number(value) or not 0.0 <= value < 1.0:
        raise bad_argument(name, "a probability in [0, 1)", shown(value))
    return _as_float(value)


def check_bool(name: str, value: Any) -> bool:
    """Return `value`; raise unless it is True or False."""
    if not isinstance(value, bool):
        raise bad_argument(name, "True or False", shown(value))
    return value


def check_dense(name: str, x: Tensor) -> None:
    """Raise InputError for a nested tensor or a layout other than strided."""
    if x.is_nested:
        raise bad_argument(name, "a dense tensor", "a nested tensor")
    if x.layout != torch.strided:
        raise bad_argument(name, "a dense tensor", f"one of layout {x.layout}", "use to_dense()")


def check_floating(name: str, x: Any, layout: object) -> None:
    """Raise unless `x` is a dense floating-point tensor.

    `layout` is the expected shape in messages.
    """
    if not isinstance(x, Tensor):
        raise bad_argument(name, f"a tensor of shape {layout}", type(x).__name__)
    if x.is_nested:
        hint = "pad it with to_padded_tensor(0.0) and mark the padding in key_padding_mask"
        raise bad_argument(name, f"a dense tensor of shape {layout}", "a nested tensor", hint)
    check_float_dtype(name, x.dtype)
    check_dense(name, x)


def check_float_dtype(name: str, dtype: torch.dtype) -> None:
    """Raise InputError unless operators support this dtype."""
    if not dtype.is_floating_point:
        raise bad_argument(name, "a floating-point dtype", dtype)
    if dtype not in FLOATS:
        raise bad_argument(name, "float16, bfloat16, float32 or float64", dtype, "cast it first")


def check_like_parameters(name: str, x: Tensor, layer: nn.Module) -> None:
    """Raise unless `x` has the device and dtype of the layer's parameters.

    With autocast, dtypes may differ, except if one of them is float64.
    """
    # Finds the first parameter like `next(layer.parameters())`, five times as fast.
    parameter: nn.Parameter | None = None
    parts = [layer]
    while parameter is None and parts:
        part = parts.pop()
        for parameter in part._parameters.values():
            if parameter is not None:
                break
        parts += filter(None, reversed(part._modules.values()))
    if parameter is None:
        return
    if x.device != parameter.device:
        if parameter.is_meta and any("_hf_hook" in vars(part) for part in layer.modules()):
            return  # accelerate loads the weights when the submodules are called
        hint = "load the mixer's weights first" if parameter.is_meta else ""
        raise bad_argument(name, f"the mixer's device {parameter.device}", x.device, hint)
    if x.dtype == parameter.dtype:
        return
    is_cast = torch.float64 not in (x.dtype, parameter.dtype)  # autocast does not cast float64
    if not (is_cast and autocast_enabled(x.device.type)):
        raise bad_argument(
            name, f"the mixer's dtype {parameter.dtype}", x.dtype, "cast one of the two"
        )


def check_like(name: str, tensor: Tensor, like: Tensor, like_name: str) -> None:
    """Raise unless `tensor` has the device and dtype of `like`.

    With autocast, dtypes may differ.
    """
    if tensor.device != like.device:
        raise bad_argument(name, f"device {like.device} of {like_name}", tensor.device)
    if tensor.dtype != like.dtype and not autocast_enabled(like.device.type):
        raise bad_argument(name, f"dtype {like.dtype} of {like_name}", tensor.dtype)


def is_number(value: Any) -> bool:
    """Return whether `value` is a Python, NumPy or symbolic real number.

    A bool is not a number.
    """
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """Return a short text of `value` for a message; strings are quoted."""
    if isinstance(value, Tensor) and value.is_nested:
        return "a nested tensor"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to print very long integers
        return "a number of thousands of digits"


def _as_integer(value: Any) -> int | None:
    if isinstance(value, (int, torch.SymInt)):  # operator.index would fix a symbolic size
        return None if isinstance(value, bool) else cast(int, value)
    if isinstance(value, Tensor):
        is_size = sizes_are_tensors() and value.dtype == torch.int64 and not value.dim()
        return int(value) if is_size else None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _as_float(value: Any) -> float:
    """Convert to float unless symbolic: torch does not accept all NumPy numbers."""
    known = isinstance(value, (float, torch.SymInt, torch.SymFloat))
    return cast(float, value) if known else float(value)


def autocast_enabled(device_type: str) -> bool:
    """Return whether autocast is available and enabled for a device type."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def check_room(name: str, position: Tensor, max_length: int | None, kind: str) -> None:
    """Raise InputError unless a stream has room for another token.

    Args:
        name: argument of the caller that contains the token.
        position: (B,) int64, tokens of each sequence so far. Traced graphs cannot read it.
        max_length: maximum number of tokens; None allows any number.
        kind: the object that has the maximum, such as "mixer"; for the message.
    """
    if max_length is None or not position.numel():
        return
    if torch.compiler.is_compiling() or not (has_values(position) and values_can_be_read()):
        return
    first, last = map(int, position.aminmax())
    if first < 0:
        raise bad_argument("state", "positions of at least 0", first)
    if last >= max_length:
        raise bad_argument(
            name,
            f"at most max_length = {max_length} tokens in a stream",
            f"token {last + 1}",
            f"build the {kind} with a larger max_length",
        )
