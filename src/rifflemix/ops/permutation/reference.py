"""Literal implementation of the equations: loops over samples, groups and channels.

Permutations return the values and the index (B, N, C) of the source token of each position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from rifflemix.ops.permutation.spec import Permuted, SortSpec


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


def group_sort(x: Tensor, spec: SortSpec, mask: Tensor | None, with_index: bool) -> Permuted:
    """Compute CSP equations (4) and (5) on the valid tokens."""
    return _take(x, _sort_index(x, spec, mask), mask, with_index)


def channel_permute(
    x: Tensor, steps: Tensor, spec: SortSpec, mask: Tensor | None, with_index: bool
) -> Permuted:
    """Compute CSP equation (5): P_c = T_c S_{J_c}."""
    shift = _shift_index(x, steps, mask)
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


def relaxed_plan(
    x: Tensor, num_groups: int, temperature: float, num_iterations: int, mask: Tensor | None
) -> Tensor:
    """Compute CSP equations (8) and (9): normalize exp(v_1 v_c^T / temperature) alternately.

    The rows and columns of the kernel are scaled first. This does not change the limit.
    """
    batch, length, channels = x.shape
    size = length // num_groups
    plan = torch.eye(size, dtype=x.dtype, device=x.device).repeat(batch, num_groups, channels, 1, 1)
    for sample, valid in enumerate(_valid_positions(x, mask)):
        for group in range(num_groups):
            inside = [position - group * size for position in valid if position // size == group]
            if not inside:
                continue
            values = x[sample, group * size : (group + 1) * size][inside]
            rows, columns = torch.meshgrid(*[torch.tensor(inside)] * 2, indexing="ij")
            for channel in range(channels):
                gain = torch.outer(values[:, 0], values[:, channel])
                f, g = _optimal_potentials(values[:, 0], values[:, channel])
                kernel = torch.exp((gain - f[:, None] - g[None, :]) / temperature)
                for _ in range(num_iterations):
                    kernel = kernel / kernel.sum(dim=1, keepdim=True)
                    kernel = kernel / kernel.sum(dim=0, keepdim=True)
                plan[sample, group, channel, rows, columns] = kernel
    return plan


def _optimal_potentials(leader: Tensor, channel: Tensor) -> tuple[Tensor, Tensor]:
    """Solve the dual of appendix B.

    f_n + g_m >= leader_n channel_m, with equality if n and m have the same rank.
    """
    rows, columns = leader.argsort(stable=True), channel.argsort(stable=True)
    f, g = torch.zeros_like(leader), torch.zeros_like(channel)
    for rank, (n, m) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        if rank:
            before, partner = rows[rank - 1], columns[rank - 1]
            slope = (channel[partner] + channel[m]) / 2
            f[n] = f[before] + (leader[n] - leader[before]) * slope
        g[m] = leader[n] * channel[m] - f[n]
    return f, g


def soft_sort(x: Tensor, num_groups: int, temperature: float, mask: Tensor | None) -> Tensor:
    """Project (0, 1, ..) / temperature onto the permutahedron of the values."""

    def fit(values: Tensor, ranks: Tensor) -> Tensor:
        return _project(ranks / temperature, values)

    return _for_sorted(fit, x, num_groups, mask, by_rank=True)


def soft_rank(x: Tensor, num_groups: int, temperature: float, mask: Tensor | None) -> Tensor:
    """Project the values / temperature onto the permutahedron of 0, 1, .."""

    def fit(values: Tensor, ranks: Tensor) -> Tensor:
        return _project(values / temperature, ranks)

    return _for_sorted(fit, x, num_groups, mask, by_rank=False)


def _project(z: Tensor, w: Tensor) -> Tensor:
    """Project z onto the convex hull of all permutations of w.

    z and w are ascending. By Blondel et al. 2020, the point is z minus v, the nondecreasing
    least-squares fit to z - w: v[i] = max over j <= i of min over k >= i of the mean of j..k.
    """
    if not (z.isfinite().all() and w.isfinite().all()):
        return z * float("nan")
    i = torch.arange(len(z))
    j, k = i[:, None], i
    sums = torch.cat((z.new_zeros(1), (z - w).cumsum(0)))
    means = (sums[1:] - sums[:-1, None]) / (k - j + 1).clamp(min=1)
    means = means.masked_fill(k < j, math.inf)
    lowest = means.flip(1).cummin(1).values.flip(1)
    return z - lowest.masked_fill(j > i, -math.inf).max(0).values


def _for_sorted(
    fit: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    num_groups: int,
    mask: Tensor | None,
    by_rank: bool,
) -> Tensor:
    """Apply `fit` to the sorted values and ranks, in float64.

    by_rank=True writes the results to the valid positions in ascending order. by_rank=False writes
    each result to the position of its value.
    """
    rows = []
    size = x.shape[1] // num_groups
    for sample, valid in enumerate(_valid_positions(x, mask)):
        for channel in range(x.shape[2]):
            row = torch.zeros_like(x[sample, :, channel], dtype=torch.float64)
            for group in range(num_groups):
                places = [position for position in valid if position // size == group]
                if not places:
                    continue
                order = _argsort(x[sample, places, channel].tolist())
                from_places = [places[at] for at in order]
                values = x[sample, from_places, channel].double()
                fitted = fit(values, torch.arange(len(places), dtype=torch.float64))
                onto = places if by_rank else from_places
                row = row.index_copy(0, torch.tensor(onto), fitted)
            rows.append(row)
    batch, length, channels = x.shape
    if not rows:
        return torch.zeros_like(x)
    return torch.stack(rows).view(batch, channels, length).transpose(1, 2).to(x.dtype)


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
