"""Literal implementation of the equations: loops over samples, groups and channels.

Permutations return the values and the index (B, N, C) of the source token of each position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from rifflemix.ops.permutation.arguments import Permuted, SortSpec


def shift_steps(
    kind: str, tokens: int, channels: int, layer: int, layers: int, group_size: int, heads: int
) -> list[int]:
    """Compute CSP section 3.2.2, equation (3) ("head") and the released code ("code_...")."""
    return [
        _shift_step(kind, channel, tokens, channels, layer, layers, group_size, heads)
        for channel in range(channels)
    ]


def _shift_step(
    kind: str, c: int, tokens: int, channels: int, layer: int, layers: int, window: int, heads: int
) -> int:
    joint, all_channels = layer * channels + c, layers * channels
    if kind == "linear":
        return c * math.ceil(tokens / channels) % tokens
    if kind == "head":
        width = channels // heads
        return channels // width * (c // width) % tokens
    if kind == "code_linear":
        # The released code adds its sort window after every channel except the first.
        return window * max(c - 1, 0) % tokens
    if kind == "code_exp":
        # The ceiling of a rounded double, as in the released code. If the exact power is an
        # integer, rounding can increase the result by 1.
        power: float = tokens ** (joint / all_channels)
        return math.ceil(power) % tokens
    if kind == "power" and c > 0:
        with localcontext(prec=60):
            return round(Decimal(tokens) ** (Decimal(joint) / (all_channels - 1))) - 1
    return 0


def circular_shift(x: Tensor, steps: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Compute CSP equation (3) on the L valid tokens of a sample.

    out[i] = v[(i - J) mod L].
    """
    return _take(x, _shift_index(x, steps, mask), mask, with_index)


def permute(
    x: Tensor, steps: Tensor | None, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    """Compute CSP equation (5) on the valid tokens: P_c = T_c S_{J_c}, or (4) without a shift."""
    shift = _identity(x) if steps is None else _shift_index(x, steps, mask)
    sort = _sort_index(x.gather(1, shift), spec, mask)
    return _take(x, shift.gather(1, sort), mask, with_index)


def max_exchange(x: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    """Swap the first valid token and the first largest (Sliceformer)."""
    index = _identity(x)
    for sample, valid in enumerate(_valid_positions(x, mask)):
        for channel in range(x.shape[2] if valid else 0):
            values = x[sample, valid, channel].tolist()
            # NaN counts as the largest, as in a sort.
            largest = valid[max(range(len(values)), key=lambda at: _ascending(values[at]))]
            index[sample, valid[0], channel] = largest
            index[sample, largest, channel] = valid[0]
    return _take(x, index, mask, with_index)


def causal_shift(x: Tensor, steps: Tensor, longest: int) -> Tensor:
    """Compute u[n] = v[n - J], zero where n < J.

    J is at most `longest`.
    """
    v = torch.cat((x.new_zeros(x.shape[0], longest, x.shape[2]), x), 1)
    u = torch.empty_like(x)
    for channel, step in enumerate(steps.tolist()):
        for position in range(x.shape[1]):
            u[:, position, channel] = v[:, longest + position - step, channel]
    return u


def rank_filter(x: Tensor, ranks: Tensor, window_size: int) -> Tensor:
    """Compute y[n], the r-th smallest of v[n-G+1..n].

    Values before the first token are zero.
    """
    y = x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0.0)  # keeps y in x's graph
    for sample in range(x.shape[0]):
        for channel, rank in enumerate(ranks.tolist()):
            values = [0.0] * (window_size - 1) + x[sample, :, channel].tolist()
            for position in range(x.shape[1]):
                order = _argsort(values[position : position + window_size])
                taken = position - window_size + 1 + order[rank]
                if taken >= 0:
                    y[sample, position, channel] = x[sample, taken, channel]
    return y


def _shift_index(x: Tensor, steps: Tensor, mask: Tensor | None) -> Tensor:
    index = _identity(x)
    for sample, valid in enumerate(_valid_positions(x, mask)):
        for channel, step in enumerate(steps.tolist()):
            for rank, position in enumerate(valid):
                index[sample, position, channel] = valid[(rank - step) % len(valid)]
    return index


def _sort_index(x: Tensor, spec: SortSpec, mask: Tensor | None) -> Tensor:
    index = _identity(x)
    group_size = x.shape[1] // spec.num_groups
    head_width = x.shape[2] // spec.heads
    down = [False] * x.shape[2] if spec.descending is None else spec.descending.tolist()
    for sample, valid in enumerate(_valid_positions(x, mask)):
        for group in range(spec.num_groups):
            positions = [position for position in valid if position // group_size == group]
            for channel in range(x.shape[2]):
                order = _argsort(x[sample, positions, channel].tolist(), down[channel])
                if spec.by_reference:
                    leader = x[sample, positions, channel // head_width * head_width].tolist()
                    rank = _argsort(_argsort(leader))
                else:
                    rank = list(range(len(positions)))
                for at, position in enumerate(positions):
                    index[sample, position, channel] = positions[order[rank[at]]]
    return index


def _take(x: Tensor, index: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
    y = x.gather(1, index)
    if mask is not None:
        y = y.masked_fill(mask.unsqueeze(-1), 0.0)
    return y, index if with_index else None


def _ascending(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, value)


def _descending(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, -value)


def _argsort(values: list[float] | list[int], descending: bool = False) -> list[int]:
    key = _descending if descending else _ascending
    return sorted(range(len(values)), key=lambda at: key(values[at]))


def _valid_positions(x: Tensor, mask: Tensor | None) -> Iterator[list[int]]:
    for sample in range(x.shape[0]):
        padded = [False] * x.shape[1] if mask is None else mask[sample].tolist()
        yield [position for position, pad in enumerate(padded) if not pad]


def _identity(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device)[:, None].repeat(x.shape[0], 1, x.shape[2])
