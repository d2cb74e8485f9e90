"""Butterfly attention: softmax attention in strided groups, all-to-all after a few layers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.strided import StridedGroups
from rifflemix.mixers.token_groups import mix_in_order


class Butterfly(StridedGroups):
    """Softmax attention within strided groups of `block_size` tokens, for one layer.

    See `StridedGroups` for the groups, and for `block_size`, `layout` and `reverse`.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the attention
            weights.
        bias: add a bias to the Q/K/V/O projections.
        token_order: "natural", or "random" for a fixed random order of the tokens. All layers use
            the same order ("Rand Butt." in the paper; needs `max_length`).
        token_order_seed: seed of the random order.
        shared: arguments of `StridedGroups`.

    Raises:
        InputError: an option is out of range, or a random order without `max_length`.

    Source: Dimension Mixer, section 3.1 and Algorithm 1; appendix B for the random order.

    Example:
        >>> import torch, rifflemix as rm
        >>> layers = [
        ...     rm.create_mixer("butterfly", 64, block_size=8, layer_index=i, num_layers=2)
        ...     for i in range(2)
        ... ]
        >>> torch.nn.Sequential(*layers)(torch.randn(2, 64, 64)).shape
        torch.Size([2, 64, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="butterfly",
        title="Butterfly attention",
        paper="Sapkota and Bhattarai 2025, Dimension Mixer",
        equations="Algorithm 1",
        complexity="O(N sqrt(N) C)",
        cost_exponent=1.5,
        by_position="its groups are positions a stride apart",
    )
    token_rank: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        bias: bool = True,
        token_order: str = "natural",
        token_order_seed: int = 0,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("token_order", token_order, ("natural", "random"))
        self.attention = SoftmaxAttention(
            self.dim, num_heads=self.num_heads, dropout=self.dropout, bias=bias
        )
        rank = None
        if token_order == "random":
            rank = self._random_rank(token_order_seed)
        self.register_buffer("token_rank", rank)

    def _random_rank(self, seed: int) -> Tensor:
        """(max_length,) int64, position of each token in the random order."""
        if self.max_length is None:
            raise bad_argument(
                "max_length", "a maximum number of tokens for token_order='random'", None
            )
        seed = check_integer("token_order_seed", seed, 0, 2**64 - 1)
        generator = torch.Generator().manual_seed(seed)
        # A CPU generator needs a CPU tensor, but the default device may be another.
        order = torch.randperm(self.max_length, generator=generator, device="cpu")
        return torch.empty(self.max_length, dtype=order.dtype).copy_(order)

    def mix_group(self, groups: Tensor, *, key_padding_mask: Tensor | None) -> Tensor:
        return self.attention(groups, key_padding_mask=key_padding_mask)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if self.token_rank is None:
            return super().mix(x, key_padding_mask)
        return mix_in_order(
            super().mix, x, key_padding_mask, self.token_rank, self.reference_length
        )
