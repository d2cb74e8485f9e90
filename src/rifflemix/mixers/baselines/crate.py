"""Multi-head subspace self-attention: the mixer of CRATE."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.mixers._attention.softmax_parts import (
    attend_to_cache,
    masked_attention,
    new_cache,
    with_token,
)
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.nn.layers import WeightReadLinear


class Crate(TokenMixer):
    """Multi-head subspace self-attention: one projection for queries, keys and values.

    `in_proj` contains the transposed bases U_1 ... U_H of the heads' subspaces. Each head attends
    among the coordinates of the tokens in its subspace. The same bases map the result back. The
    sparse coding half of a CRATE layer (ISTA) belongs to the block around the mixer.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        tied_output: use the bases as the output projection, as derived in the paper. False uses a
            separate output projection with a bias.
        shared: the other arguments of `TokenMixer`.

    Source: Yu et al. 2023, "White-Box Transformers via Sparse Rate Reduction", the multi-head
    subspace self-attention (MSSA) operator.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("crate", 64, num_heads=4, tied_output=True)
        >>> [name for name, _ in mixer.named_parameters()]
        ['in_proj.weight']
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="crate",
        title="Subspace self-attention (CRATE)",
        paper="Yu et al. 2023, White-Box Transformers via Sparse Rate Reduction",
        equations="MSSA operator",
        complexity="O(N^2 C)",
        cost_exponent=2.0,
        causal=True,
        streaming=True,
        permutation_equivariant=True,
    )

    def __init__(self, dim: int, *, tied_output: bool = True, **shared: Any) -> None:
        super().__init__(dim, **shared)
        linear = WeightReadLinear if tied_output else nn.Linear
        self.in_proj = linear(self.dim, self.dim, bias=False)
        self.out_proj = None if tied_output else nn.Linear(self.dim, self.dim)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return self._attend(self._split(self.in_proj(x)), key_padding_mask)

    def _attend(self, w: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = masked_attention(
            w,
            w,
            w,
            key_padding_mask=key_padding_mask,
            causal=self.causal,
            dropout=self.dropout_now,
        )
        return self._lift(y.transpose(1, 2).flatten(2))

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create an empty cache of coordinates. It grows by one token per step.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens.

        Returns:
            "coordinates" (B, H, 0, D).
        """
        shape = (batch_size, self.num_heads, 0, self.dim // self.num_heads)
        empty = torch.zeros(shape, device=device, dtype=dtype)
        return {"coordinates": empty}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        w = self._split(self.in_proj(x_t.unsqueeze(1)))
        after = with_token(state, coordinates=w)
        seen = after["coordinates"]
        return self._lift(attend_to_cache(w, seen, seen, after)), after

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        w = self._split(self.in_proj(x))
        return self._attend(w, key_padding_mask), new_cache(key_padding_mask, coordinates=w)

    def _split(self, w: Tensor) -> Tensor:
        heads: Tensor = w.unflatten(-1, (self.num_heads, -1))
        return heads.transpose(1, 2)

    def _lift(self, y: Tensor) -> Tensor:
        if self.out_proj is None:
            return F.linear(y, self._bases().mT)
        return self.out_proj(y)

    def _bases(self) -> Tensor:
        """Return the weight (C, C) of `in_proj` or its replacement, such as an adapter.

        Hooks that compute the weight already ran in the previous call of `in_proj`.
        """
        if isinstance(self.in_proj, WeightReadLinear):
            return self.in_proj.weight
        like = next(self.in_proj.parameters())
        columns: Tensor = self.in_proj(torch.eye(self.dim, dtype=like.dtype, device=like.device))
        return columns.mT
