"""Damped exponential moving average with several dimensions per channel."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer, check_tokens
from rifflemix.errors import bad_argument
from rifflemix.mixers._convolution.exponential_kernel import ExponentialKernel
from rifflemix.mixers._convolution.fft_convolution import fft_convolution, wide
from rifflemix.mixers.padding import last_tokens


class DampedEMA(nn.Module):
    """SiLU(EMA(x) + omega x) with `ema_dim` damped moving averages per channel.

    h[n] = q h[n - 1] + p beta x[n] and EMA(x)[n] = gamma . h[n] / sqrt(ema_dim), with
    p = sigmoid(delta) and q = 1 - p sigmoid(alpha). If bidirectional, a second set of parameters
    runs backwards from the last token, and both directions include the current token.

    Parameters have the names and shapes of the released code at the commit of the paper. Later
    commits swap the roles of alpha and delta, and start the second direction at the next token.

    Args:
        dim: channels C.
        ema_dim: moving averages per channel.
        bidirectional: also average over later tokens.

    Raises:
        InputError: a size below 1.

    Source: Ma et al. 2023, "Mega: Moving Average Equipped Gated Attention", equations (3)-(5).
    """

    def __init__(self, dim: int, ema_dim: int = 16, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.ema_dim = check_integer("ema_dim", ema_dim, 1)
        self.bidirectional = check_bool("bidirectional", bidirectional)
        rows = 2 * self.dim if bidirectional else self.dim
        self.delta = nn.Parameter(torch.empty(rows, self.ema_dim, 1).normal_(std=0.2))
        self.alpha = nn.Parameter(torch.empty(rows, self.ema_dim, 1).normal_(std=0.2))
        signs = 1.0 - 2.0 * (torch.arange(self.ema_dim).unsqueeze(-1) % 2)
        self.beta = nn.Parameter(signs + torch.empty(rows, self.ema_dim, 1).normal_(std=0.02))
        self.gamma = nn.Parameter(torch.randn(rows, self.ema_dim))
        self.omega = nn.Parameter(torch.randn(self.dim))

    def forward(self, x: Tensor) -> Tensor:
        """Average the tokens of each sequence.

        Args:
            x: (B, N, C) tokens. Padding must be last and zero.

        Returns:
            (B, N, C).

        Raises:
            InputError: wrong shape or dtype.
        """
        check_tokens("x", x)
        self._check_channels(x)
        return self._averaged(self._kernel(), x)

    def fill(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run `forward`. Also return the averages after the unmasked tokens."""
        kernel = self._kernel()
        tokens, _ = last_tokens(x, mask, x.shape[1])
        return self._averaged(kernel, x), kernel.state_after(tokens)

    def _averaged(self, kernel: ExponentialKernel, x: Tensor) -> Tensor:
        tokens = wide(x)
        forward, backward = kernel.values(x.shape[1]), None
        if self.bidirectional:
            forward, backward = forward.split(self.dim)
        y = fft_convolution(tokens, forward, backward, backward_from="present")
        return F.silu(y + tokens * wide(self.omega)).to(x.dtype)

    def init_state(self, batch_size: int) -> Tensor:
        """Create the averages before the first token: (B, C, ema_dim) zeros."""
        return self._kernel().init_state(batch_size)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Average one token (B, C) per sequence.

        Returns:
            The outputs (B, C) and the next state.

        Raises:
            InputError: wrong shape or dtype, or `bidirectional=True`.
        """
        if self.bidirectional:
            raise bad_argument("bidirectional", "False to go step by step", True)
        check_tokens("x_t", x_t, rank=2, layout="(B, C)")
        self._check_channels(x_t)
        y, state = self._kernel().step(x_t, state)
        return F.silu(y + wide(x_t) * wide(self.omega)).to(x_t.dtype), state

    def _kernel(self) -> ExponentialKernel:
        """Build C kernels, or 2 C if bidirectional (forward first)."""
        p = wide(self.delta).squeeze(-1).sigmoid()
        q = 1.0 - p * wide(self.alpha).squeeze(-1).sigmoid()
        readout = wide(self.gamma) / math.sqrt(self.ema_dim)
        return ExponentialKernel(q.log(), p * wide(self.beta).squeeze(-1) * readout)

    def _check_channels(self, x: Tensor) -> None:
        if x.shape[-1] != self.dim:
            raise bad_argument("x", f"{self.dim} channels", tuple(x.shape))

    def no_weight_decay(self) -> set[str]:
        """Return the names of the coefficients of the averages."""
        return {"delta", "alpha", "beta", "gamma", "omega"}

    def extra_repr(self) -> str:
        return f"dim={self.dim}, ema_dim={self.ema_dim}, bidirectional={self.bidirectional}"
