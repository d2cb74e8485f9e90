"""Checks of the arguments of this family's registered operators; see `rifflemix.ops.operands`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops.operands import check_operand, refuse_values
from rifflemix.ops.statistics.common import accumulation_dtype

_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))


def check_heads(w: Tensor, temperature: Tensor, mask: Tensor | None) -> None:
    """Check `w` (B, H, N, D), temperature (H,) and mask (B, N)."""
    if w.dim() != 4 or w.dtype not in _DTYPES:
        refuse_values("w", w, 4, "(B, H, N, D)", _DTYPES)
    batch, heads, length, features = w.shape
    if heads < 1 or length < 1 or features < 1:
        refuse_values("w", w, 4, "(B, H, N, D)", _DTYPES)
    dtype = accumulation_dtype(w.dtype)
    # A valid temperature costs no further function call.
    if (
        temperature.shape != (heads,)
        or temperature.dtype is not dtype
        or temperature.device != w.device
    ):
        check_operand("temperature", temperature, (heads,), dtype, w.device)
    if mask is not None:
        check_operand("key_padding_mask", mask, (batch, length), torch.bool, w.device)


def check_bias(bias: Tensor | None, w: Tensor) -> None:
    """Check that `bias` is None, or (B or 1, H, N) in the accumulation dtype."""
    if bias is None:
        return
    samples = 1 if bias.shape[:1] == (1,) else w.shape[0]
    shape = (samples, *w.shape[1:3])
    check_operand("bias", bias, shape, accumulation_dtype(w.dtype), w.device)


def check_all_or_none(names: Sequence[str], values: Sequence[Tensor | None]) -> None:
    """Check that either all or no `values` are given."""
    given = sum(value is not None for value in values)
    if given not in (0, len(values)):
        raise bad_argument(", ".join(names), "all of them, or none", f"{given} of {len(values)}")


def check_statistics(w: Tensor, **statistics: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Check pairs (tensor or None, expected shape) in the accumulation dtype of `w`."""
    dtype, device = accumulation_dtype(w.dtype), w.device
    for name, (value, shape) in statistics.items():
        if value is not None:
            check_operand(name, value, shape, dtype, device)


def check_ends(w: Tensor, **ends: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Check pairs (tensor or None, expected shape) in the dtype of the sums of a state."""
    for name, (value, shape) in ends.items():
        if value is not None:
            check_operand(name, value, shape, torch.float64, w.device)


def check_gradient(name: str, grad: Tensor, w: Tensor) -> None:
    """Check the shape, dtype and device of the output gradient."""
    check_operand(name, grad, w.shape, w.dtype, w.device)
