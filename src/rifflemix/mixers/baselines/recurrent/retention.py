"""Retention: linear attention with a fixed decay per head and rotated queries and keys."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers.baselines.recurrent.recurrent_mixer import (
    Parts,
    RecurrentMixer,
    State,
    WideRMSNorm,
    heads_of,
)
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.precision import wide

_BASE = 10_000.0


class Retention(RecurrentMixer):
    """S <- gamma S + k v^T and y = S^T q in each head: the retention of RetNet.

    Head h has the decay gamma = 1 - 2^(-5 - h). Queries and keys are rotated by their position, as
    in rotary embeddings, and keys are divided by sqrt(D). Values have 2 C channels. The RMS norm of
    each head, without parameters, is multiplied by SiLU(W_g x). The further norms of the paper's
    parallel variant cancel in this norm.

    Without `causal`, the outputs of both directions are added; see `RecurrentMixer`.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. C / `num_heads` must be even.
            `dropout` has no effect: there are no attention weights.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: C / `num_heads` is odd.

    Source: Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large Language
    Models", equations (3), (6) and (8).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("retention", 64, num_heads=4, causal=True)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="retention",
        title="Retention (RetNet)",
        paper="Sun et al. 2023, Retentive Network: A Successor to Transformer for Large Language "
        "Models",
        equations="(3), (6), (8)",
        complexity="O(N C^2 / H)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
    )

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.key_dim = self.dim // self.num_heads
        if self.key_dim % 2:
            raise bad_argument("dim", f"an even multiple of num_heads = {self.num_heads}", self.dim)
        self.value_dim = 2 * self.key_dim
        self.query_key = nn.Linear(self.dim, 2 * self.dim, bias=False)
        self.value = nn.Linear(self.dim, 2 * self.dim, bias=False)
        self.gate = nn.Linear(self.dim, 2 * self.dim, bias=False)
        self.norm = WideRMSNorm(self.value_dim, eps=1e-6, elementwise_affine=False)
        self.proj = nn.Linear(2 * self.dim, self.dim, bias=False)
        for weight in (*self.query_key.weight.chunk(2), self.value.weight, self.gate.weight):
            nn.init.xavier_uniform_(weight, gain=2**-2.5)
        nn.init.xavier_uniform_(self.proj.weight)

    def project(self, x: Tensor) -> Parts:
        return self.query_key(x), self.value(x), self.gate(x)

    def scan(self, parts: Parts, mask: Tensor | None, before: State) -> tuple[Tensor, State]:
        query_key, value, gate = parts
        positions = torch.arange(value.shape[1], device=value.device).unsqueeze(0)
        if before:
            positions = positions + before["position"].unsqueeze(1)
        q, k = (heads_of(part, self.num_heads) for part in query_key.chunk(2, -1))
        q, k = rotated(q, positions), rotated(k, positions) * self.key_dim**-0.5
        v = heads_of(value, self.num_heads)
        heads = torch.arange(self.num_heads, device=v.device, dtype=wide(v).dtype)
        log_decay = torch.log1p(-torch.exp2(-5.0 - heads)).expand(v.shape[:3])
        y, memory = self.recur(q, k, v, mask, before, log_decay=log_decay)
        return self.norm(y).flatten(2) * F.silu(gate), {"memory": memory}


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate pairs of features by angles proportional to the position.

    Args:
        x: (B, N, H, D) queries or keys; features 2i and 2i + 1 are a pair.
        positions: (B, N) or (1, N) int64.

    Returns:
        (B, N, H, D).

    Source: Su et al. 2021, "RoFormer", with the frequencies of torchscale: from 1 to 1 / 10,000,
    both included.
    """
    pairs = wide(x).unflatten(-1, (-1, 2))
    count = pairs.shape[-2]
    index = torch.arange(count, device=x.device, dtype=pairs.dtype)
    frequency = torch.exp(index * (-math.log(_BASE) / max(count - 1, 1)))
    angles = positions.unsqueeze(-1).to(pairs.dtype) * frequency
    cos, sin = angles.cos().unsqueeze(2), angles.sin().unsqueeze(2)
    even, odd = pairs.unbind(-1)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1)
    return turned.flatten(-2).to(x.dtype)
