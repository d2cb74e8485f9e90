"""Reference dropout, written exactly as published, to test the other backends."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rifflemix.ops.dropout.spec import (
    BLOCKS_PER_TILE,
    PARITY,
    ROTATIONS,
    ROUNDS,
    TILE,
    scale,
    threshold,
)

_MASK = 2**32 - 1


def dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """See `rifflemix.ops.dropout`; `seed` is a () int64 tensor."""
    wide = torch.promote_types(x.dtype, torch.float32)
    kept = is_kept(x.numel(), p, seed.to(x.device)).view(x.shape)
    scaled = (x.to(wide) * scale(p)).to(x.dtype)
    return torch.where(kept, scaled, torch.zeros_like(scaled))


def is_kept(count: int, p: float, seed: Tensor) -> Tensor:
    """Return a (count,) bool mask of the elements that dropout keeps."""
    return numbers(count, seed) >= threshold(p)


def numbers(count: int, seed: Tensor) -> Tensor:
    """Return the random numbers of the first `count` elements.

    The result is (count,) int64, with values from 0 to 2^32 - 1.
    """
    block = torch.arange(-(-count // TILE) * BLOCKS_PER_TILE, device=seed.device)
    zero = torch.zeros_like(block)
    key = (seed & _MASK, seed >> 32 & _MASK, zero, zero)
    halves = []
    for stream in (0, 1):
        counter = (block & _MASK, block >> 32, zero + stream, zero)
        words = torch.stack(threefry(counter, key), -1)  # (blocks, 4)
        pairs = torch.stack((words & 0xFFFF, words >> 16), -1)  # (blocks, 4, 2), lower half first
        tiles = pairs.unflatten(0, (-1, BLOCKS_PER_TILE)).transpose(1, 2)
        halves.append(tiles.flatten()[:count])
    return halves[0] << 16 | halves[1]


def threefry(
    counter: Sequence[Tensor], key: Sequence[Tensor], rounds: int = ROUNDS
) -> tuple[Tensor, ...]:
    """Generate random words with Threefry-4x32.

    Args:
        counter: four int64 tensors of the same shape, with values from 0 to 2^32 - 1.
        key: four int64 tensors like `counter`.
        rounds: number of rounds that mix the words.

    Returns:
        Four tensors of random 32-bit words, with the shape of `counter`.

    Source: Salmon et al. 2011, section 4 and the released tables of constants.
    """
    keys = [*key, PARITY ^ key[0] ^ key[1] ^ key[2] ^ key[3]]
    x = [(word + k) & _MASK for word, k in zip(counter, keys, strict=False)]
    for r in range(rounds):
        a, b = (1, 3) if r % 2 == 0 else (3, 1)
        for target, source, bits in zip((0, 2), (a, b), ROTATIONS[r % 8], strict=True):
            x[target] = (x[target] + x[source]) & _MASK
            rotated = (x[source] << bits | x[source] >> (32 - bits)) & _MASK
            x[source] = rotated ^ x[target]
        if r % 4 == 3:
            injection = (r + 1) // 4
            x = [(word + keys[(injection + i) % 5]) & _MASK for i, word in enumerate(x)]
            x[3] = (x[3] + injection) & _MASK
    return tuple(x)


def dropout_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    is_padding: bool,
    p: float,
    seed: Tensor,
) -> Tensor:
    """See `rifflemix.ops.dropout_attention`; `seed` is a () int64 tensor."""
    scores = (q @ k.mT) / q.shape[-1] ** 0.5
    sees = torch.ones_like(scores, dtype=torch.bool)
    if is_causal:
        sees = sees.tril()
    if mask is not None and mask.dtype == torch.bool:
        sees = sees & mask
    elif mask is not None:
        scores, sees = scores + mask, sees & (mask > -torch.inf)
    scores = scores.masked_fill(~sees, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp().masked_fill(~sees, 0.0)
    total = weights.sum(-1, keepdim=True)
    weights = torch.where(total > 0, weights / total, 0.0)
    if is_padding:
        weights = weights * sees.mT  # padding tokens attend to no token
    return dropout(weights, p, seed) @ v
