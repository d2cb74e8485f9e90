"""Randomly drawn calls of the operators of learned block sorting."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from attack_calls import Call
from attack_tensors import (
    Layout,
    any_dtype,
    eighths,
    layout,
    mask,
    numbers,
    plain,
    poisoned,
    size,
)
from torch import Tensor

from rifflemix import ops


def _scores(draw: random.Random, null: int = 0) -> tuple[Tensor, Tensor | None, int]:
    """Draw (..., n, null + n) scores, some of them minus infinity, and a block mask."""
    leading = draw.choice(((), (2,), (2, 3)))
    blocks = size(draw, 9)
    scores = numbers(draw, (*leading, blocks, null + blocks), any_dtype(draw))
    scores = scores * draw.choice((1.0, 4.0))
    if draw.random() < 0.3:
        scores = scores.masked_fill(torch.rand(scores.shape) < 0.2, float("-inf"))
    padded = None
    if draw.random() < 0.4:
        padded = torch.rand(*leading[:1], blocks) < 0.4
    return scores, padded, blocks


def sinkhorn(draw: random.Random) -> Call:
    scores, padded, _ = _scores(draw)
    settings = {
        "num_iterations": draw.randint(0, 6),
        "causal": draw.random() < 0.5,
        "final_row_norm": draw.random() < 0.5,
        "block_padding_mask": padded,
    }
    return Call(ops.sinkhorn, (scores,), settings, (_layout_of_matrices(draw, scores),))


def _layout_of_matrices(draw: random.Random, x: Tensor) -> Layout:
    return layout(draw) if x.dim() > 2 else plain


def gumbel_sinkhorn(draw: random.Random) -> Call:
    call = sinkhorn(draw)
    (scores,) = call.tensors
    temperature, kernel = draw.choice((0.2, 0.75, 2.0)), draw.choice(("exp", "relu"))
    settings = {**call.settings, "temperature": temperature, "kernel": kernel}
    if draw.random() < 0.5:
        settings["noise"] = ops.gumbel_noise(scores.shape, dtype=scores.dtype)
    slope = 1.0
    if kernel == "relu" and (scores > 0).any():  # slope of the logarithm at the smallest score
        slope = 1 / float(scores[scores > 0].min() + 1e-6)
    return replace(call, function=ops.gumbel_sinkhorn, settings=settings, terms=slope / temperature)


def top_k_blocks(draw: random.Random) -> Call:
    null = draw.randint(0, 2)
    scores, padded, blocks = _scores(draw, null)
    settings = {
        "k": draw.randint(1, blocks + null),
        "temperature": draw.choice((0.3, 1.0, 3.0)),
        "causal": draw.random() < 0.5,
        "num_null": null,
        "block_padding_mask": padded,
    }
    return Call(ops.top_k_blocks, (scores,), settings, (_layout_of_matrices(draw, scores),))


def pool_blocks(draw: random.Random) -> Call:
    batch, blocks, width = draw.randint(1, 3), draw.randint(1, 6), draw.randint(1, 6)
    padded = mask(draw, batch, blocks * width)
    x = numbers(draw, (batch, blocks * width, size(draw, 9)), any_dtype(draw))
    settings = {"block_size": width, "causal": draw.random() < 0.5, "key_padding_mask": padded}
    return Call(ops.pool_blocks, (poisoned(draw, x, padded),), settings, (layout(draw, padded),))


def block_scores(draw: random.Random) -> Call:
    batch, heads, blocks, width, features = (draw.randint(1, 5) for _ in range(5))
    dtype = any_dtype(draw)
    padded = mask(draw, batch, blocks * width)
    shape = (batch, heads, blocks * width, features)
    q, k = (poisoned(draw, numbers(draw, shape, dtype), padded) for _ in range(2))
    causal = draw.random() < 0.5
    settings = {
        "block_size": width,
        "causal": causal,
        "shared": not causal and draw.random() < 0.3,
        "key_padding_mask": padded,
    }
    layouts = (layout(draw, padded), layout(draw, padded))
    return Call(ops.block_scores, (q, k), settings, layouts)


def sort_blocks(draw: random.Random) -> Call:
    leading = tuple(draw.randint(1, 3) for _ in range(draw.randint(0, 2)))
    blocks, width, features, rows = (draw.randint(1, 6) for _ in range(4))
    dtype = any_dtype(draw)
    tensors = (
        numbers(draw, (*leading, blocks, width, features), dtype),
        torch.rand(*leading, rows, blocks).to(dtype),
    )
    return Call(ops.sort_blocks, tensors, {}, (layout(draw), _layout_of_matrices(draw, tensors[1])))


def block_attention(draw: random.Random) -> Call:
    batch, heads, blocks = (draw.randint(1, 3) for _ in range(3))
    width, features = draw.randint(1, 5), draw.randint(1, 5)
    combine = draw.choice(("concat", "sum_logits", "sum_out"))
    others = width if combine == "sum_logits" else draw.randint(1, 6)
    dtype = any_dtype(draw)
    leading = (batch, heads, blocks)
    tensors = [numbers(draw, (*leading, width, features), dtype) for _ in range(3)]
    tensors += [numbers(draw, (*leading, others, features), dtype) for _ in range(2)]
    hide = [None, torch.rand(width, 1) < 0.5, torch.rand(batch, 1, 1, 1, 1) < 0.3]
    settings = {
        "combine": combine,
        "hidden": draw.choice([*hide, torch.rand(*leading, width, width) < 0.5]),
        "sorted_hidden": draw.choice([*hide, torch.rand(*leading, width, others) < 0.5]),
    }
    return Call(ops.block_attention, tuple(tensors), settings, tuple(layout(draw) for _ in tensors))


def sinkhorn_attention(draw: random.Random) -> Call:
    batch, heads = draw.randint(1, 2), draw.randint(1, 2)
    blocks, width, features = (draw.randint(1, 4) for _ in range(3))
    length = blocks * width
    dtype = any_dtype(draw)
    plain = draw.random() < 0.3  # settings that the compiled kernel supports
    causal = not plain and draw.random() < 0.4
    sortcut = 0 if plain or causal or draw.random() < 0.6 else draw.randint(1, 3)
    per_block = draw.randint(1, 2)
    null = 0 if plain else draw.choice((0, 0, 1, 2))
    rows = max(sortcut, draw.randint(1, 4)) if sortcut else blocks * per_block
    sort = eighths(batch, heads, rows, null + blocks, dtype=dtype)
    if causal:
        earlier = torch.ones(blocks, blocks).tril(-1).repeat_interleave(per_block, 0)
        sort = sort * torch.cat((torch.ones(rows, null), earlier), 1).to(dtype)
    sortcut_local = bool(sortcut) and draw.random() < 0.5
    shared = bool(sortcut) and not sortcut_local
    one_block = not sortcut and per_block == 1
    combines = ["concat"] + ["sum_out"] * (not shared) + ["sum_logits"] * one_block
    padded = None if plain else mask(draw, batch, length)
    q, k, v = (numbers(draw, (batch, heads, length, features), dtype) for _ in range(3))
    rule = draw.choice(("majority", "argmax"))
    settings: dict[str, Any] = {
        "block_size": width,
        "combine": "concat" if plain else draw.choice(combines),
        "sortcut": sortcut,
        "sortcut_local": sortcut_local,
        "mixture": not plain and draw.random() < 0.3,
        "causal": causal,
        "key_padding_mask": padded,
        "padding_rule": rule,
        "rotation": draw.randrange(width) if causal else 0,
    }
    if null:
        settings["null_kv"] = tuple(numbers(draw, (heads, features), dtype) for _ in range(2))
    return Call(
        ops.sinkhorn_attention,
        (q, k, v, sort),
        settings,
        tuple(layout(draw) for _ in range(4)),
    )
