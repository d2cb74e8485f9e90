"""S5: one state space with many inputs and outputs, computed by a scan."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument
from rifflemix.mixers._convolution.state_space import (
    ComplexPair,
    both_directions,
    linear_scan,
    random_log_steps,
)
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import fill_valid_tokens, last_tokens, mix_valid_tokens
from rifflemix.ops.precision import as_default, wide, wide_default, without_autocast

# Minimum damping: a state space diverges if its eigenvalues cross the imaginary axis.
_LEAST_DECAY = 1e-4


class S5(TokenMixer):
    """y = g sigmoid(W g) with g = gelu(SSM(x)). All channels share one diagonal state space.

    h' = Lambda h + B x and SSM(x) = 2 Re(C h) + D x. Zero-order hold discretizes them with a
    learned step for each number of the state. `forward` uses a parallel scan over the tokens.
    Streaming uses a recurrence with constant memory. Lambda starts as the eigenvalues of the normal
    part of HiPPO-LegS, in `num_blocks` copies. If bidirectional, a second C reads the states of a
    scan from the end. Parameters have the names of the released code.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` and `dropout` are
            ignored.
        state_size: number P of complex numbers in the state. They form conjugate pairs, so half of
            them are stored.
        num_blocks: copies J of the initial matrix. 2 J must divide `state_size`.
        bidirectional: also read later tokens. Default: True unless `causal`.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: sizes that do not fit, or `bidirectional=True` with `causal=True`.

    Source: Smith et al. 2023, "Simplified State Space Layers for Sequence Modeling", equations
    (2), (3), (5) and (6), section 3.2 and appendix B.1.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("s5", 64, causal=True, state_size=64, num_blocks=4)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
        >>> mixer.state_size(1000)
        64
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="s5",
        title="S5",
        paper="Smith et al. 2023, Simplified State Space Layers for Sequence Modeling",
        equations="(2), (3), (5), (6)",
        complexity="O(N C state)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        one_length="its scan halves the sequence until one token is left: a graph has these steps",
    )

    def __init__(
        self,
        dim: int,
        *,
        state_size: int = 64,
        num_blocks: int = 1,
        bidirectional: bool | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.bidirectional = both_directions(bidirectional, self.causal)
        state_size = check_integer("state_size", state_size, 2)
        num_blocks = check_integer("num_blocks", num_blocks, 1)
        if state_size % (2 * num_blocks):
            raise bad_argument(
                "state_size", f"a multiple of 2 num_blocks = {2 * num_blocks}", state_size
            )
        eigenvalues, basis = _hippo_eigenvalues(state_size, num_blocks)
        self.Lambda_re = nn.Parameter(as_default(eigenvalues.real.clone()))
        self.Lambda_im = nn.Parameter(as_default(eigenvalues.imag.clone()))
        deviation = 1.0 / math.sqrt(state_size)
        kind = wide_default()
        b = basis.mH @ (deviation * torch.randn(state_size, self.dim, dtype=kind)).to(basis.dtype)
        self.B = nn.Parameter(as_default(torch.view_as_real(b.resolve_conj()).contiguous()))
        directions = 2 if self.bidirectional else 1
        drawn = torch.randn(directions, self.dim, state_size, 2, dtype=kind)
        c = deviation * torch.view_as_complex(drawn)
        self.C = nn.Parameter(as_default(torch.view_as_real(c @ basis)))
        self.D = nn.Parameter(torch.randn(self.dim))
        self.log_step = nn.Parameter(random_log_steps(state_size // 2))
        self.out2 = nn.Linear(self.dim, self.dim)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return self._read_out(mix_valid_tokens(self._scan, x, key_padding_mask), x)

    def _scan(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute 2 Re(C h) at all positions. Both directions use the same state space."""
        ratio, inputs = self._discretised(x)
        y = self._observed(linear_scan(ratio, inputs), 0)
        if self.bidirectional:
            from_end = ComplexPair(inputs.real.flip(1), inputs.imag.flip(1))
            y = y + self._observed(linear_scan(ratio, from_end), 1).flip(1)
        return y

    def _discretised(self, x: Tensor) -> tuple[ComplexPair, ComplexPair]:
        """Return exp(Lambda step) (P / 2,) and the state inputs of the tokens (..., C)."""
        eigenvalues = ComplexPair(
            wide(self.Lambda_re).clamp(max=-_LEAST_DECAY), wide(self.Lambda_im)
        )
        exponent = eigenvalues.scaled(wide(self.log_step).exp())
        scale = exponent.expm1().over(eigenvalues)
        real, imag = wide(self.B).unbind(-1)
        with without_autocast(x):
            inputs = ComplexPair(F.linear(wide(x), real), F.linear(wide(x), imag))
        return exponent.exp(), scale.times(inputs)

    def _observed(self, state: ComplexPair, direction: int) -> Tensor:
        real, imag = (2.0 * wide(self.C[direction])).unbind(-1)
        with without_autocast(state.real):
            return F.linear(state.real, real) - F.linear(state.imag, imag)

    def _read_out(self, y: Tensor, x: Tensor) -> Tensor:
        g = F.gelu(y + wide(x) * wide(self.D)).to(x.dtype)
        return g * self.out2(g).sigmoid()

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create the state before the first token.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens; the state does not depend on it.

        Returns:
            "state" (B, P / 2, 2), complex numbers in float32 or wider. P is `state_size`.
        """
        like = wide(self.Lambda_re)
        return {"state": torch.zeros(batch_size, len(like), 2, device=device, dtype=like.dtype)}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio, token = self._discretised(x_t)
        after = ratio.times(ComplexPair.from_last(state["state"])).plus(token)
        return self._read_out(self._observed(after, 0), x_t), {"state": after.stacked()}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = fill_valid_tokens(self._fill, x, key_padding_mask)
        return self._read_out(y, x), state

    def _fill(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        states = linear_scan(*self._discretised(x))
        last, _ = last_tokens(states.stacked(), mask, 1)
        return self._observed(states, 0), {"state": last.squeeze(1)}

    def no_weight_decay(self) -> set[str]:
        return {"Lambda_re", "Lambda_im", "B", "D", "log_step"}

    def extra_repr(self) -> str:
        size = 2 * len(self.Lambda_re)
        return f"dim={self.dim}, state_size={size}, bidirectional={self.bidirectional}"


def _hippo_eigenvalues(state_size: int, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Compute eigenvalues (P / 2,), one per conjugate pair, and eigenvectors (P, P / 2).

    The normal part of HiPPO-LegS is -1/2 I plus a skew-symmetric matrix S; i S is Hermitian.
    """
    size = state_size // num_blocks
    root = (torch.arange(size, dtype=torch.float64) + 0.5).sqrt()
    outer = root.unsqueeze(1) * root
    skew = outer.triu(1) - outer.tril(-1)
    imag, vectors = torch.linalg.eigh(-1j * skew)
    half = size // 2
    imag, vectors = imag[:half].repeat(num_blocks), vectors[:, :half]
    eigenvalues = torch.complex(torch.full_like(imag, -0.5), imag)
    basis = torch.block_diag(*[vectors] * num_blocks)
    kind = wide_default().to_complex()
    return eigenvalues.to(kind), basis.to(kind)
