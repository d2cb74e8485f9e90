"""DeltaNet: linear attention that replaces the value stored under a key."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_bool
from rifflemix.mixers.baselines.recurrent.recurrent_mixer import (
    Parts,
    RecurrentMixer,
    ShortConvolution,
    State,
    WideRMSNorm,
    heads_of,
    unit_norm,
)
from rifflemix.mixers.cards import MixerCard


class DeltaNet(RecurrentMixer):
    """S <- S - beta k (k^T S) + beta k v^T and y = S^T q / sqrt(D) in each head.

    The state S is a table of values by key. Each token reads the value stored under its key k and
    replaces a share beta of this value by v. q, k and v are linear layers without bias, a causal
    convolution of 4 tokens and SiLU; then q and k get length 1. beta is the sigmoid of a linear
    layer. An RMS norm of each head precedes the output projection.

    With `negative_eigenvalues` beta reaches 2, so that the eigenvalue 1 - beta of the transition
    can be negative. A layer can then track the parity of bits, and products of reflections.

    Without `causal`, the outputs of both directions are added; see `RecurrentMixer`.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `dropout` has no effect: there
            are no attention weights.
        negative_eigenvalues: let beta reach 2 instead of 1.
        shared: the other arguments of `TokenMixer`.

    Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence
    Length", sections 2.2 and 3.3. `negative_eigenvalues`: Grazzi et al. 2025, "Unlocking
    State-Tracking in Linear RNNs Through Negative Eigenvalues", section 4.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("deltanet", 64, num_heads=4, causal=True)
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="deltanet",
        title="DeltaNet",
        paper="Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over "
        "Sequence Length",
        equations="sections 2.2 and 3.3",
        complexity="O(N C^2 / H)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
    )

    def __init__(self, dim: int, *, negative_eigenvalues: bool = False, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.negative_eigenvalues = check_bool("negative_eigenvalues", negative_eigenvalues)
        self.key_dim = self.value_dim = self.dim // self.num_heads
        self.qkv = nn.Linear(self.dim, 3 * self.dim, bias=False)
        self.conv = ShortConvolution(3 * self.dim, 4, bias=False)
        self.beta = nn.Linear(self.dim, self.num_heads, bias=False)
        self.norm = WideRMSNorm(self.value_dim, eps=1e-5)
        self.proj = nn.Linear(self.dim, self.dim, bias=False)

    def project(self, x: Tensor) -> Parts:
        return self.qkv(x), self.beta(x)

    def scan(self, parts: Parts, mask: Tensor | None, before: State) -> tuple[Tensor, State]:
        qkv, beta = parts
        past = before.get("past")
        mixed = F.silu(self.conv(qkv, past))
        q, k, v = (heads_of(part, self.num_heads) for part in mixed.chunk(3, -1))
        q, k = unit_norm(q) * self.key_dim**-0.5, unit_norm(k)
        beta = beta.sigmoid() * (2.0 if self.negative_eigenvalues else 1.0)
        y, memory = self.recur(q, k, v, mask, before, beta=beta)
        after = {"memory": memory, "past": self.conv.past_after(qkv, mask, past)}
        return self.norm(y).flatten(2), after

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> State:
        past = self.conv.start(batch_size, device, dtype)
        return {**super().start_stream(batch_size, device, dtype), "past": past}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, negative_eigenvalues={self.negative_eigenvalues}"
