"""Checks of the arguments of this family's registered operators; see `rifflemix.ops.operands`."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.operands import check_count, check_operand, refuse_values

_INDICES = (torch.uint16, torch.int32, torch.int64)
_UINT16_PLACES = 1 << 16


def check_tokens(
    name: str,
    x: Tensor,
    dtypes: Collection[torch.dtype],
    mask: Tensor | None,
    steps: Tensor | None,
) -> torch.Size:
    """Check tokens (B, N, C), mask and steps; return the shape."""
    shape = x.shape
    if len(shape) != 3 or x.dtype not in dtypes or shape[1] < 1 or shape[2] < 1:
        refuse_values(name, x, 3, "(B, N, C)", dtypes)
    if mask is not None:
        check_operand("mask", mask, (shape[0], shape[1]), torch.bool, x.device)
    # Every shift runs this check, so valid steps cost no further function call.
    if steps is not None and (
        steps.shape != shape[2:] or steps.dtype is not torch.int64 or steps.device != x.device
    ):
        check_operand("steps", steps, (shape[2],), torch.int64, x.device)
    return shape


def check_sort(
    x: Tensor,
    dtypes: Collection[torch.dtype],
    num_groups: int,
    leaders: int,
    descending: Tensor | None,
    mask: Tensor | None,
    steps: Tensor | None,
    name: str = "x",
) -> None:
    """Check the arguments of a sort.

    `num_groups` must divide the tokens of `x`, and `leaders` must divide its channels.
    `leaders` is the number of heads with a reference channel; 0 skips the check of the heads.
    """
    _, length, channels = check_tokens(name, x, dtypes, mask, steps)
    if num_groups < 1 or length % num_groups:
        check_count("num_groups", num_groups, length, "the number of tokens N")
    if leaders and (leaders < 1 or channels % leaders):
        check_count("heads", leaders, channels, "the number of channels C")
    if descending is not None:
        check_operand("descending", descending, (channels,), torch.bool, x.device)


def check_pairs(x: Tensor) -> None:
    """Check that `x` has an even number of tokens."""
    if x.shape[1] % 2:
        raise bad_argument("x", "an even number of tokens N", x.shape[1])


def check_index_dtype(dtype: torch.dtype | None, length: int) -> None:
    """Check that an index dtype (or None) can represent all positions."""
    if dtype is None:
        return
    if dtype not in _INDICES:
        raise bad_argument("index_dtype", "uint16, int32 or int64", dtype)
    if dtype is torch.uint16 and length > _UINT16_PLACES:
        raise bad_argument("index_dtype", f"int32 or int64 for {length:,} tokens", dtype)


def check_index(index: Tensor, x: Tensor) -> None:
    """Check the shape, device and dtype of an index for `x`."""
    dtype = index.dtype if index.dtype in _INDICES else torch.int64
    check_operand("index", index, x.shape, dtype, x.device)


def check_swaps(swaps: Tensor, x: Tensor) -> None:
    """Check that `swaps` is (B, N/2, C) bool, for pairs of tokens."""
    check_pairs(x)
    batch, length, channels = x.shape
    check_operand("swaps", swaps, (batch, length // 2, channels), torch.bool, x.device)


def check_positions(name: str, positions: Tensor, x: Tensor) -> None:
    """Check that `positions` is (B, 1, C) int64; torch checks the values."""
    batch, _, channels = x.shape
    check_operand(name, positions, (batch, 1, channels), torch.int64, x.device)
