"""Randomly drawn calls of every public operator, for which all backends must agree."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch
from attack_calls import Call
from attack_sinkhorn import (
    block_attention,
    block_scores,
    gumbel_sinkhorn,
    pool_blocks,
    sinkhorn,
    sinkhorn_attention,
    sort_blocks,
    top_k_blocks,
)
from attack_tensors import (
    any_dtype,
    divisor,
    eighths,
    layout,
    mask,
    numbers,
    plain,
    poisoned,
    size,
    values,
)
from torch import Tensor

from rifflemix import ops
from rifflemix.ops.statistics.common import accumulation_dtype

_LITERAL = 1500  # number of values that the Python loops of the reference can process quickly


# Channel-wise permutations: exact for all values.


def _permuted(draw: random.Random) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
    """Draw tokens, their padding mask, and options that all four operators accept."""
    is_long = draw.random() < 0.15
    batch = draw.randint(1, 3)
    length = size(draw, 70_000 if is_long else 300)
    channels = draw.randint(1, 3) if is_long or length > 1000 else size(draw, 70)
    padded = mask(draw, batch, length)
    x = poisoned(draw, values(draw, (batch, length, channels), any_dtype(draw)), padded)
    return x, padded, {"key_padding_mask": padded, "return_indices": draw.random() < 0.5}


def _steps(draw: random.Random, x: Tensor) -> Any:
    reach = draw.choice((1, x.shape[1], 3 * x.shape[1], 2**62))
    steps = [draw.randint(-reach, reach) for _ in range(x.shape[2])]
    return draw.choice((steps, torch.tensor(steps)))


def _permutation(draw: random.Random, function: Any, x: Tensor, settings: dict[str, Any]) -> Call:
    return Call(function, (x,), settings, (layout(draw),), is_literal=x.numel() <= _LITERAL)


def circular_shift(draw: random.Random) -> Call:
    x, _, options = _permuted(draw)
    return _permutation(draw, ops.circular_shift, x, {"steps": _steps(draw, x), **options})


def _groups(draw: random.Random, length: int) -> int:
    """Draw a number of groups; pairs are frequent because they have separate kernels."""
    if length % 2 == 0 and draw.random() < 0.3:
        return length // 2
    return divisor(draw, length)


def group_sort(draw: random.Random) -> Call:
    x, _, options = _permuted(draw)
    order = draw.choice(("reference", "ascending", "descending", "mixed"))
    options["num_groups"] = _groups(draw, x.shape[1])
    options["heads"] = divisor(draw, x.shape[2])
    if order == "mixed":
        options["descending"] = torch.rand(x.shape[2]) < 0.5
    else:
        options["order"] = order
    return _permutation(draw, ops.group_sort, x, options)


def channel_permute(draw: random.Random) -> Call:
    x, _, options = _permuted(draw)
    options["steps"] = _steps(draw, x)
    options["num_groups"] = _groups(draw, x.shape[1])
    options["heads"] = divisor(draw, x.shape[2])
    options["order"] = draw.choice(("reference", "ascending", "descending"))
    return _permutation(draw, ops.channel_permute, x, options)


def max_exchange(draw: random.Random) -> Call:
    x, _, options = _permuted(draw)
    return _permutation(draw, ops.max_exchange, x, options)


def causal_shift(draw: random.Random) -> Call:
    x, _, _ = _permuted(draw)
    reach = draw.choice((1, x.shape[1], 3 * x.shape[1], 2**62))
    steps = [draw.randint(0, reach) for _ in range(x.shape[2])]
    return _permutation(
        draw, ops.causal_shift, x, {"steps": draw.choice((steps, torch.tensor(steps)))}
    )


def dropout(draw: random.Random) -> Call:
    shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(0, 3)))
    shape = (*shape, size(draw, 5000))
    x = values(draw, shape, any_dtype(draw))
    lay = layout(draw) if x.dim() > 1 else plain
    p = draw.choice((0.1, 0.5, 0.9, 1e-9, 1 - 1e-9, 0.25, draw.random()))
    return Call(ops.dropout, (x,), {"p": p}, (lay,), seed=draw.randrange(2**60))


def butterfly_split(draw: random.Random) -> Call:
    block, stride, times = (draw.randint(1, 6) for _ in range(3))
    shape = [draw.randint(1, 4) for _ in range(draw.randint(2, 4))]
    dim = draw.randrange(len(shape))
    shape[dim] = block * stride * times
    x = values(draw, tuple(shape), any_dtype(draw))
    settings = {"block": block, "stride": stride, "dim": draw.choice((dim, dim - len(shape)))}
    return Call(ops.butterfly_split, (x,), settings, (layout(draw),))


def butterfly_merge(draw: random.Random) -> Call:
    block, stride, times = (draw.randint(1, 6) for _ in range(3))
    shape = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
    dim = draw.randrange(len(shape))
    shape[dim : dim + 1] = [stride * times, block]
    x = values(draw, tuple(shape), any_dtype(draw))
    return Call(ops.butterfly_merge, (x,), {"stride": stride, "dim": dim}, (layout(draw),))


def sorted_padding_mask(draw: random.Random) -> Call:
    batch, heads, blocks, width = (draw.randint(1, 4) for _ in range(4))
    null = draw.randint(0, 2)
    sort = eighths(batch, heads, draw.randint(1, 5), blocks + null, dtype=any_dtype(draw))
    settings = {
        "block_size": width,
        "key_padding_mask": mask(draw, batch, blocks * width),
        "rule": draw.choice(("majority", "argmax")),
        "num_null": null,
    }
    return Call(ops.sorted_padding_mask, (sort,), settings, (layout(draw),))


# Sums: as close to float64 as plain torch in the same type.


def _heads(draw: random.Random) -> tuple[Tensor, Tensor | None, Tensor, bool]:
    """Draw tokens (B, H, N, D), padding, a temperature, and whether the sizes are small."""
    batch, heads = draw.randint(1, 3), draw.choice((1, 2, 3, 8))
    length, features = size(draw, 260), size(draw, 34)
    is_few = draw.random() < 0.5
    if is_few:
        length, features = size(draw, 70), size(draw, 9)
    dtype = any_dtype(draw)
    padded = mask(draw, batch, length)
    w = numbers(draw, (batch, heads, length, features), dtype)
    w = poisoned(draw, w * draw.choice((1.0, 1.0, 1e-2, 8.0)), padded)
    temperature = torch.randn(heads).to(draw.choice((dtype, torch.float32)))
    return w, padded, temperature, is_few


def token_statistics(draw: random.Random) -> Call:
    w, padded, temperature, is_few = _heads(draw)
    settings = {
        "normalize": draw.random() < 0.7,
        "key_padding_mask": padded,
        "return_membership": draw.random() < 0.5,
    }
    layouts = (layout(draw, padded), plain)
    return Call(ops.token_statistics, (w, temperature), settings, layouts, is_few)


def causal_token_statistics(draw: random.Random) -> Call:
    w, padded, temperature, is_few = _heads(draw)
    batch, heads, length, features = w.shape
    state = None
    if draw.random() < 0.5:
        shapes = ((batch, heads, features),) * 2 + ((batch, heads),)
        sums = [torch.rand(shape, dtype=torch.float64) for shape in shapes]
        state = ops.StatisticsState(*sums, torch.randint(0, 4, (batch,)))
    settings = {
        "initial_state": state,
        "key_padding_mask": padded,
        "return_membership": draw.random() < 0.5,
        "return_state": draw.random() < 0.5,
    }
    tensors: tuple[Tensor, ...] = (w, temperature)
    if draw.random() < 0.5:
        tensors = (*tensors, torch.randn(heads, length + 4).to(temperature.dtype) * 0.3)
    layouts = (layout(draw, padded), *(plain,) * (len(tensors) - 1))
    return Call(ops.causal_token_statistics, tensors, settings, layouts, is_few)


def linear_recurrence(draw: random.Random) -> Call:
    """Draw all variants, with keys that keep the state bounded."""
    batch, heads, length = draw.randint(1, 3), draw.choice((1, 2, 3)), size(draw, 200)
    keys, values = size(draw, 34), size(draw, 34)
    is_few = draw.random() < 0.5
    if is_few:
        length, keys, values = size(draw, 12), size(draw, 5), size(draw, 5)
    dtype = any_dtype(draw)
    padded = mask(draw, batch, length)
    shape = (batch, heads, length)
    q, v = (numbers(draw, (*shape, n), dtype) for n in (keys, values))
    k = torch.nn.functional.normalize(torch.randn(*shape, keys), dim=-1).to(dtype)
    q, k, v = (poisoned(draw, x, padded) for x in (q, k, v))
    wide = torch.promote_types(dtype, torch.float32)
    settings: dict[str, Any] = {
        "key_padding_mask": padded,
        "return_state": draw.random() < 0.5,
    }
    if draw.random() < 0.6:
        gates = (*shape, keys) if draw.random() < 0.5 else shape
        settings["log_decay"] = -draw.choice((1e-3, 1.0, 60.0)) * torch.rand(gates)
    if draw.random() < 0.5:
        settings["beta"] = torch.rand(shape) * 2
    if draw.random() < 0.5:
        settings["initial_state"] = torch.randn(batch, heads, keys, values, dtype=wide)
    layouts = (layout(draw, padded), layout(draw, padded), layout(draw, padded))
    return Call(ops.linear_recurrence, (q, k, v), settings, layouts, is_few)


def rank_filter(draw: random.Random) -> Call:
    """Draw windows below and above the limit of the kernels.

    The gradient sums over windows.
    """
    batch, length, channels = draw.randint(1, 2), size(draw, 130), size(draw, 40)
    x = numbers(draw, (batch, length, channels), any_dtype(draw))
    most = max(2, min(300, 60_000 // x.numel()))
    window = draw.choice((2, draw.randint(1, min(most, 9)), draw.randint(1, most)))
    ranks = [draw.randrange(window) for _ in range(channels)]
    settings = {"ranks": draw.choice((ranks, torch.tensor(ranks))), "window_size": window}
    is_few = x.numel() <= _LITERAL
    return Call(ops.rank_filter, (x,), settings, (layout(draw),), is_literal=is_few)


def _memberships(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=accumulation_dtype(dtype)).softmax(1)


def variational_compression_rate(draw: random.Random) -> Call:
    w = _heads(draw)[0].nan_to_num(0.0, 0.0, 0.0).clamp(-9, 9)
    membership = _memberships(*w.shape[:3], dtype=w.dtype)
    settings = {"scale": draw.choice((0.1, 1.0, 7.0))}
    layouts = (layout(draw), layout(draw))
    is_few = w.numel() <= _LITERAL
    return Call(ops.variational_compression_rate, (w, membership), settings, layouts, is_few)


def compression_rate(draw: random.Random) -> Call:
    batch, length, channels = draw.randint(1, 3), size(draw, 70), draw.randint(1, 9)
    z = numbers(draw, (batch, length, channels), any_dtype(draw))
    membership = _memberships(batch, draw.randint(1, 4), length, dtype=z.dtype)
    settings = {"scale": draw.choice((0.1, 1.0, 7.0))}
    return Call(ops.compression_rate, (z, membership), settings, (layout(draw), layout(draw)))


def dropout_attention(draw: random.Random) -> Call:
    batch, heads = draw.randint(1, 2), draw.randint(1, 3)
    kind = draw.choice(("none", "causal", "bool", "keys", "padding", "numbers"))
    queries, keys = size(draw, 200), size(draw, 200)
    if kind == "padding":
        queries = keys
    width, out = size(draw, 34), size(draw, 34)
    dtype = any_dtype(draw)
    q, k, v = (
        numbers(draw, (batch, heads, *shape), dtype)
        for shape in ((queries, width), (keys, width), (keys, out))
    )
    settings: dict[str, Any] = {"dropout_p": draw.choice((0.1, 0.5, 0.9))}
    if kind == "causal":
        settings["is_causal"] = True
    elif kind == "padding":
        padded = torch.rand(batch, keys) < draw.choice((0.0, 0.3, 1.0))
        padded |= torch.arange(keys) >= torch.randint(keys + 1, (batch, 1))
        settings |= {"mask": ~padded[:, None, None], "is_padding": True}
    elif kind != "none":
        shape = (batch, 1, 1, keys) if kind == "keys" else (batch, heads, queries, keys)
        seen = torch.rand(shape) < draw.choice((0.1, 0.7))
        settings["mask"] = torch.randn(shape).to(dtype) if kind == "numbers" else seen
    layouts = (layout(draw), layout(draw), layout(draw))
    # Gradients of the scores are differences of products dy v, scaled by 1 / (1 - p) at kept
    # positions. If a query sees a single key they cancel, and the rounding errors of all queries
    # add up at that key.
    terms = 4.0 * (out * queries) ** 0.5 / (1.0 - settings["dropout_p"])  # values are at most 4
    seed = draw.randrange(2**60)
    return Call(ops.dropout_attention, (q, k, v), settings, layouts, seed=seed, terms=terms)


def block_linear(draw: random.Random) -> Call:
    blocks, width, out = (draw.randint(1, 9) for _ in range(3))
    dtype = any_dtype(draw)
    leading = tuple(draw.randint(1, 40 // n) for n in range(1, draw.randint(1, 3) + 1))
    tensors = [
        numbers(draw, (*leading, blocks * width), dtype),
        numbers(draw, (blocks, width, out), dtype),
    ]
    if draw.random() < 0.5:
        tensors.append(numbers(draw, (blocks, out), dtype))
    divisors = [n for n in range(1, blocks + 1) if blocks % n == 0]
    strides = {name: draw.choice(divisors) for name in ("in_stride", "out_stride")}
    return Call(ops.block_linear, tuple(tensors), strides, tuple(layout(draw) for _ in tensors))


def block_mlp(draw: random.Random) -> Call:
    """Draw one to three layers with equal numbers of blocks.

    Values are about 1, because torch's 1 + erf cancels for smaller values.
    """
    blocks, width = draw.randint(1, 9), draw.randint(1, 9)
    dtype = any_dtype(draw)
    leading = tuple(draw.randint(1, 40 // n) for n in range(1, draw.randint(1, 3) + 1))
    tensors = [numbers(draw, (*leading, blocks * width), dtype)]
    divisors = [n for n in range(1, blocks + 1) if blocks % n == 0]
    has_bias: list[bool] = []
    settings: dict[str, Any] = {}
    for index in range(draw.randint(1, 3)):
        out = draw.randint(1, 9)
        has_bias.append(draw.random() < 0.5)
        tensors.append(numbers(draw, (blocks, width, out), dtype) / (16 * width))
        tensors += [numbers(draw, (blocks, out), dtype) / 8] if has_bias[-1] else []
        settings[f"in_stride_{index}"] = draw.choice(divisors)
        settings[f"out_stride_{index}"] = draw.choice(divisors)
        settings[f"activation_{index}"] = draw.choice((None, "gelu", "elu"))
        width = out
    layouts = tuple(layout(draw) for _ in tensors)
    # Slopes are rounded, and parameter gradients sum the rounding errors of all rows.
    return Call(partial(_chain, has_bias), tuple(tensors), settings, layouts, terms=4.0)


def _chain(
    has_bias: list[bool], x: Tensor, *parameters: Tensor, backend: str, **settings: Any
) -> Tensor:
    rest, others = iter(parameters), iter(settings.values())
    maps = [
        ops.BlockMap(next(rest), next(rest) if biased else None, *islice(others, 3))
        for biased in has_bias
    ]
    return ops.block_mlp(x, maps, backend=backend)


EXACT: dict[str, Callable[[random.Random], Call]] = {
    "butterfly_merge": butterfly_merge,
    "butterfly_split": butterfly_split,
    "causal_shift": causal_shift,
    "channel_permute": channel_permute,
    "circular_shift": circular_shift,
    "dropout": dropout,
    "group_sort": group_sort,
    "max_exchange": max_exchange,
    "sorted_padding_mask": sorted_padding_mask,
}
CLOSE: dict[str, Callable[[random.Random], Call]] = {
    "block_attention": block_attention,
    "block_linear": block_linear,
    "block_mlp": block_mlp,
    "block_scores": block_scores,
    "causal_token_statistics": causal_token_statistics,
    "compression_rate": compression_rate,
    "dropout_attention": dropout_attention,
    "gumbel_sinkhorn": gumbel_sinkhorn,
    "linear_recurrence": linear_recurrence,
    "pool_blocks": pool_blocks,
    "rank_filter": rank_filter,
    "sinkhorn": sinkhorn,
    "sinkhorn_attention": sinkhorn_attention,
    "sort_blocks": sort_blocks,
    "token_statistics": token_statistics,
    "top_k_blocks": top_k_blocks,
    "variational_compression_rate": variational_compression_rate,
}
