"""For every public operator, calls with drawn arguments that all its backends answer alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from attack_tensors import (
    DTYPES,
    Layout,
    divisor,
    layout,
    mask,
    numbers,
    poisoned,
    size,
    values,
)
from torch import Tensor

from rifflemix import ops
from rifflemix.ops.statistics.common import accumulation_dtype

BACKENDS = ("reference", "eager", "cpu", "triton", "auto")
_LITERAL = 1500  # numbers that a literal loop goes through in a moment


@dataclass(frozen=True)
class Call:
    """A call of an operator, to be made with each backend.

    Attributes:
        function: the operator; it takes `tensors`, then `settings`, then `backend`.
        tensors: what it is differentiated by, in front of the other arguments.
        settings: the others.
        layouts: how each of `tensors` lies in memory.
        is_literal: whether it is small enough for the reference.
        seed: of torch's generator at the start.
        terms: the size of the terms that add up to a gradient.
    """

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    layouts: tuple[Layout, ...] = ()
    is_literal: bool = True
    seed: int = 0
    terms: float = 1.0

    def backends(self) -> tuple[str, ...]:
        return BACKENDS if self.is_literal else BACKENDS[1:]

    def in_float64(self) -> Call:
        """The same numbers, wherever they stand among the arguments."""
        return replace(self, tensors=_widened(self.tensors), settings=_widened(self.settings))


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, ops.StatisticsState):
        return ops.StatisticsState(*map(_widened, value))
    if isinstance(value, tuple):
        return tuple(map(_widened, value))
    if isinstance(value, dict):
        return {key: _widened(inner) for key, inner in value.items()}
    return value


def _plain(x: Tensor) -> Tensor:
    return x


def _dtype(draw: random.Random) -> torch.dtype:
    return draw.choice(DTYPES)


# Channel-wise permutations: exact, for every number that there is.


def _permuted(draw: random.Random) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
    """Tokens, their padding, and options that all four take."""
    is_long = draw.random() < 0.15
    batch = draw.randint(1, 3)
    length = size(draw, 70_000 if is_long else 300)
    channels = draw.randint(1, 3) if is_long or length > 1000 else size(draw, 70)
    padded = mask(draw, batch, length)
    x = poisoned(draw, values(draw, (batch, length, channels), _dtype(draw)), padded)
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
    """Pairs often, since they have kernels of their own."""
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


def dropout(draw: random.Random) -> Call:
    shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(0, 3)))
    shape = (*shape, size(draw, 5000))
    x = values(draw, shape, _dtype(draw))
    lay = layout(draw) if x.dim() > 1 else _plain
    p = draw.choice((0.1, 0.5, 0.9, 1e-9, 1 - 1e-9, 0.25, draw.random()))
    return Call(ops.dropout, (x,), {"p": p}, (lay,), seed=draw.randrange(2**60))


def butterfly_split(draw: random.Random) -> Call:
    block, stride, times = (draw.randint(1, 6) for _ in range(3))
    shape = [draw.randint(1, 4) for _ in range(draw.randint(2, 4))]
    dim = draw.randrange(len(shape))
    shape[dim] = block * stride * times
    x = values(draw, tuple(shape), _dtype(draw))
    settings = {"block": block, "stride": stride, "dim": draw.choice((dim, dim - len(shape)))}
    return Call(ops.butterfly_split, (x,), settings, (layout(draw),))


def butterfly_merge(draw: random.Random) -> Call:
    block, stride, times = (draw.randint(1, 6) for _ in range(3))
    shape = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
    dim = draw.randrange(len(shape))
    shape[dim : dim + 1] = [stride * times, block]
    x = values(draw, tuple(shape), _dtype(draw))
    return Call(ops.butterfly_merge, (x,), {"stride": stride, "dim": dim}, (layout(draw),))


def sorted_padding_mask(draw: random.Random) -> Call:
    batch, heads, blocks, width = (draw.randint(1, 4) for _ in range(4))
    null = draw.randint(0, 2)
    sort = _eighths(batch, heads, draw.randint(1, 5), blocks + null, dtype=_dtype(draw))
    settings = {
        "block_size": width,
        "key_padding_mask": mask(draw, batch, blocks * width),
        "rule": draw.choice(("majority", "argmax")),
        "num_null": null,
    }
    return Call(ops.sorted_padding_mask, (sort,), settings, (layout(draw),))


def _eighths(*shape: int, dtype: torch.dtype) -> Tensor:
    """Weights whose sums are exact in every type: nothing hangs on the order of an addition."""
    return (torch.randint(0, 9, shape) / 8).to(dtype)


# Sums: as near to float64 as plain torch comes in their type.


def _heads(draw: random.Random) -> tuple[Tensor, Tensor | None, Tensor, bool]:
    """Tokens (B, H, N, D), padding, a temperature, and whether they are few."""
    batch, heads = draw.randint(1, 3), draw.choice((1, 2, 3, 8))
    length, features = size(draw, 260), size(draw, 34)
    is_few = draw.random() < 0.5
    if is_few:
        length, features = size(draw, 70), size(draw, 9)
    dtype = _dtype(draw)
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
    layouts = (layout(draw), _plain)
    return Call(ops.token_statistics, (w, temperature), settings, layouts, is_few)


def causal_token_statistics(draw: random.Random) -> Call:
    w, padded, temperature, is_few = _heads(draw)
    batch, heads, length, features = w.shape
    state = None
    if draw.random() < 0.5:
        shapes = ((batch, heads, features),) * 2 + ((batch, heads),)
        sums = [torch.rand(shape, dtype=accumulation_dtype(w.dtype)) for shape in shapes]
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
    layouts = (layout(draw), *(_plain,) * (len(tensors) - 1))
    return Call(ops.causal_token_statistics, tensors, settings, layouts, is_few)


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
    z = numbers(draw, (batch, length, channels), _dtype(draw))
    membership = _memberships(batch, draw.randint(1, 4), length, dtype=z.dtype)
    settings = {"scale": draw.choice((0.1, 1.0, 7.0))}
    return Call(ops.compression_rate, (z, membership), settings, (layout(draw), layout(draw)))


def dropout_attention(draw: random.Random) -> Call:
    batch, heads = draw.randint(1, 2), draw.randint(1, 3)
    queries, keys = size(draw, 200), size(draw, 200)
    width, out = size(draw, 34), size(draw, 34)
    dtype = _dtype(draw)
    q, k, v = (
        numbers(draw, (batch, heads, *shape), dtype)
        for shape in ((queries, width), (keys, width), (keys, out))
    )
    settings: dict[str, Any] = {"dropout_p": draw.choice((0.1, 0.5, 0.9))}
    kind = draw.choice(("none", "causal", "bool", "keys", "numbers"))
    if kind == "causal":
        settings["is_causal"] = True
    elif kind != "none":
        shape = (batch, 1, 1, keys) if kind == "keys" else (batch, heads, queries, keys)
        seen = torch.rand(shape) < draw.choice((0.1, 0.7))
        settings["mask"] = torch.randn(shape).to(dtype) if kind == "numbers" else seen
    layouts = (layout(draw), layout(draw), layout(draw))
    return Call(ops.dropout_attention, (q, k, v), settings, layouts, seed=draw.randrange(2**60))


def block_linear(draw: random.Random) -> Call:
    blocks, width, out = (draw.randint(1, 9) for _ in range(3))
    dtype = _dtype(draw)
    leading = tuple(draw.randint(1, 5) for _ in range(draw.randint(1, 3)))
    tensors = [
        numbers(draw, (*leading, blocks * width), dtype),
        numbers(draw, (blocks, width, out), dtype),
    ]
    if draw.random() < 0.5:
        tensors.append(numbers(draw, (blocks, out), dtype))
    return Call(ops.block_linear, tuple(tensors), {}, tuple(layout(draw) for _ in tensors))


def relaxed_group_sort(draw: random.Random) -> Call:
    batch, groups, width = draw.randint(1, 2), draw.randint(1, 4), draw.randint(1, 6)
    padded = mask(draw, batch, groups * width)
    x = numbers(draw, (batch, groups * width, draw.randint(1, 4)), _dtype(draw))
    settings = {
        "num_groups": groups,
        "temperature": draw.choice((0.3, 1.0, 5.0)),
        "num_iterations": draw.randint(1, 8),
        "key_padding_mask": padded,
        "return_plan": draw.random() < 0.5,
    }
    return Call(ops.relaxed_group_sort, (poisoned(draw, x, padded),), settings, (layout(draw),))


# Learned block sorting.


def _scores(draw: random.Random, null: int = 0) -> tuple[Tensor, Tensor | None, int]:
    """(..., n, null + n) scores, some of them minus infinity, and a mask of blocks."""
    leading = draw.choice(((), (2,), (2, 3)))
    blocks = size(draw, 9)
    scores = numbers(draw, (*leading, blocks, null + blocks), _dtype(draw))
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
    return layout(draw) if x.dim() > 2 else _plain


def gumbel_sinkhorn(draw: random.Random) -> Call:
    call = sinkhorn(draw)
    (scores,) = call.tensors
    temperature, kernel = draw.choice((0.2, 0.75, 2.0)), draw.choice(("exp", "relu"))
    settings = {**call.settings, "temperature": temperature, "kernel": kernel}
    if draw.random() < 0.5:
        settings["noise"] = ops.gumbel_noise(scores.shape, dtype=scores.dtype)
    slope = 1.0
    if kernel == "relu" and (scores > 0).any():  # the logarithm's, at the smallest score
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
    x = numbers(draw, (batch, blocks * width, size(draw, 9)), _dtype(draw))
    settings = {"block_size": width, "causal": draw.random() < 0.5, "key_padding_mask": padded}
    return Call(ops.pool_blocks, (poisoned(draw, x, padded),), settings, (layout(draw),))


def block_scores(draw: random.Random) -> Call:
    batch, heads, blocks, width, features = (draw.randint(1, 5) for _ in range(5))
    dtype = _dtype(draw)
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
    return Call(ops.block_scores, (q, k), settings, (layout(draw), layout(draw)))


def sort_blocks(draw: random.Random) -> Call:
    leading = tuple(draw.randint(1, 3) for _ in range(draw.randint(0, 2)))
    blocks, width, features, rows = (draw.randint(1, 6) for _ in range(4))
    dtype = _dtype(draw)
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
    dtype = _dtype(draw)
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
    dtype = _dtype(draw)
    causal = draw.random() < 0.4
    sortcut = 0 if causal or draw.random() < 0.6 else draw.randint(1, 3)
    per_block = draw.randint(1, 2)
    null = draw.choice((0, 0, 1, 2))
    rows = max(sortcut, draw.randint(1, 4)) if sortcut else blocks * per_block
    sort = _eighths(batch, heads, rows, null + blocks, dtype=dtype)
    if causal:
        earlier = torch.ones(blocks, blocks).tril(-1).repeat_interleave(per_block, 0)
        sort = sort * torch.cat((torch.ones(rows, null), earlier), 1).to(dtype)
    sortcut_local = bool(sortcut) and draw.random() < 0.5
    shared = bool(sortcut) and not sortcut_local
    one_block = not sortcut and per_block == 1
    combines = ["concat"] + ["sum_out"] * (not shared) + ["sum_logits"] * one_block
    padded = mask(draw, batch, length)
    q, k, v = (numbers(draw, (batch, heads, length, features), dtype) for _ in range(3))
    rule = draw.choice(("majority", "argmax"))
    settings: dict[str, Any] = {
        "block_size": width,
        "combine": draw.choice(combines),
        "sortcut": sortcut,
        "sortcut_local": sortcut_local,
        "mixture": draw.random() < 0.3,
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


EXACT: dict[str, Callable[[random.Random], Call]] = {
    "butterfly_merge": butterfly_merge,
    "butterfly_split": butterfly_split,
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
    "block_scores": block_scores,
    "causal_token_statistics": causal_token_statistics,
    "compression_rate": compression_rate,
    "dropout_attention": dropout_attention,
    "gumbel_sinkhorn": gumbel_sinkhorn,
    "pool_blocks": pool_blocks,
    "relaxed_group_sort": relaxed_group_sort,
    "sinkhorn": sinkhorn,
    "sinkhorn_attention": sinkhorn_attention,
    "sort_blocks": sort_blocks,
    "token_statistics": token_statistics,
    "top_k_blocks": top_k_blocks,
    "variational_compression_rate": variational_compression_rate,
}


def outputs_and_gradients(call: Call, backend: str) -> list[Tensor]:
    """What the call gives, then the gradients of a drawn weighted sum of it."""
    leaves = [
        x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in call.tensors
    ]
    lays = call.layouts or (_plain,) * len(leaves)
    inputs = [lay(leaf) for lay, leaf in zip(lays, leaves, strict=True)]
    torch.manual_seed(call.seed)
    outputs = list(_flat(call.function(*inputs, **call.settings, backend=backend)))
    weights = torch.Generator().manual_seed(call.seed + 1)
    losses = []
    for y in outputs:
        weight = torch.randn(y.shape, generator=weights, dtype=torch.float64).to(y.dtype)
        if y.requires_grad:
            # As from a sum: one number in all places, with strides of zero.
            weight = weight.flatten()[0].expand_as(y) if call.seed % 3 == 1 else weight
            losses.append((y, weight))
    found = [y.detach() for y in outputs]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not losses:  # what hangs on nothing has a gradient of zero
        return found + [torch.zeros_like(leaf) for leaf in wanted]
    ys, cotangents = zip(*losses, strict=True)
    return found + list(torch.autograd.grad(ys, wanted, cotangents, materialize_grads=True))


def _flat(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, tuple):
        for inner in outputs:
            yield from _flat(inner)
