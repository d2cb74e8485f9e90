"""Public functions of this family: they check their arguments and call a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rifflemix.checks import check_bool, check_integer
from rifflemix.errors import check_choice
from rifflemix.ops.permutation import backends
from rifflemix.ops.permutation.arguments import (
    ORDERS,
    Permuted,
    check_range,
    check_steps,
    check_values,
    sort_spec,
)


def circular_shift(
    x: Tensor,
    steps: Tensor | Sequence[int],
    *,
    key_padding_mask: Tensor | None = None,
    return_indices: bool = False,
    backend: str = "auto",
) -> Any:
    """Roll the tokens of each channel by its number of steps.

    out[b, n, c] = x[b, (n - steps[c]) mod N, c].

    Args:
        x: (B, N, C) tokens.
        steps: (C,) integers from -2^62 to 2^62, for example from `shift_steps`.
        key_padding_mask: (B, N) bool, True = padding. The L valid tokens of a sample roll over the
            L valid positions, mod L.
        return_indices: return (y, index) with y = x.gather(1, index) at valid positions.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        (B, N, C); with `return_indices` also the (B, N, C) int64 index.

    Raises:
        InputError: wrong shape or dtype.

    Source: CSP (Yuan and Xu), equation (3).

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.arange(8.0).reshape(1, 4, 2)
        >>> x[0].T
        tensor([[0., 2., 4., 6.],
                [1., 3., 5., 7.]])
        >>> rm.ops.circular_shift(x, [0, 1])[0].T
        tensor([[0., 2., 4., 6.],
                [7., 1., 3., 5.]])
    """
    check_values(x, key_padding_mask)
    check_bool("return_indices", return_indices)
    steps = check_steps(steps, x)
    module = backends.for_shift(x, key_padding_mask, backend)
    return _result(module.circular_shift(x, steps, key_padding_mask, return_indices))


def group_sort(
    x: Tensor,
    num_groups: int = 1,
    *,
    order: str | None = None,
    descending: Tensor | None = None,
    heads: int = 1,
    key_padding_mask: Tensor | None = None,
    return_indices: bool = False,
    backend: str = "auto",
) -> Any:
    """Sort every channel within contiguous groups of N / num_groups tokens.

    - "reference": reorder the values of a channel to the rank order of channel 0 in the group:
      out[n, c] = sorted_c[rank of x[n, 0]]. Channel 0 does not change. In each group, the
      permutation is the optimal transport from the channel to channel 0.
    - "ascending", "descending": sort every channel by its own values.

    All orders are stable: of equal values the earlier token comes first, also in descending order,
    and -0.0 equals 0.0. NaN comes after all numbers. Groups of two need only one comparison, not a
    sort.

    Args:
        x: (B, N, C) tokens.
        num_groups: groups K, a divisor of N.
        order: one of the names above. None means "ascending" if `descending` is given, otherwise
            "reference".
        descending: (C,) bool, channels to sort in descending order, for example from
            `interleave_columns`. Requires ascending order.
        heads: number of contiguous heads, each of C / heads channels. In reference order the first
            channel of a head is the reference of that head. Other orders ignore `heads`.
        key_padding_mask: (B, N) bool, True = padding. The valid tokens of a group are sorted over
            the valid positions of the group.
        return_indices: return (y, index) with y = x.gather(1, index) at valid positions.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        (B, N, C); with `return_indices` also the (B, N, C) int64 index.

    Raises:
        InputError: wrong shape or dtype, a number that is not a divisor, or `descending` together
            with an order other than "ascending".

    Source: CSP (Yuan and Xu), equations (4)-(5) and appendix B; Sliceformer (Yuan and Xu),
    section III.

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.tensor([[[3.0, 10.0], [1.0, 30.0], [2.0, 20.0]]])
        >>> rm.ops.group_sort(x)[0].T.tolist()
        [[3.0, 1.0, 2.0], [30.0, 10.0, 20.0]]
        >>> rm.ops.group_sort(x, order="ascending")[0].T.tolist()
        [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]
    """
    check_values(x, key_padding_mask)
    check_bool("return_indices", return_indices)
    spec = sort_spec(x, num_groups, heads, order, descending)
    module = backends.for_sort(x, spec, return_indices, backend)
    return _result(module.permute(x, None, spec, key_padding_mask, return_indices))


def channel_permute(
    x: Tensor,
    steps: Tensor | Sequence[int],
    num_groups: int,
    *,
    order: str = "reference",
    heads: int = 1,
    key_padding_mask: Tensor | None = None,
    return_indices: bool = False,
    backend: str = "auto",
) -> Any:
    """Apply CSP to a value matrix: `circular_shift`, then `group_sort`.

    Channel 0 shifts by steps[0]. Set steps[0] to 0 to keep the reference in place, as in the paper.
    In MEGA, this function replaces the whole attention product.

    Args:
        x: (B, N, C) values.
        steps: (C,) integers, see `circular_shift`.
        num_groups: groups K, a divisor of N.
        order: "reference", "ascending" or "descending", see `group_sort`.
        heads: number of heads, each with one reference channel; see `group_sort`.
        key_padding_mask: (B, N) bool, True = padding.
        return_indices: return (y, index) with y = x.gather(1, index) at valid positions.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        (B, N, C); with `return_indices` also the (B, N, C) int64 index.

    Raises:
        InputError: wrong shape or dtype, or a number that is not a divisor.

    Source: CSP (Yuan and Xu), equations (4)-(5).

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.tensor([[[3.0, 10.0], [1.0, 30.0], [2.0, 20.0], [4.0, 40.0]]])
        >>> rm.ops.channel_permute(x, steps=[0, 1], num_groups=2)[0].T.tolist()
        [[3.0, 1.0, 2.0, 4.0], [40.0, 10.0, 20.0, 30.0]]
    """
    check_values(x, key_padding_mask)
    check_bool("return_indices", return_indices)
    steps = check_steps(steps, x)
    check_choice("order", order, ORDERS)
    spec = sort_spec(x, num_groups, heads, order)
    module = backends.for_sort(x, spec, return_indices, backend)
    return _result(module.permute(x, steps, spec, key_padding_mask, return_indices))


def max_exchange(
    x: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    return_indices: bool = False,
    backend: str = "auto",
) -> Any:
    """Exchange the first token of each channel with the largest token.

    If several tokens have the largest value, the first of them is exchanged. NaN counts as the
    largest value, as in a sort.

    Args:
        x: (B, N, C) tokens.
        key_padding_mask: (B, N) bool, True = padding. The first valid token is exchanged with the
            largest valid token.
        return_indices: return (y, index) with y = x.gather(1, index) at valid positions.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, N, C); with `return_indices` also the (B, N, C) int64 index.

    Raises:
        InputError: wrong shape or dtype.

    Source: Sliceformer (Yuan and Xu), section III, Max-Exchange.

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.tensor([[[1.0, 6.0], [5.0, 2.0], [3.0, 4.0]]])
        >>> rm.ops.max_exchange(x)[0].T.tolist()
        [[5.0, 1.0, 3.0], [6.0, 2.0, 4.0]]
    """
    check_values(x, key_padding_mask)
    check_bool("return_indices", return_indices)
    module = backends.for_tokens(x, backend)
    return _result(module.max_exchange(x, key_padding_mask, return_indices))


def causal_shift(x: Tensor, steps: Tensor | Sequence[int], *, backend: str = "auto") -> Tensor:
    """Delay the tokens of each channel by its number of steps.

    out[b, n, c] = x[b, n - steps[c], c], zero where n < steps[c].

    Right padding does not change the result at valid tokens. Convert other padding to right padding
    first.

    Args:
        x: (B, N, C) tokens.
        steps: (C,) integers of at least 0.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, N, C).

    Raises:
        InputError: wrong shape or dtype, or a negative step.

    Source: docs/causal-permutations.md; CSP (Yuan and Xu), equation (3), without its wrap.

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.tensor([[[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]]])
        >>> rm.ops.causal_shift(x, steps=[0, 1])[0].T.tolist()
        [[1.0, 2.0, 3.0], [0.0, 5.0, 6.0]]
    """
    check_values(x, None)
    steps = check_steps(steps, x)
    check_range("steps", steps, 0, None)
    # Larger steps also give only zeros. A traced graph cannot read the steps to find the longest.
    longest = x.shape[1]
    module = backends.for_tokens(x, backend)
    return module.causal_shift(x, steps.clamp(max=longest), longest)


def rank_filter(
    x: Tensor, ranks: Tensor | Sequence[int], window_size: int, *, backend: str = "auto"
) -> Tensor:
    """Compute order statistics of the last `window_size` tokens, per channel.

    out[b, n, c] is the value with rank ranks[c] (0 for the smallest) among x[b, n-G+1..n, c].
    Tokens before the first token are zero. Of equal values the earlier token comes first, and -0.0
    equals 0.0. NaN comes after all numbers. The gradient flows to the selected token.

    Right padding does not change the result at valid tokens. Convert other padding to right padding
    first.

    Args:
        x: (B, N, C) tokens.
        ranks: (C,) integers from 0 to G - 1.
        window_size: tokens G in a window, including the current token. The compiled kernel supports
            at most 256.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (B, N, C).

    Raises:
        InputError: wrong shape or dtype, or a rank out of range.

    Source: docs/causal-permutations.md. The operator is known as rank filter; the best-known case
    is the median filter.

    Example:
        >>> import torch, rifflemix as rm
        >>> x = torch.tensor([[[3.0, 3.0], [1.0, 1.0], [2.0, 2.0]]])
        >>> rm.ops.rank_filter(x, ranks=[0, 2], window_size=3)[0].T.tolist()
        [[0.0, 0.0, 1.0], [3.0, 3.0, 3.0]]
    """
    check_values(x, None)
    window_size = check_integer("window_size", window_size, 1)
    ranks = check_steps(ranks, x, "ranks")
    check_range("ranks", ranks, 0, window_size - 1)
    return backends.for_windows(x, window_size, backend).rank_filter(x, ranks, window_size)


def _result(permuted: Permuted) -> Any:
    y, index = permuted
    return y if index is None else (y, index.contiguous())
