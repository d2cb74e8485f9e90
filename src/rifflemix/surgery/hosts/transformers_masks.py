"""Attention masks of transformers: every `attn_implementation` has its own form."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.surgery.masks import key_padding_mask


def padding_of(
    mask: Any, x: Tensor, *, causal: bool, seen: int = 0, hidden_anyway: bool = False
) -> Tensor | None:
    """The padding of the tokens so far, (B, seen + N) bool, True = padding; None without any.

    Args:
        mask: None; (B, N), 1 = keep (flash attention); bool (B, 1, N, N), True = attend (sdpa);
            the same as floats that are added to scores (eager); a BlockMask (flex attention).
        x: the tokens (B, N, C).
        causal: the mixer hides later tokens.
        seen: tokens before x, in a cache, whose keys the mask has too.
        hidden_anyway: the host hides later tokens beside the mask (ImageGPT), which may show them.

    Raises:
        InputError: a mask that says more than padding and causality.
    """
    if mask is None:
        return None
    batch, length = x.shape[:2]
    if type(mask).__name__ == "BlockMask":
        mask = _dense(mask, batch, x)
    if isinstance(mask, Tensor) and mask.dim() and mask.shape[-1] < seen + length:
        raise bad_argument(
            "attention mask",
            f"one of all {seen + length} tokens so far",
            f"one of {mask.shape[-1]}",
            "where a model forgets those in its cache (MiniMax does), pass use_cache=False",
        )
    return key_padding_mask(
        mask,
        batch=batch,
        length=length,
        causal=causal,
        seen=seen,
        hidden_anyway=hidden_anyway,
    )


def _dense(mask: Any, batch: int, x: Tensor) -> Tensor:
    """A BlockMask of flex attention as bool (B, 1, Q, K)."""
    from torch.nn.attention.flex_attention import create_mask

    queries, keys = mask.seq_lengths
    return create_mask(mask.mask_mod, batch, 1, queries, keys, device=x.device)
