"""Attention over a pattern of positions: what a token sees depends on its position among the
others.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rifflemix.checks import check_bool
from rifflemix.mixers._attention.multi_head import MultiHeadMixer
from rifflemix.mixers.padding import check_no_padding, fill_valid_tokens, mix_valid_tokens

_BLOCK = 64


class OrderedAttention(MultiHeadMixer):
    """A `MultiHeadMixer` whose `attend` sees the valid tokens first, in order, and padding last.

    Padding of any pattern and amount thus leaves the result of the valid tokens alone.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        keep_positions: leave padding where it stands, masked, so that the pattern is laid out over
            all positions, as released code does: outputs then depend on where padding stands.
        shared: the other arguments of `MultiHeadMixer`.
    """

    def __init__(self, dim: int, *, keep_positions: bool = False, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.keep_positions = check_bool("keep_positions", keep_positions)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Move padding last, mix, and move it back."""
        if self.keep_positions:
            return self.mix_in_order(x, key_padding_mask)
        return mix_valid_tokens(self.mix_in_order, x, key_padding_mask)

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `MultiHeadMixer.fill_stream`; `remember` sees padding last.

        Raises:
            InputError: padding with keep_positions=True.
        """
        if self.keep_positions:
            check_no_padding(key_padding_mask)
        return fill_valid_tokens(super().fill_stream, x, key_padding_mask)

    def mix_in_order(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Project, attend in each head, project; padding stands last unless `keep_positions`."""
        return super().mix(x, key_padding_mask)


def short_block_size(max_length: int | None, fewest_blocks: int = 8) -> int:
    """64 tokens, or fewer where `max_length` would not hold `fewest_blocks` such blocks."""
    if max_length is None:
        return _BLOCK
    return min(_BLOCK, max(1, max_length // fewest_blocks))
