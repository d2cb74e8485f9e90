"""Linear attention whose weights are a Taylor polynomial of the weights of softmax attention.

The weight of s = q k / sqrt(d) is 1 + s + s^2 / 2. It is also a dot product of features, so earlier
tokens are sums of a fixed size. Features are rows (M, N) here: their products and gradients then
read and write adjacent tokens.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.mixers._attention.autograd_functions import scaled, sums_before
from rifflemix.mixers.token_groups import group_size, join_groups, split_groups
from rifflemix.ops.precision import sum_of_products, wide, without_autocast

_EPSILON = 1e-12
_CHUNK = 64


def num_taylor_features(d: int) -> int:
    """Return the number of features of d numbers."""
    return 1 + d + d * (d + 1) // 2


def taylor_attention(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, *, causal: bool
) -> Tensor:
    """Average the values with the Taylor weights of queries and keys.

    Args:
        q: (B, H, N, d).
        k: (B, H, N, d).
        v: (B, H, N, D).
        key_padding_mask: (B, N) bool, True = weight 0.
        causal: average over tokens up to n. Within a chunk the weights are a matrix, and the
            features of earlier chunks are summed.

    Returns:
        (B, H, N, D), at least in float32: sums of 16-bit features would lose too much.
    """
    q, k, v = wide(q), wide(k), _with_ones(v, key_padding_mask)
    with without_autocast(v):
        if causal:
            y = _causal(q, k, v)
        else:
            y = taylor_features(q.mT).mT @ sum_of_products(taylor_features(k.mT).mT, v)
        y, total = y.split((v.shape[-1] - 1, 1), -1)
        return scaled(y, (total + _EPSILON).reciprocal())


def taylor_sums(k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum features times values, and features, over all tokens: (B, H, M, D) and (B, H, M)."""
    v = _with_ones(v, key_padding_mask)
    with without_autocast(v):
        sums = sum_of_products(taylor_features(wide(k).mT).mT, v)
    return sums[..., :-1], sums[..., -1]


def taylor_features(x: Tensor) -> Tensor:
    """Map x to features with dot products 1 + s + s^2 / 2, where s = x y / sqrt(d).

    Args:
        x: (..., d, N).

    Returns:
        (..., 1 + d + d (d + 1) / 2, N).
    """
    d = x.shape[-2]
    first = x.contiguous() * d**-0.25
    i, j = torch.triu_indices(d, d, 1, device=x.device)
    pairs = first.index_select(-2, i) * first.index_select(-2, j)
    squares = first.square() * math.sqrt(0.5)
    return torch.cat((torch.ones_like(first[..., :1, :]), first, squares, pairs), -2)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length, d = q.shape[-2:]
    chunk = group_size(_CHUNK, length)
    # Values of zero at the end reach only the outputs that `join_groups` removes.
    q, k, v = (split_groups(t, chunk, -2) for t in (q, k, v))
    half = (q * (0.5 / d) ** 0.5) @ k.mT + 0.5**0.5
    weights = (half.square() + 0.5).tril()  # (1 + s)^2 / 2 + 1 / 2
    before = sums_before(taylor_features(k.mT) @ v)
    return join_groups(taylor_features(q.mT).mT @ before + weights @ v, length, 2)


def _with_ones(v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Append a value of 1 to each token, which sums the weights, and set padding to zero."""
    v = F.pad(wide(v), (0, 1), value=1.0)
    return v if key_padding_mask is None else v.masked_fill(key_padding_mask[:, None, :, None], 0.0)
