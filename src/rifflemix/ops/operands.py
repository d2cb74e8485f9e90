"""Checks of the arguments of registered operators.

Any code can call the operators as `torch.ops.rifflemix.*`, and wrong arguments would make a kernel
read or write invalid memory. Mixers and public functions have already checked their arguments. So
for valid arguments these checks must cost only a few comparisons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from rifflemix.errors import bad_argument

_F = TypeVar("_F", bound=Callable[..., Any])


def check_operand(
    name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """Check the shape, dtype and device of `x`."""
    if x.shape == shape and x.dtype is dtype and x.device == device:
        return
    if x.shape != shape:
        raise bad_argument(name, f"shape {tuple(shape)}", tuple(x.shape))
    if x.dtype is not dtype:
        raise bad_argument(name, f"dtype {dtype}", x.dtype)
    raise bad_argument(name, f"device {device}", x.device)


def refuse_values(
    name: str, x: Tensor, rank: int, layout: str, dtypes: Iterable[torch.dtype]
) -> NoReturn:
    """Raise the error for a wrong rank, dtype or size of `x`.

    Only the batch size may be 0.
    """
    if x.dim() != rank:
        raise bad_argument(name, f"shape {layout}", tuple(x.shape))
    if x.dtype not in dtypes:
        raise bad_argument(name, " or ".join(map(str, dtypes)), x.dtype)
    raise bad_argument(name, f"at least one of each in shape {layout}", tuple(x.shape))


def check_count(name: str, count: int, length: int, of_what: str) -> None:
    """Check that `count` is positive and divides `length`."""
    if count < 1 or length % count:
        raise bad_argument(name, f"a divisor of {of_what} = {length}", count)


def on_one_device(fake: _F) -> _F:
    """Wrap a fake implementation so that it rejects tensors on different devices.

    If one tensor is on the meta device, torch runs the fake implementation of the operator. Without
    this check, the outputs of the fake implementation would pass for results.
    """

    @functools.wraps(fake)
    def checked(*arguments: Any, **named: Any) -> Any:
        tensors = [x for x in (*arguments, *named.values()) if isinstance(x, Tensor)]
        for x in tensors[1:]:
            if x.device != tensors[0].device:
                raise bad_argument("tensors", f"all on {tensors[0].device}", f"one on {x.device}")
        return fake(*arguments, **named)

    return checked  # type: ignore[return-value]
