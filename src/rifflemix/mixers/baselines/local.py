"""Local attention: softmax attention within contiguous blocks of tokens."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.mixers._attention.multi_head import ValidTokensFirst, short_block_size
from rifflemix.mixers._attention.window import block_attention
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import newest_in_slots, take_tokens
from rifflemix.ops.dropout.backends import dropout_attention


class LocalAttention(ValidTokensFirst):
    """Softmax attention inside blocks of `block_size` valid tokens.

    The Long Range Arena code adds a whole block of padding even if the length needs no padding.
    Its reshape also makes the blocks strided. Here blocks are contiguous, as the paper describes.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the attention
            weights.
        block_size: tokens b in a block; the last block may be shorter. Default: 64, or an eighth
            of `max_length` if that is less. The Long Range Arena uses 50 for texts.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: `block_size` below 1.

    Source: Tay et al. 2021, "Long Range Arena", section 3.2 (local attention).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("local", 64, num_heads=4, block_size=50)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="local",
        title="Local attention",
        paper="Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers",
        equations="section 3.2",
        complexity="O(N b C), blocks of b",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
    )

    def __init__(
        self,
        dim: int,
        *,
        block_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        if block_size is None:
            block_size = short_block_size(self.max_length)
        self.block_size = check_integer("block_size", block_size, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return block_attention(
            q,
            k,
            v,
            block_size=self.block_size,
            key_padding_mask=key_padding_mask,
            causal=self.causal,
            dropout=self.dropout_now,
        )

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        return self.empty_cache(batch_size, self.block_size, device, dtype)

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.split(self.qkv(x_t.unsqueeze(1)))
        slots = torch.arange(self.block_size, device=x_t.device)
        slot = (state["position"] % self.block_size).view(-1, 1, 1, 1)
        here = (slots == slot).mT
        keys, values = torch.where(here, k, state["keys"]), torch.where(here, v, state["values"])
        y = dropout_attention(q, keys, values, mask=slots <= slot, dropout_p=self.dropout_now)
        return self.proj(y.transpose(1, 2).flatten(1)), {"keys": keys, "values": values}

    def remember(self, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> dict[str, Tensor]:
        slots = newest_in_slots(k, key_padding_mask, self.block_size, dim=2)
        return {"keys": take_tokens(k, slots, 2), "values": take_tokens(v, slots, 2)}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block_size={self.block_size}"
