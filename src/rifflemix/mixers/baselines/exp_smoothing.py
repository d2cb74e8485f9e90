"""Complex exponential smoothing in a gated two-layer network: the mixer of ETSMLP."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer
from rifflemix.mixers._convolution.long_convolution import NO_ONNX, fft_convolution
from rifflemix.mixers._convolution.state_space import (
    ComplexPair,
    ExponentialKernel,
    both_directions,
    random_log_steps,
)
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import fill_valid_tokens, last_tokens, mix_valid_tokens
from rifflemix.ops.precision import as_default, wide, wide_default

# Values of the released code: the ring of the initial smoothing factors, and their largest modulus.
_LEAST_MODULUS, _GREATEST_MODULUS, _GREATEST_PHASE = 0.1, 0.9, math.pi
_LARGEST_FACTOR = 0.9999


class ComplexSmoothing(nn.Module):
    """Re(h) + omega x with h[n] = f h[n - 1] + (1 - f) e^beta x[n], for each channel.

    The factor f = lambda^alpha is a complex number inside the unit circle. `log_delta` is the
    logarithm of log lambda, and the parameter `alpha` is the logarithm of the exponent, so
    log f = e^(log_delta + alpha). If bidirectional, a second set of parameters smooths backwards,
    from the last token to the token after the current one.

    Args:
        dim: channels C.
        bidirectional: also smooth over later tokens.

    Source: see `ExpSmoothing`.
    """

    def __init__(self, dim: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.dim, self.bidirectional = dim, bidirectional
        rows = 2 * dim if bidirectional else dim
        low, high = _LEAST_MODULUS**2, _GREATEST_MODULUS**2
        kind = wide_default()
        log_modulus = 0.5 * torch.empty(rows, dtype=kind).uniform_(low, high).log()
        phase = torch.empty(rows, dtype=kind).uniform_(0.0, _GREATEST_PHASE)
        log_factor = torch.complex(log_modulus, phase).log()
        self.log_delta = nn.Parameter(as_default(torch.view_as_real(log_factor).clone()))
        self.alpha = nn.Parameter(random_log_steps(rows, 1).repeat(1, 2))
        self.beta = nn.Parameter(torch.empty(rows, 2).normal_(std=0.2))
        self.omega = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Smooth tokens (B, N, C). Padding must be last and zero."""
        return self._smooth(self.kernel(), x)

    def fill(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run `forward`. Also return the state after the unmasked tokens."""
        kernel = self.kernel()
        tokens, _ = last_tokens(x, mask, x.shape[1])
        return self._smooth(kernel, x), kernel.state_after(tokens)

    def _smooth(self, kernel: ExponentialKernel, x: Tensor) -> Tensor:
        forward, backward = kernel.values(x.shape[1]), None
        if self.bidirectional:
            forward, backward = forward.split(self.dim)
        y = fft_convolution(wide(x), forward, backward, backward_from="next")
        return (y + wide(x) * wide(self.omega)).to(x.dtype)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Smooth one token (B, C) per sequence.

        Returns:
            The outputs (B, C) and the next state.
        """
        y, state = self.kernel().step(x_t, state)
        return (y + wide(x_t) * wide(self.omega)).to(x_t.dtype), state

    def kernel(self) -> ExponentialKernel:
        """Build C kernels, or 2 C if bidirectional (forward first), of one exponential each."""
        log_factor = ComplexPair.from_last(wide(self.log_delta) + wide(self.alpha)).exp()
        log_factor = ComplexPair(
            log_factor.real.clamp(max=math.log(_LARGEST_FACTOR)), log_factor.imag
        )
        scale = ComplexPair.from_last(wide(self.beta)).exp()
        weight = log_factor.expm1().times(scale).scaled(-1.0)
        parts = (log_factor.real, weight.real, log_factor.imag, weight.imag)
        return ExponentialKernel(*(part.unsqueeze(-1) for part in parts))

    def no_weight_decay(self) -> set[str]:
        return {"log_delta", "alpha", "beta", "omega"}


class ExpSmoothing(TokenMixer):
    """y = (W_o relu(smoothing(W_i x))) sigmoid(W_g x): the ETSMLP layer with its gate.

    The streaming state is one complex number per hidden channel.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` and `dropout` are
            ignored.
        hidden_dim: number of smoothed channels. Default: C.
        gate: use the sigmoid gate (ETSMLP-Gate). False is plain ETSMLP.
        bidirectional: also smooth over later tokens. Default: True unless `causal`.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: a size below 1, or `bidirectional=True` with `causal=True`.

    Source: Chu and Lin 2024, "Incorporating Exponential Smoothing into MLP: a Simple but Effective
    Sequence Model", complex exponential smoothing and its gate, with the choices of the released
    code.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("exp_smoothing", 64, hidden_dim=128)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="exp_smoothing",
        title="Exponential smoothing (ETSMLP)",
        paper="Chu and Lin 2024, Incorporating Exponential Smoothing into MLP: a Simple but "
        "Effective Sequence Model",
        equations="complex exponential smoothing, gate",
        complexity="O(N C log N)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        no_onnx=NO_ONNX,
    )

    def __init__(
        self,
        dim: int,
        *,
        hidden_dim: int | None = None,
        gate: bool = True,
        bidirectional: bool | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        hidden = check_integer("hidden_dim", self.dim if hidden_dim is None else hidden_dim, 1)
        both = both_directions(bidirectional, self.causal)
        self.k_proj = nn.Linear(self.dim, hidden)
        self.cets = ComplexSmoothing(hidden, bidirectional=both)
        self.out_proj = nn.Linear(hidden, self.dim)
        self.g_proj = nn.Linear(self.dim, self.dim) if check_bool("gate", gate) else None
        for linear in (self.k_proj, self.out_proj, self.g_proj):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        hidden = self._hidden(x, key_padding_mask)
        return self._read_out(
            mix_valid_tokens(lambda k, _: self.cets(k), hidden, key_padding_mask), x
        )

    def _hidden(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        hidden: Tensor = self.k_proj(x)
        if key_padding_mask is None:
            return hidden
        return torch.where(key_padding_mask.unsqueeze(-1), 0.0, hidden)

    def _read_out(self, smoothed: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.out_proj(F.relu(smoothed))
        return y if self.g_proj is None else y * self.g_proj(x).sigmoid()

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create the smoothed values before the first token.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens; the state does not depend on it.

        Returns:
            "state" (B, hidden, 1, 2), complex numbers in float32 or wider.
        """
        return {"state": self.cets.kernel().init_state(batch_size).to(device)}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = self.cets.step(self.k_proj(x_t), state["state"])
        return self._read_out(y, x_t), {"state": after}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self._hidden(x, key_padding_mask)
        y, state = fill_valid_tokens(self._fill, hidden, key_padding_mask)
        return self._read_out(y, x), state

    def _fill(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = self.cets.fill(hidden, mask)
        return y, {"state": state}
