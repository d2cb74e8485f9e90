"""Dropout in plain torch: seeded 32-bit arithmetic on a CPU, torch's own dropout elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from rifflemix.compat import (
    fused_attention_inputs,
    fused_attention_node,
    has_plain_autograd,
    has_values,
)
from rifflemix.ops.dropout.spec import (
    BLOCKS_PER_TILE,
    PARITY,
    ROTATIONS,
    ROUNDS,
    TILE,
    scale,
    threshold,
)
from rifflemix.ops.gradients import second_order_gradients

# Number of tiles generated together, so that their words stay in the CPU cache.
_TILES = 4096


def dropout(x: Tensor, p: float, seed: Tensor | None) -> Tensor:
    """See `rifflemix.ops.dropout`; uses torch's own dropout if `seed` is None."""
    if seed is None:
        return F.dropout(x, p)
    kept = is_kept(x.numel(), p, int(seed)).view(x.shape)
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.where(kept, x.to(wide) * scale(p), 0.0).to(x.dtype)


def dropout_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    is_padding: bool,
    p: float,
    seed: Tensor | None,
) -> Tensor:
    """See `rifflemix.ops.dropout_attention`; uses torch's own attention if `seed` is None."""
    if seed is None:
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, dropout_p=p
        )
    else:
        y = attend(q, k, v, mask, is_causal, partial(dropout, p=p, seed=seed))
    return without_padding(y, mask) if is_padding else y


def without_padding(y: Tensor, mask: Tensor | None) -> Tensor:
    """Set the outputs at padding to zero."""
    return y if mask is None else y.masked_fill(~mask[..., :1, :].mT, 0.0)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    drop: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(D)) v, with `mask` as in torch's attention.

    `drop` is applied to the weights.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    blind = None
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    # A query without keys gives 0, as in torch's attention. To avoid NaN, it first attends to all
    # keys, and its output is zeroed at the end.
    if mask is not None and mask.dtype == torch.bool:
        blind = ~mask.any(-1, keepdim=True)
        scores = scores.masked_fill(~(mask | blind), -torch.inf)
    elif mask is not None:
        blind = mask.detach().amax(-1, keepdim=True) == -torch.inf
        scores = scores + mask.masked_fill(blind, 0.0)
    y = drop(scores.softmax(-1)) @ v
    return y if blind is None else y.masked_fill(blind, 0.0)


def takes_seed(x: Tensor) -> bool:
    """Check whether the eager backend draws from a seed for `x`.

    It does so on a CPU, for tensors with values, outside transforms and compiled graphs.

    GPUs and the compiler have a fused torch dropout. Transforms control the randomness of each
    sample themselves.
    """
    draws = x.device.type == "cpu" and has_plain_autograd() and not torch.compiler.is_compiling()
    return draws and has_values(x)


def is_kept(count: int, p: float, seed: int) -> Tensor:
    """Return a (count,) bool mask of the elements that dropout keeps."""
    tiles = -(-count // TILE)
    parts = [
        _kept_in_tiles(first, min(first + _TILES, tiles), threshold(p), seed)
        for first in range(0, tiles, _TILES)
    ]
    return torch.cat(parts or [torch.empty(0, dtype=torch.bool, device="cpu")])[:count]


def _kept_in_tiles(first: int, last: int, limit: int, seed: int) -> Tensor:
    blocks = torch.arange(first * BLOCKS_PER_TILE, last * BLOCKS_PER_TILE, device="cpu")
    halves = _halves(blocks, 0, seed)
    upper = limit >> 16
    kept = halves > upper
    # One number in 65,536 needs its lower half. These are generated for whole tiles.
    (tied,) = (halves == upper).any(1).nonzero(as_tuple=True)
    if len(tied):
        lower = _halves(blocks.view(-1, BLOCKS_PER_TILE)[tied].flatten(), 1, seed)
        kept[tied] |= (halves[tied] == upper) & (lower >= limit & 0xFFFF)
    return kept.flatten()


def _halves(blocks: Tensor, stream: int, seed: int) -> Tensor:
    """Generate halves of random words, (tiles, 64) int32, from block numbers.

    `blocks` is (8 tiles,) int64.
    """
    low, high = _signed(seed), _signed(seed >> 32)
    keys = (low, high, 0, 0, PARITY ^ low ^ high)
    x = [
        blocks.to(torch.int32) + keys[0],
        (blocks >> 32).to(torch.int32) + keys[1],
        torch.full_like(blocks, _signed(stream + keys[2]), dtype=torch.int32),
        torch.full_like(blocks, keys[3], dtype=torch.int32),
    ]
    for r in range(ROUNDS):
        a, b = (1, 3) if r % 2 == 0 else (3, 1)
        for target, source, bits in zip((0, 2), (a, b), ROTATIONS[r % 8], strict=True):
            x[target] += x[source]
            # A right shift repeats the sign bit, so the upper bits are masked.
            top = (x[source] >> (32 - bits)) & ((1 << bits) - 1)
            x[source] = (x[source] << bits).bitwise_or_(top).bitwise_xor_(x[target])
        if r % 4 == 3:
            injection = (r + 1) // 4
            for i, word in enumerate(x):
                word += _signed(keys[(injection + i) % 5] + (injection if i == 3 else 0))
    words = torch.stack(x).view(4, -1, BLOCKS_PER_TILE).transpose(0, 1)  # (tiles, 4, 8)
    return torch.stack((words & 0xFFFF, words >> 16 & 0xFFFF), -1).flatten(1)


def _signed(word: int) -> int:
    """Reinterpret the lower 32 bits as int32."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def differentiate_again(y: Tensor) -> None:
    """Make the gradient of torch's attention differentiable, given its output `y`."""
    if torch.compiler.is_compiling() or not has_plain_autograd():
        return
    node = fused_attention_node(y)
    if node is not None:
        node.register_hook(_replace_gradients)


def _replace_gradients(
    gradients: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...] | None:
    """Compute differentiable gradients, or return None to keep torch's gradients."""
    if not torch.is_grad_enabled():
        return None
    try:
        q, k, v, mask, is_causal = fused_attention_inputs()
    except CheckpointError:  # torch does not support second order under checkpointing
        return None
    found = second_order_gradients(
        lambda q, k, v: (attend(q, k, v, mask, is_causal),), (q, k, v), grad_outputs[:1]
    )
    wanted = [new if old is not None else None for new, old in zip(found, gradients, strict=False)]
    return (*wanted, *gradients[3:])
