"""Mamba-2: a state space with one decay per head and token."""

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
)
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.precision import wide


class Mamba2(RecurrentMixer):
    """h <- exp(-exp(A) dt) h + dt B x^T and y = h^T C + D x in each head.

    The input x, the keys B and the queries C are linear layers, a causal convolution of 4 tokens
    and SiLU. All heads share B and C. The step dt = softplus(W_dt u + b) of a head sets how much a
    token decays the state and writes to it. The output is multiplied by SiLU(z) and then
    normalized over all channels, before the output projection.

    The parameters have the names and initial values of the released code, except the output
    projection `proj`. The released models have heads of 64 channels: 2 C / 64 heads.

    Without `causal`, the outputs of both directions are added; see `RecurrentMixer`.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` divides the
            `expansion` C channels of x. `dropout` has no effect: there are no attention weights.
        state_dim: features of B and C.
        expansion: channels of x and z, in C.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: `state_dim` or `expansion` below 1.

    Source: Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms
    Through Structured State Space Duality", sections 3 and 7; steps: Gu and Dao 2023, "Mamba",
    section 3.6.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("mamba2", 64, num_heads=4, causal=True, state_dim=32)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="mamba2",
        title="Mamba-2",
        paper="Dao and Gu 2024, Transformers are SSMs: Generalized Models and Efficient "
        "Algorithms Through Structured State Space Duality",
        equations="sections 3 and 7",
        complexity="O(N C state)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
    )

    def __init__(
        self, dim: int, *, state_dim: int = 128, expansion: int = 2, **shared: Any
    ) -> None:
        super().__init__(dim, **shared)
        self.key_dim = check_integer("state_dim", state_dim, 1)
        inner = check_integer("expansion", expansion, 1) * self.dim
        self.value_dim = inner // self.num_heads
        self.inputs = (inner, self.key_dim, self.key_dim)
        self.parts = [inner, sum(self.inputs), self.num_heads]
        self.in_proj = nn.Linear(self.dim, sum(self.parts), bias=False)
        self.conv1d = ShortConvolution(sum(self.inputs), 4, bias=True)
        self.dt_bias = nn.Parameter(softplus_bias(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(1.0, 16.0).log())
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.norm = WideRMSNorm(inner, eps=1e-5)
        self.proj = nn.Linear(inner, self.dim, bias=False)

    def project(self, x: Tensor) -> Parts:
        return torch.split(self.in_proj(x), self.parts, -1)

    def scan(self, parts: Parts, mask: Tensor | None, before: State) -> tuple[Tensor, State]:
        z, xbc, dt = parts
        past = before.get("past")
        x, b, c = F.silu(self.conv1d(xbc, past)).split(self.inputs, -1)
        x = heads_of(x, self.num_heads)
        k, q = (t.unsqueeze(2).expand(-1, -1, self.num_heads, -1) for t in (b, c))
        steps = F.softplus(wide(dt) + wide(self.dt_bias))
        log_decay = -wide(self.A_log).exp() * steps
        v = x * steps.unsqueeze(-1).to(x.dtype)
        y, memory = self.recur(q, k, v, mask, before, log_decay=log_decay)
        y = (y + x * self.D.unsqueeze(-1).to(x.dtype)).flatten(2)
        after = {"memory": memory, "past": self.conv1d.past_after(xbc, mask, past)}
        return self.norm(y * F.silu(z)), after

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> State:
        past = self.conv1d.start(batch_size, device, dtype)
        return {**super().start_stream(batch_size, device, dtype), "past": past}

    def no_weight_decay(self) -> set[str]:
        return {"A_log", "D", "dt_bias"}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_dim={self.key_dim}, inner_dim={self.parts[0]}"
