"""Variants of Sparse Sinkhorn attention that the compiled kernels support."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "padded": {"padded": True},
    "causal padded": {"causal": True, "padded": True},
    "argmax rule": {"padded": True, "padding_rule": "argmax"},
    "mixture": {"mixture": True},
    "causal mixture padded": {"causal": True, "mixture": True, "padded": True},
}


def settings_of(form: dict[str, Any], batch: int, n: int, block: int) -> dict[str, Any]:
    """Create the settings of a variant.

    With padding, one sample is all padding, and another sample has a padded last block.
    """
    settings = {name: value for name, value in form.items() if name != "padded"}
    if form.get("padded"):
        padding = torch.rand(batch, n * block) > 0.6
        padding[0] = True
        padding[1:2, (n - 1) * block :] = True
        settings["key_padding_mask"] = padding
    return settings


def causal_sort(sort: Tensor) -> Tensor:
    """Return `sort` with zeros on and above the block diagonal."""
    n = sort.shape[3]
    blocks = torch.arange(sort.shape[2], device=sort.device) // (sort.shape[2] // n)
    return sort * (torch.arange(n, device=sort.device) < blocks[:, None])


DOUBLE = torch.float64
BATCH, HEADS, WIDTH = 2, 2, 3
