"""Settings and argument checks of the permutation family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import (
    check_dense,
    check_divides,
    check_integers,
    check_padding_mask,
    check_tokens,
)
from rifflemix.compat import has_values, values_can_be_read
from rifflemix.errors import bad_argument, check_choice

Permuted = tuple[Tensor, Tensor | None]
"""Values (B, N, C) and the index that gathers them; the index is None if not requested."""


class SortSpec(NamedTuple):
    """Settings of a group sort.

    Attributes:
        num_groups: groups K, a divisor of N.
        by_reference: True: sort by the rank order of the first channel of each head. False: sort
            every channel by its own values.
        heads: number of contiguous heads, each of C / heads channels.
        descending: (C,) bool, channels to sort in descending order. None: all channels ascending.
    """

    num_groups: int
    by_reference: bool = True
    heads: int = 1
    descending: Tensor | None = None


ORDERS = ("reference", "ascending", "descending")
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_values(x: Tensor, key_padding_mask: Tensor | None) -> None:
    """Check that `x` is (B, N, C), floating-point and not empty."""
    check_tokens("x", x)
    if x.shape[1] < 1 or x.shape[2] < 1:
        raise bad_argument("x", "at least one token and one channel", tuple(x.shape))
    check_padding_mask(key_padding_mask, x)


def check_groups(x: Tensor, num_groups: int, heads: int = 1) -> tuple[int, int]:
    """Check that groups divide the tokens and heads divide the channels."""
    groups = check_divides("num_groups", num_groups, x.shape[1], "the number of tokens N")
    return groups, check_divides("heads", heads, x.shape[2], "the number of channels C")


def check_steps(steps: Tensor | Sequence[int], x: Tensor, name: str = "steps") -> Tensor:
    """Check the steps and return them on x's device.

    Steps are settings, so they may be on any device.
    """
    if torch.compiler.is_compiling() and hasattr(steps, "__array__"):
        steps = torch.as_tensor(steps)  # a traced graph contains NumPy arrays as tensors
    if not isinstance(steps, Tensor):
        integers = check_integers(name, steps)
        steps = torch.tensor(integers, dtype=torch.int64, device=x.device)
    check_dense(name, steps)
    if steps.dtype not in _INTEGERS:
        raise bad_argument(name, "integers", steps.dtype)
    if tuple(steps.shape) != (x.shape[2],):
        raise bad_argument(name, f"shape (C,) = ({x.shape[2]},)", tuple(steps.shape))
    if steps.is_meta and not x.is_meta:
        raise bad_argument(name, "integers with values", "a tensor on the meta device")
    return steps.to(x.device, torch.int64)


def check_range(name: str, integers: Tensor, low: int, high: int | None) -> None:
    """Check the range of integers, except in a traced graph."""
    if not has_values(integers) or not values_can_be_read():
        return
    smallest, largest = map(int, integers.aminmax())
    if smallest < low or (high is not None and largest > high):
        expected = (
            f"integers of at least {low}" if high is None else f"integers from {low} to {high}"
        )
        raise bad_argument(name, expected, smallest if smallest < low else largest)


def sort_spec(
    x: Tensor,
    num_groups: int,
    heads: int,
    order: str | None,
    descending: Tensor | None = None,
) -> SortSpec:
    """Check the settings of a sort and combine them."""
    num_groups, heads = check_groups(x, num_groups, heads)
    if descending is None:
        order = "reference" if order is None else order
        check_choice("order", order, ORDERS)
        if order == "descending":
            descending = torch.ones(x.shape[2], dtype=torch.bool, device=x.device)
        return SortSpec(num_groups, order == "reference", heads, descending)
    if order not in (None, "ascending"):
        raise bad_argument("order", '"ascending" beside descending', repr(order))
    if not isinstance(descending, Tensor) or descending.dtype != torch.bool:
        got = descending.dtype if isinstance(descending, Tensor) else type(descending).__name__
        raise bad_argument("descending", "a bool tensor, True = descending", got)
    check_dense("descending", descending)
    if tuple(descending.shape) != (x.shape[2],):
        raise bad_argument("descending", f"shape (C,) = ({x.shape[2]},)", tuple(descending.shape))
    return SortSpec(num_groups, False, heads, descending.to(x.device))


def check_sort(x: Tensor, num_groups: int, leaders: int = 0) -> None:
    """Check that groups divide the tokens, and heads with a reference divide the channels."""
    _, length, channels = x.shape
    if num_groups < 1 or length % num_groups:
        check_divides("num_groups", num_groups, length, "the number of tokens N")
    if leaders and (leaders < 0 or channels % leaders):
        check_divides("heads", leaders, channels, "the number of channels C")
