"""Reference attention over a pattern: one N x N mask per head, valid tokens only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

Sees = Callable[[int, int], bool]


def pattern(length: int, sees: Sees) -> Tensor:
    """Return the pattern as (N, N) bool, row = query."""
    rows = [[bool(sees(i, j)) for j in range(length)] for i in range(length)]
    return torch.tensor(rows, dtype=torch.bool).view(length, length)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (N, C) to (H, N, D)."""
    return x.view(x.shape[0], heads, -1).transpose(0, 1)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attend (H, N, D) under a mask without empty rows.

    The mask is (N, N) or (H, N, N).
    """
    assert mask.any(-1).all()
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


def on_valid_tokens(
    one: Callable[[Tensor], Tensor], x: Tensor, key_padding_mask: Tensor | None
) -> Tensor:
    """Apply `one`, a function of (n, C), to each sample's valid tokens."""
    y = torch.zeros_like(x)
    for b in range(x.shape[0]):
        valid = torch.ones(x.shape[1], dtype=torch.bool)
        if key_padding_mask is not None:
            valid = ~key_padding_mask[b]
        if valid.any():
            y[b, valid] = one(x[b, valid])
    return y


def masked_attention_layer(
    mixer, x: Tensor, mask_of: Callable[[int], Tensor], key_padding_mask: Tensor | None = None
) -> Tensor:
    """Compute attention with `qkv` and `proj`.

    `mask_of(n)` is the mask of n valid tokens.
    """

    def one(tokens: Tensor) -> Tensor:
        q, k, v = (split_heads(t, mixer.num_heads) for t in mixer.qkv(tokens).chunk(3, -1))
        y = dense_attention(q, k, v, mask_of(len(tokens)))
        return mixer.proj(y.transpose(0, 1).flatten(1))

    return on_valid_tokens(one, x, key_padding_mask)


def masked_in_position(
    mixer, x: Tensor, sees: Tensor, key_padding_mask: Tensor | None = None
) -> Tensor:
    """Compute attention under a pattern over all positions, with padding masked.

    The layer has the projections `qkv` and `proj`. `sees` is (N, N) or (H, N, N), row = query.
    """
    y = torch.zeros_like(x)
    for b in range(x.shape[0]):
        valid = torch.ones(x.shape[1], dtype=torch.bool)
        if key_padding_mask is not None:
            valid = ~key_padding_mask[b]
        q, k, v = (split_heads(t, mixer.num_heads) for t in mixer.qkv(x[b]).chunk(3, -1))
        q, seen = q[:, valid], sees[..., valid, :] & valid
        if valid.any():
            y[b, valid] = mixer.proj(dense_attention(q, k, v, seen).transpose(0, 1).flatten(1))
    return y


def masks(batch: int, length: int) -> dict[str, Tensor | None]:
    """Return no mask, and masks with trailing, leading, scattered and complete padding."""
    generator = torch.Generator().manual_seed(5)
    trailing = torch.arange(length) >= torch.tensor([[length], [length // 2 + 1], [1]])[:batch]
    scattered = torch.rand(batch, length, generator=generator) < 0.4
    scattered[-1] = True
    return {"none": None, "trailing": trailing, "leading": trailing.flip(1), "scattered": scattered}


def padded_inputs(lengths: Iterable[int], dim: int) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yield three samples per length and kind of padding, with a description."""
    for length in lengths:
        x = torch.randn(3, length, dim, dtype=torch.float64)
        for kind, mask in masks(3, length).items():
            yield f"{length} tokens, padding {kind}", x, mask


def require_close(y: Tensor, expected: Tensor, case: str) -> None:
    """Check that float64 results differ by rounding only.

    The error names the case.
    """
    torch.testing.assert_close(
        y, expected, atol=1e-12, rtol=1e-9, msg=lambda found: f"{case}: {found}"
    )
