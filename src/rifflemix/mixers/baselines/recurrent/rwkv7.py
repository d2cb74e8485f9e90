"""RWKV-7: a state with a decay per feature and a removal at a separate key."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_bool
from rifflemix.mixers.baselines.recurrent.recurrent_mixer import (
    Parts,
    RecurrentMixer,
    State,
    extended,
    heads_of,
    past_after,
    unit_norm,
)
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.precision import wide, wide_default

_STRONGEST = math.exp(-0.5)  # the decay is at least exp(-exp(-0.5)) = 0.545
# With this largest rate, the eigenvalues of the transition stay within [-1, 1].
_LARGEST_RATE = 1.0 + math.exp(-_STRONGEST)
# Exponents of the initial token shift of r, w, k, v, a and g.
_SHIFTS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)


class RWKV7(RecurrentMixer):
    """S <- diag(w) S - (a kappa) (kappa^T S) + k v^T and y = S^T r in each head.

    kappa is a removal key of length 1, a the rate of the removal per feature, and w the decay per
    feature. The removal reads the state before the decay. r, w, k, v, a and the output gate g read
    the token and its predecessor, mixed with a learned weight per channel. w, a and g have a
    bottleneck.

    w is at least 0.545 and a is less than 1, so the eigenvalues of the transition are at least
    0.545 - 1 = -0.455. A sign that changes with every 1 in a bit string then fades by half at each
    change. With `negative_eigenvalues` a reaches 1.545 and the eigenvalues reach -1, so a layer can
    track the parity of bits at any length.

    The released models add a learned share of the first layer's values to the values of later
    layers. A mixer sees one layer only, so this residual is left out, as in their first layer.

    Without `causal`, the outputs of both directions are added; see `RecurrentMixer`.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. The released models have heads
            of 64 channels. `layer_index` and `num_layers` set the initial shifts and decays.
            `dropout` has no effect: there are no attention weights.
        negative_eigenvalues: let the rate a reach 1.545 instead of 1.
        shared: the other arguments of `TokenMixer`.

    Source: Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution", equations
    (3)-(22); initial values: appendix E and the released code.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("rwkv7", 64, num_heads=4, causal=True)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="rwkv7",
        title="RWKV-7",
        paper="Peng et al. 2025, RWKV-7 Goose with Expressive Dynamic State Evolution",
        equations="(3)-(22)",
        complexity="O(N C^2 / H)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
    )

    def __init__(self, dim: int, *, negative_eigenvalues: bool = False, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.negative_eigenvalues = check_bool("negative_eigenvalues", negative_eigenvalues)
        width = self.dim
        self.key_dim = self.value_dim = width // self.num_heads
        depth = self.layer_index / max(1, self.num_layers - 1)
        channel = torch.arange(width) / width
        remaining = 1.0 - self.layer_index / self.num_layers
        shifts = [1.0 - channel ** (remaining * power) for power in _SHIFTS]
        self.shift = nn.Parameter(torch.stack(shifts))
        self.receptance = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        place = torch.arange(width) / max(1, width - 1)
        self.decay = Bottleneck(width, _rank(2.5 * width**0.5))
        self.decay_bias = nn.Parameter(6.0 * place ** (1.0 + depth**0.3) - 5.5)
        self.rate = Bottleneck(width, _rank(2.5 * width**0.5))
        self.rate_bias = nn.Parameter(torch.zeros(width))
        self.gate = Bottleneck(width, _rank(5.0 * width**0.5))
        self.removal_key = nn.Parameter(torch.full((width,), 0.85))
        self.key_rate = nn.Parameter(torch.ones(width))
        self.bonus = nn.Parameter(torch.zeros(self.num_heads, self.key_dim))
        self.norm_weight = nn.Parameter(torch.ones(width))
        self.norm_bias = nn.Parameter(torch.zeros(width))
        bound = 0.5 * width**-0.5
        nn.init.uniform_(self.receptance.weight, -bound, bound)
        nn.init.uniform_(self.key.weight, -0.1 * bound, 0.1 * bound)
        nn.init.uniform_(self.value.weight, -bound, bound)
        nn.init.zeros_(self.proj.weight)

    def project(self, x: Tensor) -> Parts:
        return (x,)

    def scan(self, parts: Parts, mask: Tensor | None, before: State) -> tuple[Tensor, State]:
        (x,) = parts
        past = before.get("past")
        change = extended(x, past, 1)[:, :-1] - x
        xr, xw, xk, xv, xa, xg = (x + change * s for s in self.shift.to(x.dtype).unbind(0))
        r, k, v = self.receptance(xr), self.key(xk), self.value(xv)
        log_decay = -_STRONGEST * torch.sigmoid(
            wide(self.decay_bias) + wide(self.decay(xw, torch.tanh))
        )
        rate = torch.sigmoid(self.rate_bias.to(k.dtype) + self.rate(xa))
        gate = self.gate(xg, torch.sigmoid)
        removal = k * self.removal_key.to(k.dtype)
        k = k * (1.0 + (rate - 1.0) * self.key_rate.to(k.dtype))
        r, k, v, rate, removal, log_decay = (
            heads_of(part, self.num_heads) for part in (r, k, v, rate, removal, log_decay)
        )
        removal = unit_norm(removal, 1e-12)
        if self.negative_eigenvalues:
            rate = _LARGEST_RATE * rate
        # The operator decays before it removes: dividing by the decay cancels this.
        erase = (removal * rate, removal * torch.exp(-log_decay).to(removal.dtype))
        y, memory = self.recur(r, k, v, mask, before, log_decay=log_decay, erase=erase)
        bonus = (r * k * self.bonus.to(r.dtype)).sum(-1, keepdim=True) * v
        y = (self._normalized(y) + bonus).flatten(2) * gate
        return y, {"memory": memory, "past": past_after(x, mask, past, 1)}

    def _normalized(self, y: Tensor) -> Tensor:
        """Normalize each head, with a scale and a bias for each channel."""
        weight, bias = (
            heads_of(p.to(y.dtype), self.num_heads) for p in (self.norm_weight, self.norm_bias)
        )
        epsilon = 1e-5 * self.value_dim
        return F.layer_norm(y, (self.value_dim,), eps=epsilon) * weight + bias

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> State:
        past = torch.zeros(batch_size, 1, self.dim, device=device, dtype=dtype)
        return {**super().start_stream(batch_size, device, dtype), "past": past}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, negative_eigenvalues={self.negative_eigenvalues}"

    def no_weight_decay(self) -> set[str]:
        return {
            "shift",
            "decay_bias",
            "rate_bias",
            "removal_key",
            "key_rate",
            "bonus",
            "norm_weight",
            "norm_bias",
        }


class Bottleneck(nn.Module):
    """Two linear layers without bias, and a function between them.

    The first starts at zero, so that the output is zero at first; the second is orthogonal.

    Args:
        dim: channels of the input and the output.
        rank: features between the layers.
    """

    keeps_start = True  # host models must not reinitialize its linear layers

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.down.weight)
        start = torch.empty(dim, rank, dtype=wide_default())  # torch has no 16-bit QR
        with torch.no_grad():
            self.up.weight.copy_(nn.init.orthogonal_(start, gain=0.1))

    def forward(self, x: Tensor, activation: Any = None) -> Tensor:
        """Map (B, N, C) to (B, N, C)."""
        h = self.down(x)
        return self.up(h if activation is None else activation(h))


def _rank(features: float) -> int:
    """Round to a multiple of 32, at least 32."""
    return max(32, 32 * round(features / 32))
