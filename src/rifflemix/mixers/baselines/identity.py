"""Identity: no mixing between tokens."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard


class Identity(TokenMixer):
    """y = x, without parameters: the lower bound of every comparison.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        shared: the other arguments of `TokenMixer`.

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.randn(2, 100, 64)
        >>> torch.equal(rm.create_mixer("identity", 64)(x), x)
        True
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="identity",
        title="Identity (no mixing)",
        paper="none: a sanity row",
        equations="y = x",
        complexity="O(1)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        permutation_equivariant=True,
    )

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return x

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        return {}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return x_t, {}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return x, {}
