"""Short causal convolution of each channel, for whole sequences and streams."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.mixers.padding import take_tokens


class ShortConvolution(nn.Module):
    """y[n] = bias + sum over i < kernel_size of weight[kernel_size - 1 - i] x[n - i].

    The parameters have the names, shapes and initial values of `torch.nn.Conv1d`.

    Args:
        channels: number of channels, each with its own kernel.
        kernel_size: taps of a kernel.
        bias: add a bias to each channel.
    """

    def __init__(self, channels: int, kernel_size: int, *, bias: bool) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        bound = 1.0 / math.sqrt(kernel_size)
        start = torch.empty(channels, 1, kernel_size).uniform_(-bound, bound)
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """Convolve tokens (B, N, C); `past` contains the kernel_size - 1 tokens before them."""
        length = x.shape[1]
        x = extended(x, past, self.kernel_size - 1)
        weight = self.weight.to(x.dtype)
        y = x[:, :length] * weight[:, 0, 0]
        for tap in range(1, self.kernel_size):
            y = torch.addcmul(y, x[:, tap : tap + length], weight[:, 0, tap])
        return y if self.bias is None else y + self.bias.to(x.dtype)

    def start(self, batch_size: int, device: Any, dtype: Any) -> Tensor:
        """Return zeros in place of the tokens before a stream: (B, kernel_size - 1, C)."""
        shape = (batch_size, self.kernel_size - 1, len(self.weight))
        return torch.zeros(shape, device=device, dtype=dtype)

    def past_after(self, x: Tensor, mask: Tensor | None, past: Tensor | None) -> Tensor:
        """Return the state of a stream after the tokens; see `past_after`."""
        return past_after(x, mask, past, self.kernel_size - 1)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, kernel_size={self.kernel_size}, bias={self.bias is not None}"


def past_after(x: Tensor, mask: Tensor | None, past: Tensor | None, count: int) -> Tensor:
    """Return the last `count` valid tokens of a stream, after zeros if it has fewer.

    Args:
        x: (B, N, C) tokens.
        mask: (B, N) bool, True = padding at the end; None in the middle of a stream.
        past: (B, count, C) tokens before `x`; None at the start.
        count: number of tokens to keep.

    Returns:
        (B, count, C).
    """
    if mask is None:
        return extended(x, past, count)[:, x.shape[1] :]
    first = (~mask).sum(1, keepdim=True) - count
    return take_tokens(x, first + torch.arange(count, device=x.device), 1)


def extended(x: Tensor, past: Tensor | None, count: int) -> Tensor:
    """Prepend `past`, or `count` zeros."""
    return F.pad(x, (0, 0, count, 0)) if past is None else torch.cat((past.to(x.dtype), x), 1)
