"""Checks of the arguments of registered operators.

Anybody may call these as `torch.ops.rifflemix.*`, and a kernel reads and writes where its arguments
say. Mixers and public functions have checked theirs already, so what fits must be seen to fit at
the price of a few comparisons.
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
    """Raise unless `x` has this shape, dtype and device."""
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
    """Raise for an `x` that has not this rank, one of these dtypes and something along its sizes.

    The batch may be empty.
    """
    if x.dim() != rank:
        raise bad_argument(name, f"shape {layout}", tuple(x.shape))
    if x.dtype not in dtypes:
        raise bad_argument(name, " or ".join(map(str, dtypes)), x.dtype)
    raise bad_argument(name, f"at least one of each in shape {layout}", tuple(x.shape))


def check_count(name: str, count: int, length: int, of_what: str) -> None:
    """Raise unless `count` is positive and divides `length`."""
    if count < 1 or length % count:
        raise bad_argument(name, f"a divisor of {of_what} = {length}", count)


def on_one_device(fake: _F) -> _F:
    """A fake that refuses tensors on several devices.

    One on the meta device sends the whole call to the operator's fake, whose outputs would then be
    taken for results.
    """

    @functools.wraps(fake)
    def checked(*arguments: Any, **named: Any) -> Any:
        tensors = [x for x in (*arguments, *named.values()) if isinstance(x, Tensor)]
        for x in tensors[1:]:
            if x.device != tensors[0].device:
                raise bad_argument("tensors", f"all on {tensors[0].device}", f"one on {x.device}")
        return fake(*arguments, **named)

    return checked  # type: ignore[return-value]
