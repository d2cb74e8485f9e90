"""Convolution kernels as sums of exponentials, and the equivalent recurrence."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.compat import take_first
from rifflemix.mixers._convolution.fft_convolution import wide
from rifflemix.mixers.padding import blocks_and_size, missing_tokens
from rifflemix.ops.precision import without_autocast

# An exponent is split into the start of a block and a position in the block. A kernel of N values
# then needs memory for N / 64 + 64 powers of each ratio instead of N.
_BLOCK = 64


class ExponentialKernel(NamedTuple):
    """k[c, l] = sum over s of Re(w[c, s] exp(l a[c, s])) for C channels of S exponentials.

    Equivalent to the recurrence h[n] = exp(a) h[n - 1] + x[n], y[n] = sum over s of Re(w h[n]).
    All tensors are float32 or wider. The imaginary parts are both given or both None.

    Attributes:
        log_ratio: (C, S) real parts of a, at most 0.
        weight: (C, S) real parts of w.
        phase: (C, S) imaginary parts of a, in radians.
        weight_imag: (C, S) imaginary parts of w.
    """

    log_ratio: Tensor
    weight: Tensor
    phase: Tensor | None = None
    weight_imag: Tensor | None = None

    def values(self, length: int) -> Tensor:
        """Compute the kernel (C, length) at l = 0 .. length - 1."""
        like = self.weight
        blocks, size = blocks_and_size(_BLOCK, length)
        positions = torch.arange(size, device=like.device, dtype=like.dtype)
        starts = torch.arange(blocks, device=like.device, dtype=like.dtype) * size
        left = torch.exp(starts.unsqueeze(-1) * self.log_ratio.unsqueeze(-2))
        right = torch.exp(self.log_ratio.unsqueeze(-1) * positions)
        if self.phase is None or self.weight_imag is None:
            left = left * like.unsqueeze(-2)
        else:
            angle = starts.unsqueeze(-1) * self.phase.unsqueeze(-2)
            cos, sin = left * angle.cos(), left * angle.sin()
            real, imag = like.unsqueeze(-2), self.weight_imag.unsqueeze(-2)
            # Re(u v) = Re u Re v - Im u Im v, as one matrix product.
            left = torch.cat((cos * real - sin * imag, -cos * imag - sin * real), -1)
            angle = self.phase.unsqueeze(-1) * positions
            right = torch.cat((right * angle.cos(), right * angle.sin()), -2)
        with without_autocast(like):
            return take_first((left @ right).flatten(-2), length, -1)

    def init_state(self, batch_size: int) -> Tensor:
        """Create h before the first token: (B, C, S), or (B, C, S, 2) for complex ratios."""
        shape = (batch_size, *self.weight.shape)
        return self.weight.new_zeros(shape if self.phase is None else (*shape, 2))

    def state_after(self, x: Tensor) -> Tensor:
        """Compute the state after tokens x (B, N, C), with zeros first as padding."""
        _, size = blocks_and_size(_BLOCK, x.shape[1])
        missing = missing_tokens(size, x.shape[1])
        blocks = F.pad(wide(x), (0, 0, missing, 0)).unflatten(1, (-1, size))
        within = self._powers(torch.arange(size, device=x.device).flip(0))
        between = self._powers(size * torch.arange(blocks.shape[1], device=x.device).flip(0))
        with without_autocast(x):
            parts = [torch.einsum("bkmc,csm->bkcs", blocks, power) for power in within]
            sums = [[_join_blocks(part, power) for power in between] for part in parts]
        if self.phase is None:
            return sums[0][0]
        (real_cos, real_sin), (imag_cos, imag_sin) = sums
        return torch.stack((real_cos - imag_sin, real_sin + imag_cos), -1)

    def _powers(self, exponents: Tensor) -> tuple[Tensor, ...]:
        """Raise the ratios to E exponents: real and (if complex) imaginary parts, (C, S, E)."""
        exponents = exponents.to(self.weight.dtype)
        size = (self.log_ratio.unsqueeze(-1) * exponents).exp()
        if self.phase is None:
            return (size,)
        angle = self.phase.unsqueeze(-1) * exponents
        return size * angle.cos(), size * angle.sin()

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Process one token (B, C) per sequence.

        Returns:
            The outputs (B, C) and the next state.
        """
        token = wide(x_t).unsqueeze(-1)
        ratio = self.log_ratio.exp()
        if self.phase is None or self.weight_imag is None:
            state = ratio * state + token
            return (self.weight * state).sum(-1), state
        cos, sin = ratio * self.phase.cos(), ratio * self.phase.sin()
        real, imag = state.unbind(-1)
        real, imag = cos * real - sin * imag + token, cos * imag + sin * real
        y = (self.weight * real - self.weight_imag * imag).sum(-1)
        return y, torch.stack((real, imag), -1)


def _join_blocks(part: Tensor, power: Tensor) -> Tensor:
    """Add the sums of each block (B, blocks, C, S), scaled by their decay (C, S, blocks)."""
    return torch.einsum("bkcs,csk->bcs", part, power)
