"""Gated linear attention: a decay per key feature and token, computed from the token."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.mixers.baselines.recurrent.recurrent_mixer import (
    Parts,
    RecurrentMixer,
    State,
    WideRMSNorm,
    heads_of,
)
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.precision import wide

# The decay is sigmoid(...)^(1 / temperature), so that it starts near 1.
_TEMPERATURE = 16.0


class GatedLinearAttention(RecurrentMixer):
    """S <- diag(alpha) S + k v^T and y = S^T q / sqrt(D) in each head.

    The decays are alpha = sigmoid(W_2 W_1 x + b)^(1 / 16), with a bottleneck of `gate_rank`
    features. Queries and keys have half the channels of the values. The RMS norm of each head is
    multiplied by SiLU(W_g x).

    Without `causal`, the outputs of both directions are added; see `RecurrentMixer`.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `dropout` has no effect: there
            are no attention weights.
        gate_rank: features of the bottleneck of the decays.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: `gate_rank` below 1.

    Source: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient
    Training", equation (3), section 4.4.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("gla", 64, num_heads=4, causal=True)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="gla",
        title="Gated linear attention (GLA)",
        paper="Yang et al. 2024, Gated Linear Attention Transformers with Hardware-Efficient "
        "Training",
        equations="(3), section 4.4",
        complexity="O(N C^2 / H)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
    )

    def __init__(self, dim: int, *, gate_rank: int = 16, **shared: Any) -> None:
        super().__init__(dim, **shared)
        rank = check_integer("gate_rank", gate_rank, 1)
        self.value_dim = self.dim // self.num_heads
        self.key_dim = max(1, self.value_dim // 2)
        keys = self.num_heads * self.key_dim
        self.query_key = nn.Linear(self.dim, 2 * keys, bias=False)
        self.value = nn.Linear(self.dim, self.dim, bias=False)
        self.decay = nn.Sequential(nn.Linear(self.dim, rank, bias=False), nn.Linear(rank, keys))
        self.gate = nn.Linear(self.dim, self.dim, bias=False)
        self.norm = WideRMSNorm(self.value_dim, eps=1e-5)
        self.proj = nn.Linear(self.dim, self.dim, bias=False)

    def project(self, x: Tensor) -> Parts:
        return self.query_key(x), self.value(x), self.decay(x), self.gate(x)

    def scan(self, parts: Parts, mask: Tensor | None, before: State) -> tuple[Tensor, State]:
        query_key, value, decay, gate = parts
        q, k = (heads_of(part, self.num_heads) for part in query_key.chunk(2, -1))
        v = heads_of(value, self.num_heads)
        log_decay = heads_of(F.logsigmoid(wide(decay)) / _TEMPERATURE, self.num_heads)
        y, memory = self.recur(q * self.key_dim**-0.5, k, v, mask, before, log_decay=log_decay)
        return self.norm(y).flatten(2) * F.silu(gate), {"memory": memory}
