"""Inputs of `linear_recurrence` for every variant of the recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VARIANTS = (
    "linear attention",
    "scalar decay",
    "vector decay",
    "delta rule",
    "gated delta rule",
    "vector decay and delta rule",
    "erase",
    "vector decay and erase",
)


def recurrence(
    variant: str,
    shape: tuple[int, int, int],
    sizes: tuple[int, int] = (3, 2),
    dtype: torch.dtype = torch.float64,
    decay: float = 2.0,
) -> dict[str, Any]:
    """Draw the arguments of a call with keys of unit norm.

    Args:
        variant: one of `VARIANTS`.
        shape: B, H, N.
        sizes: features D of keys and E of values.
        dtype: dtype of all tensors.
        decay: largest absolute logarithm of a decay.
    """
    d, e = sizes
    q, k, v = (torch.randn(*shape, size, dtype=dtype) for size in (d, d, e))
    k = torch.nn.functional.normalize(k, dim=-1)
    found: dict[str, Any] = {"q": q, "k": k, "v": v}
    if "scalar" in variant or "gated" in variant:
        found["log_decay"] = -decay * torch.rand(shape, dtype=dtype)
    if "vector" in variant:
        found["log_decay"] = -decay * torch.rand(*shape, d, dtype=dtype)
    if "delta" in variant:
        found["beta"] = 2.0 * torch.rand(shape, dtype=dtype)
    if "erase" in variant:
        rate = torch.rand(*shape, d, dtype=dtype)
        key = torch.nn.functional.normalize(torch.randn(*shape, d, dtype=dtype), dim=-1)
        found["erase"] = (key * rate, key)
    return found


def tensors(arguments: dict[str, Any]) -> list[Tensor]:
    """List all tensors of the arguments."""
    found = [x for x in arguments.values() if isinstance(x, Tensor)]
    return [*found, *arguments.get("erase", ())]


def with_tensors(arguments: dict[str, Any], values: list[Tensor]) -> dict[str, Any]:
    """Return the arguments with other tensors, in the order of `tensors`."""
    names = [name for name, x in arguments.items() if isinstance(x, Tensor)]
    found = {**arguments, **dict(zip(names, values, strict=False))}
    if "erase" in arguments:
        found["erase"] = tuple(values[-2:])
    return found


def tokens(arguments: dict[str, Any], index: Any) -> dict[str, Any]:
    """Select tokens of all sequences."""
    return with_tensors(arguments, [x[:, :, index] for x in tensors(arguments)])


def sequence(arguments: dict[str, Any], at: int) -> dict[str, Any]:
    """Select a sequence of the batch."""
    return with_tensors(arguments, [x[at : at + 1] for x in tensors(arguments)])
