"""Parts of state spaces: complex numbers, scans, exponential kernels and damped averages."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer, check_tokens
from rifflemix.compat import take_first
from rifflemix.errors import bad_argument
from rifflemix.mixers._convolution.long_convolution import fft_convolution
from rifflemix.mixers.padding import last_tokens
from rifflemix.mixers.token_groups import full_groups, missing_tokens
from rifflemix.ops.precision import wide, without_autocast


class ComplexPair(NamedTuple):
    """Real and imaginary parts: two tensors of the same shape."""

    real: Tensor
    imag: Tensor

    @classmethod
    def from_last(cls, x: Tensor) -> ComplexPair:
        """Split a tensor (..., 2) into its real and imaginary parts."""
        return cls(x[..., 0], x[..., 1])

    def stacked(self) -> Tensor:
        """Stack both parts to (..., 2): the inverse of `from_last`."""
        return torch.stack(self, -1)

    def plus(self, other: Self) -> ComplexPair:
        """Add elementwise."""
        return ComplexPair(self.real + other.real, self.imag + other.imag)

    def times(self, other: Self) -> ComplexPair:
        """Multiply elementwise."""
        return ComplexPair(
            self.real * other.real - self.imag * other.imag,
            self.real * other.imag + self.imag * other.real,
        )

    def scaled(self, factor: Tensor | float) -> ComplexPair:
        """Multiply by real numbers."""
        return ComplexPair(self.real * factor, self.imag * factor)

    def over(self, other: Self) -> ComplexPair:
        """Divide elementwise."""
        square = other.real.square() + other.imag.square()
        return self.times(type(other)(other.real / square, -other.imag / square))

    def exp(self) -> ComplexPair:
        """Compute the exponential."""
        size = self.real.exp()
        return ComplexPair(size * self.imag.cos(), size * self.imag.sin())

    def expm1(self) -> ComplexPair:
        """Compute the exponential minus 1 without losing digits near 0."""
        growth = self.real.expm1()
        real = growth * self.imag.cos() - 2.0 * (0.5 * self.imag).sin().square()
        return ComplexPair(real, (growth + 1.0) * self.imag.sin())


def linear_scan(ratio: ComplexPair, inputs: ComplexPair) -> ComplexPair:
    """Compute h[n] = ratio h[n - 1] + inputs[n], with h[-1] = 0.

    The scan joins neighbors in pairs, solves the recurrence over pairs (half as long) and fills in
    the positions between them: O(N) work in O(log N) steps.

    Args:
        ratio: (P,) coefficients.
        inputs: (B, N, P) inputs.

    Returns:
        (B, N, P) states.

    Source: Blelloch 1990, "Prefix Sums and Their Applications", section 1.4.
    """
    length = inputs.real.shape[1]
    if length == 1:
        return inputs
    even = _positions(inputs, slice(0, None, 2))
    odd = _positions(inputs, slice(1, None, 2))
    pairs = ratio.times(_positions(even, slice(0, length // 2))).plus(odd)
    at_odd = linear_scan(ratio.times(ratio), pairs)
    before = _positions(at_odd, slice(0, (length - 1) // 2))
    later = ratio.times(before).plus(_positions(even, slice(1, None)))
    return ComplexPair(
        _interleave(torch.cat((even.real[:, :1], later.real), 1), at_odd.real),
        _interleave(torch.cat((even.imag[:, :1], later.imag), 1), at_odd.imag),
    )


def _positions(x: ComplexPair, index: slice) -> ComplexPair:
    return ComplexPair(x.real[:, index], x.imag[:, index])


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """Merge tokens 0, 2, ... and 1, 3, ...; `even` has the length of `odd`, or one more."""
    count = odd.shape[1]
    pairs = torch.stack((even[:, :count], odd), 2).flatten(1, 2)
    return torch.cat((pairs, even[:, count:]), 1)


_SHORTEST_STEP, _LONGEST_STEP = 1e-3, 1e-1


def both_directions(bidirectional: bool | None, causal: bool) -> bool:
    """Return `bidirectional`, or `not causal` if it is None.

    Raises:
        InputError: `bidirectional` and `causal` are both True.
    """
    if bidirectional is None:
        return not causal
    if check_bool("bidirectional", bidirectional) and causal:
        raise bad_argument("bidirectional", "False with causal=True", True)
    return bidirectional


def random_log_steps(*shape: int) -> Tensor:
    """Draw logarithms of steps, uniform from log(0.001) to log(0.1), as in released code."""
    return torch.empty(shape).uniform_(math.log(_SHORTEST_STEP), math.log(_LONGEST_STEP))


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
        blocks, size = full_groups(_BLOCK, length)
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
        _, size = full_groups(_BLOCK, x.shape[1])
        missing = missing_tokens(size, x.shape[1])
        blocks = F.pad(wide(x), (0, 0, missing, 0)).unflatten(1, (-1, size))
        within = self._powers(torch.arange(size, device=x.device).flip(0))
        between = self._powers(size * torch.arange(blocks.shape[1], device=x.device).flip(0))
        with without_autocast(x):
            parts = [torch.einsum("bkmc,csm->bkcs", blocks, power) for power in within]
            # Sums of each block, scaled by their decay.
            sums = [[torch.einsum("bkcs,csk->bcs", p, power) for power in between] for p in parts]
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
        """Run `forward`. Also return the state of the averages after the last valid token."""
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
            raise bad_argument("bidirectional", "False for streaming", True)
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
        return {"delta", "alpha", "beta", "gamma", "omega"}

    def extra_repr(self) -> str:
        return f"dim={self.dim}, ema_dim={self.ema_dim}, bidirectional={self.bidirectional}"
