"""S4 in its diagonal variant, S4D-Lin: every channel has its own state space."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument
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
from rifflemix.ops.precision import as_default, wide


class S4(TokenMixer):
    """y = GLU(W gelu(SSM(x) + D x)), where SSM is a diagonal state space for each channel.

    h' = A h + x and SSM(x) = 2 Re(C h), discretized by zero-order hold with a learned step.
    `forward` uses a convolution by FFT. Streaming uses a recurrence with constant memory. The
    initial A[s] = -1/2 + i pi s is S4D-Lin. In the S4D paper it is comparable to S4's diagonal plus
    low-rank variant on the Long Range Arena. If bidirectional, a second C reads the later tokens.
    Parameters have the names of the released code.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` and `dropout` are
            ignored.
        state_size: complex numbers in the state of a channel. They form conjugate pairs, so half
            of them are stored.
        bidirectional: also read later tokens. Default: True unless `causal`.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an odd `state_size`, or `bidirectional=True` with `causal=True`.

    Source: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space
    Models", equations (3), (4) and (9) and section 4; S4: Gu et al. 2022, "Efficiently Modeling
    Long Sequences with Structured State Spaces".

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("s4", 64, causal=True, state_size=16)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
        >>> mixer.state_size(1000)
        1024
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="s4",
        title="S4 (diagonal: S4D-Lin)",
        paper="Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space "
        "Models",
        equations="(3), (4), (9)",
        complexity="O(N C (log N + state))",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        no_onnx=NO_ONNX,
    )

    def __init__(
        self,
        dim: int,
        *,
        state_size: int = 64,
        bidirectional: bool | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.bidirectional = both_directions(bidirectional, self.causal)
        pairs, odd = divmod(check_integer("state_size", state_size, 2), 2)
        if odd:
            raise bad_argument("state_size", "an even number", state_size)
        self.log_dt = nn.Parameter(random_log_steps(self.dim))
        self.log_A_real = nn.Parameter(torch.full((self.dim, pairs), math.log(0.5)))
        counts = as_default(torch.arange(pairs))
        self.A_imag = nn.Parameter(math.pi * counts.repeat(self.dim, 1))
        directions = 2 if self.bidirectional else 1
        # Real and imaginary parts of standard complex normal numbers.
        self.C = nn.Parameter(torch.randn(directions, self.dim, pairs, 2) / math.sqrt(2.0))
        self.D = nn.Parameter(torch.randn(self.dim))
        self.output_linear = nn.Linear(self.dim, 2 * self.dim)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return self._read_out(mix_valid_tokens(self._convolve, x, key_padding_mask), x)

    def _convolve(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self._convolve_with(self._kernel(), x)

    def _convolve_with(self, kernel: ExponentialKernel, x: Tensor) -> Tensor:
        forward, backward = kernel.values(x.shape[1]), None
        if self.bidirectional:
            forward, backward = forward.split(self.dim)
        return fft_convolution(wide(x), forward, backward, backward_from="next")

    def _kernel(self) -> ExponentialKernel:
        """Build C kernels, or 2 C if bidirectional (forward first)."""
        dt = wide(self.log_dt).exp().unsqueeze(-1)
        a = ComplexPair(-wide(self.log_A_real).exp(), wide(self.A_imag))
        exponent = a.scaled(dt)
        weight = ComplexPair.from_last(wide(self.C)).times(exponent.expm1().over(a)).scaled(2.0)
        rows = len(self.C)
        return ExponentialKernel(
            exponent.real.repeat(rows, 1),
            weight.real.flatten(0, 1),
            exponent.imag.repeat(rows, 1),
            weight.imag.flatten(0, 1),
        )

    def _read_out(self, y: Tensor, x: Tensor) -> Tensor:
        y = (y + wide(x) * wide(self.D)).to(x.dtype)
        return F.glu(self.output_linear(F.gelu(y)), -1)

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create the states of all channels before the first token.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens; the state does not depend on it.

        Returns:
            "state" (B, C, state_size / 2, 2), complex numbers in float32 or wider.
        """
        return {"state": self._kernel().init_state(batch_size).to(device)}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = self._kernel().step(x_t, state["state"])
        return self._read_out(y, x_t), {"state": after}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = fill_valid_tokens(self._fill, x, key_padding_mask)
        return self._read_out(y, x), state

    def _fill(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        kernel = self._kernel()
        tokens, _ = last_tokens(x, mask, x.shape[1])
        return self._convolve_with(kernel, x), {"state": kernel.state_after(tokens)}

    def no_weight_decay(self) -> set[str]:
        return {"log_dt", "log_A_real", "A_imag", "D"}

    def extra_repr(self) -> str:
        size = 2 * self.A_imag.shape[1]
        return f"dim={self.dim}, state_size={size}, bidirectional={self.bidirectional}"
