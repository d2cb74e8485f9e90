"""Attention masks of transformers, in the format of every `attn_implementation`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.surgery.masks import key_padding_mask


def padding_of(
    mask: Any, x: Tensor, *, causal: bool, seen: int = 0, hidden_anyway: bool = False
) -> Tensor | None:
    """Convert a mask of transformers to the padding of all tokens.

    Args:
        mask: None, or a mask in one of these formats:

            - flash attention: (B, N), 1 = keep
            - sdpa: (B, 1, N, N) bool, True = attend
            - eager: (B, 1, N, N) floats to add to the scores
            - flex attention: a BlockMask
        x: (B, N, C) tokens.
        causal: whether the mixer hides later tokens.
        seen: number of earlier tokens in a cache. The mask has keys for these too.
        hidden_anyway: whether the host model also hides later tokens without the mask (ImageGPT).
            The mask may then show them.

    Returns:
        (B, seen + N) bool, True = padding, or None if there is no padding.

    Raises:
        InputError: the mask expresses more than padding and causality.
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
            "if the model drops the tokens in its cache (as MiniMax does), pass use_cache=False",
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
    """Convert a BlockMask of flex attention to bool (B, 1, Q, K)."""
    from torch.nn.attention.flex_attention import create_mask

    queries, keys = mask.seq_lengths
    return create_mask(mask.mask_mod, batch, 1, queries, keys, device=x.device)
