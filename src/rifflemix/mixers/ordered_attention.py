"""Attention over a pattern of places: what a token sees depends on its place among the others."""

from __future__ import annotations

from torch import Tensor

from rifflemix.mixers.multi_head import MultiHeadMixer
from rifflemix.mixers.padding import mix_valid_tokens

_BLOCK = 64


class OrderedAttention(MultiHeadMixer):
    """A `MultiHeadMixer` whose `attend` sees the valid tokens first, in order, and padding last.

    Padding of any pattern and amount thus leaves the result of the valid tokens alone.
    """

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Move padding last, project, attend in each head, project, move back."""
        return mix_valid_tokens(super().mix, x, key_padding_mask)


def default_block_size(max_length: int | None, fewest_blocks: int = 8) -> int:
    """64 tokens, or fewer where `max_length` would not hold `fewest_blocks` such blocks."""
    if max_length is None:
        return _BLOCK
    return min(_BLOCK, max(1, max_length // fewest_blocks))
