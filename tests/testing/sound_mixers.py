"""A mixer that fulfills the whole contract, and variants with other abilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.mixers import MixerCard, TokenMixer


class Mean(TokenMixer):
    """Adds the mean of all tokens, or of the tokens so far; fulfills the whole contract."""

    card = MixerCard(
        name="mean",
        title="Mean",
        paper="folklore",
        equations="y_n = W (v_n + mean_m v_m)",
        complexity="O(N C)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        permutation_equivariant=True,
    )

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.value = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        v = F.dropout(self.value(x), self.dropout, self.training)
        return v if key_padding_mask is None else v.masked_fill(key_padding_mask[..., None], 0.0)

    def counts(self, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Return (B, N, 1): 1 for each token that counts."""
        ones = torch.ones_like(v[..., :1])
        return (
            ones if key_padding_mask is None else ones.masked_fill(key_padding_mask[..., None], 0)
        )

    def mean(self, v: Tensor, counts: Tensor) -> Tensor:
        if self.causal:
            return v.cumsum(1) / counts.cumsum(1).clamp_min(1)
        return v.sum(1, keepdim=True) / counts.sum(1, keepdim=True).clamp_min(1)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        v = self.values(x, key_padding_mask)
        return self.proj(v + self.mean(v, self.counts(v, key_padding_mask)))

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        zeros = torch.zeros(batch_size, self.dim + 1, device=device, dtype=dtype)
        return {"sum": zeros[:, 1:], "count": zeros[:, :1]}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        v = self.value(x_t)
        state = {"sum": state["sum"] + v, "count": state["count"] + 1}
        return self.proj(v + state["sum"] / state["count"]), state


class Bidirectional(Mean):
    """The bidirectional variant, without optional features."""

    card = replace(Mean.card, causal=False, streaming=False)


class WithoutMasks(Mean):
    card = replace(Mean.card, padding=False)


class NotStreaming(Mean):
    card = replace(Mean.card, streaming=False)


class Packed(Mean):
    card = replace(Mean.card, packed=True)


class GatedAverage(TokenMixer):
    """A gated moving average with a long memory: rounding errors add up within `mix`."""

    card = replace(
        Mean.card,
        name="gated_average",
        padding=False,
        permutation_equivariant=False,
        one_length="the recurrence is unrolled",
    )

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.value, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)
        nn.init.constant_(self.gate.bias, 6.0)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        averages = self._averages(x, torch.zeros_like(x[:, 0]))
        if not self.causal:
            averages = averages + self._averages(x.flip(1), torch.zeros_like(x[:, 0])).flip(1)
        return self.proj(averages)

    def _averages(self, x: Tensor, average: Tensor) -> Tensor:
        gates, values = self.gate(x).sigmoid(), self.value(x)
        averages = []
        for gate, value in zip(gates.unbind(1), values.unbind(1), strict=True):
            average = self.blended(gate, average, value)
            averages.append(average)
        return torch.stack(averages, 1)

    def blended(self, gate: Tensor, average: Tensor, value: Tensor) -> Tensor:
        return gate * average + (1 - gate) * value

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        return {"average": torch.zeros(batch_size, self.dim, device=device, dtype=dtype)}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        average = self._averages(x_t.unsqueeze(1), state["average"]).squeeze(1)
        return self.proj(average), {"average": average}


SOUND = (Mean, Bidirectional, WithoutMasks, NotStreaming, Packed, GatedAverage)
