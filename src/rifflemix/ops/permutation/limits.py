"""Checks that the CPU and GPU kernels share."""

from __future__ import annotations

from torch import Tensor

from rifflemix.checks import check_divides


def check_sort(x: Tensor, num_groups: int, leaders: int = 0) -> None:
    """Check that groups divide the tokens, and heads with a reference divide the channels."""
    _, length, channels = x.shape
    if num_groups < 1 or length % num_groups:
        check_divides("num_groups", num_groups, length, "the number of tokens N")
    if leaders and (leaders < 0 or channels % leaders):
        check_divides("heads", leaders, channels, "the number of channels C")
