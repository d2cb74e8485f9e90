"""Gated DeltaNet: the delta rule with a decay of the whole state."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.mixers.baselines.recurrent.recurrent_mixer import (
    Parts,
    RecurrentMixer,
    ShortConvolution,
    State,
    WideRMSNorm,
    heads_of,
    softplus_bias,
    unit_norm,
)
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.precision import wide


class GatedDeltaNet(RecurrentMixer):
    """S <- alpha S, S <- S - beta k (k^T S) + beta k v^T and y = S^T q / sqrt(D) in each head.

    The decay alpha = exp(-exp(A) softplus(W_a x + b)) of a head forgets everything at once, the
    delta rule replaces the value stored under one key. q, k, v and beta are as in DeltaNet.
    The RMS norm of each head is multiplied by SiLU(W_g x).

    The published models have values of twice the size of the keys (`value_expansion=2`). With the
    default 1, the mixer has the Q/K/V/O projections of self-attention, and
    `replace_attention(..., init="copy")` copies them.

    Without `causal`, the outputs of both directions are added; see `RecurrentMixer`.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `dropout` has no effect: there
            are no attention weights.
        value_expansion: features of a value, in features of a key.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: `value_expansion` below 1.

    Source: Yang et al. 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule", equation
    (10), section 3.4.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("gated_deltanet", 64, num_heads=4, causal=True)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="gated_deltanet",
        title="Gated DeltaNet",
        paper="Yang et al. 2025, Gated Delta Networks: Improving Mamba2 with Delta Rule",
        equations="(10), section 3.4",
        complexity="O(N C^2 / H)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
    )

    def __init__(self, dim: int, *, value_expansion: int = 1, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.value_expansion = check_integer("value_expansion", value_expansion, 1)
        self.key_dim = self.dim // self.num_heads
        self.value_dim = self.value_expansion * self.key_dim
        values = self.value_expansion * self.dim
        self.sizes = (self.dim, self.dim, values)
        self.qkv = nn.Linear(self.dim, sum(self.sizes), bias=False)
        self.conv = ShortConvolution(sum(self.sizes), 4, bias=False)
        self.beta_and_decay = nn.Linear(self.dim, 2 * self.num_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(0.01, 16.0).log())
        self.dt_bias = nn.Parameter(softplus_bias(self.num_heads))
        self.gate = nn.Linear(self.dim, values, bias=False)
        self.norm = WideRMSNorm(self.value_dim, eps=1e-6)
        self.proj = nn.Linear(values, self.dim, bias=False)

    def project(self, x: Tensor) -> Parts:
        return self.qkv(x), self.beta_and_decay(x), self.gate(x)

    def scan(self, parts: Parts, mask: Tensor | None, before: State) -> tuple[Tensor, State]:
        qkv, beta_and_decay, gate = parts
        past = before.get("past")
        mixed = F.silu(self.conv(qkv, past))
        q, k, v = (heads_of(part, self.num_heads) for part in mixed.split(self.sizes, -1))
        q, k = unit_norm(q) * self.key_dim**-0.5, unit_norm(k)
        beta, step = beta_and_decay.chunk(2, -1)
        log_decay = -wide(self.A_log).exp() * F.softplus(wide(step) + wide(self.dt_bias))
        y, memory = self.recur(q, k, v, mask, before, log_decay=log_decay, beta=beta.sigmoid())
        after = {"memory": memory, "past": self.conv.past_after(qkv, mask, past)}
        return self.norm(y).flatten(2) * F.silu(gate), after

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> State:
        past = self.conv.start(batch_size, device, dtype)
        return {**super().start_stream(batch_size, device, dtype), "past": past}

    def no_weight_decay(self) -> set[str]:
        return {"A_log", "dt_bias"}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, value_expansion={self.value_expansion}"
