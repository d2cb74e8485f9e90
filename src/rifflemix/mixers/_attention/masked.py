"""Softmax attention over heads with a padding mask, shared by the mixers that hold it."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.ops.dropout.unchecked import dropout_attention


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v through torch's scaled_dot_product_attention.

    Args:
        q: (B, H, N, D) queries; k and v: keys and values of the same shape.
        k: see q.
        v: see q.
        key_padding_mask: (B, N) bool, True = padding.
        causal: a query sees its own and earlier positions only.
        dropout: probability with which attention weights are dropped; 0 in evaluation.

    Returns:
        (B, H, N, D), finite at every position; values at padded positions are undefined.
    """
    mask = _attention_mask(key_padding_mask, causal)
    # To torch's attention, without dropout or on a GPU, it would mean more work, not less.
    skips = mask is not None and not causal and dropout > 0.0 and q.device.type == "cpu"
    return dropout_attention(
        q,
        k,
        v,
        mask=mask,
        is_causal=causal and mask is None,
        is_padding=skips and q.shape[2] == k.shape[2],
        dropout_p=dropout,
    )


def _attention_mask(key_padding_mask: Tensor | None, causal: bool) -> Tensor | None:
    """Bool, (B, 1, 1, N), or (B, 1, N, N) when causal; True = may attend.

    A query that may attend nowhere would turn into NaN. Such queries are padded ones, whose
    outputs are zeroed later, so they may look at anything.
    """
    if key_padding_mask is None:
        return None
    length = key_padding_mask.shape[1]
    valid = ~key_padding_mask[:, None, None, :]
    if not causal:
        return valid | key_padding_mask.all(dim=1)[:, None, None, None]
    earlier = torch.ones(length, length, dtype=torch.bool, device=valid.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=valid.device)
    return (valid & earlier) | itself
