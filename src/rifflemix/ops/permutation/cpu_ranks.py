"""The rank filter in compiled CPU kernels. The backward pass needs one byte per value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.ops.permutation import eager
from rifflemix.ops.permutation.cpu_common import call_kernel, define_on_cpu, empty_output

_MOST_WINDOW = 256  # tokens, so that a distance within the window fits a byte


def filters(window_size: int) -> bool:
    """Return whether the kernel supports this window size."""
    return window_size <= _MOST_WINDOW


def rank_filter(x: Tensor, ranks: Tensor, window_size: int) -> Tensor:
    """Select the token of each channel's rank among the last `window_size` tokens."""
    wants_grad = torch.is_grad_enabled() and x.requires_grad
    y: Tensor = _rank_filter(x, ranks, window_size, wants_grad)[0]
    return y


def _check_window(x: Tensor, other: Tensor, window_size: int, *_: Any) -> None:
    check_integer("window_size", window_size, 1, _MOST_WINDOW)


@define_on_cpu(
    "rank_filter_back",
    shapes="grad: B N C, back: B N C uint8",
    check=_check_window,
    like="grad",
    saves="back",
    backward=lambda back, grad: eager.take_back(grad, back.to(torch.int64)),
)
def _collect(grad: Tensor, back: Tensor, window_size: int) -> Tensor:
    """Compute the gradient of `eager.take_back`.

    It sums, for each token, over all positions that selected the token.
    """
    out = empty_output(grad)
    call_kernel("rank_filter_back", grad, window_size, y=out, index=back)
    return out


def _empty_outputs(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    keep = settings[-1]
    return x.new_empty(x.shape), x.new_empty(x.shape if keep else (0,), dtype=torch.uint8)


@define_on_cpu(
    "rank_filter",
    shapes="x: B N C, ranks: C int64",
    check=_check_window,
    like=_empty_outputs,
    outputs="y | back",
    saves="back window_size",
    backward=lambda back, window_size, grad: _collect(grad, back, window_size),
)
def _rank_filter(x: Tensor, ranks: Tensor, window_size: int, keep: bool) -> tuple[Tensor, Tensor]:
    """Return the values and their distances to the source tokens, (B, N, C) uint8.

    The distances are empty unless `keep` is True.
    """
    y = empty_output(x)
    back = empty_output(x, None if keep else (0,), torch.uint8)
    call_kernel("rank_filter", x, window_size, y=y, index=back, steps=ranks)
    return y, back
