"""Group sort with a soft order: entropic optimal transport instead of a permutation."""

from __future__ import annotations

from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.checks import check_bool, check_integer, check_positive
from rifflemix.ops.dispatch import PLAIN, choose
from rifflemix.ops.permutation import eager, reference
from rifflemix.ops.permutation.arguments import check_groups, check_values
from rifflemix.ops.sinkhorn import sinkhorn


@overload
def relaxed_group_sort(
    x: Tensor,
    num_groups: int = ...,
    *,
    temperature: float,
    num_iterations: int = ...,
    key_padding_mask: Tensor | None = ...,
    return_plan: Literal[False] = ...,
    backend: str = ...,
) -> Tensor: ...


@overload
def relaxed_group_sort(
    x: Tensor,
    num_groups: int = ...,
    *,
    temperature: float,
    num_iterations: int = ...,
    key_padding_mask: Tensor | None = ...,
    return_plan: Literal[True],
    backend: str = ...,
) -> tuple[Tensor, Tensor]: ...


def relaxed_group_sort(
    x: Tensor,
    num_groups: int = 1,
    *,
    temperature: float,
    num_iterations: int = 20,
    key_padding_mask: Tensor | None = None,
    return_plan: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Reference-order group sort whose order has gradients too.

    In every group of G tokens channel c is multiplied by the plan
    T = Sinkhorn(exp(v_0 v_c^T / temperature)): rows are destinations and follow channel 0, columns
    are sources. As the temperature goes to 0, T tends to the permutation of
    `group_sort(x, num_groups)`, wherever that is unique. Channel 0 is treated like any other, so
    at a positive temperature it is smoothed as well.

    The iterations start from the potentials that are optimal at temperature 0, known in closed
    form. Where they converge to does not depend on the start, but from the plain kernel they get
    there ever more slowly as the temperature falls.

    The plans take B * C * N * G numbers: a form for small groups and for training an order.

    Args:
        x: (B, N, C) tokens.
        num_groups: groups K, a divisor of N.
        temperature: weight of the entropy, in units of the product of two values; over 0.
        num_iterations: pairs of a row and a column normalisation, in the log domain.
        key_padding_mask: (B, N) bool, True = padding: it takes no part in the transport.
        return_plan: return (y, plan) with the (B, K, C, G, G) plans.
        backend: "auto", "reference" or "eager".

    Returns:
        (B, N, C), zero at padded positions; with `return_plan` also the plans, in which a padded
        token stays where it is. Columns of a plan sum to 1, rows as far as it has converged.

    Raises:
        InputError: wrong shape or dtype, or a number out of range.

    Source: CSP (Yuan and Xu), equations (8)-(9) and theorem 2.
    """
    check_values(x, key_padding_mask)
    check_bool("return_plan", return_plan)
    num_groups, _ = check_groups(x, num_groups)
    temperature = check_positive("temperature", temperature)
    num_iterations = check_integer("num_iterations", num_iterations, 1)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if key_padding_mask is not None:
        wide = wide.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
    if choose(backend, PLAIN) == "reference":
        plan = reference.relaxed_plan(
            wide, num_groups, temperature, num_iterations, key_padding_mask
        )
    else:
        plan = _relaxed_plan(wide, num_groups, temperature, num_iterations, key_padding_mask)
    values = torch.unflatten(wide, 1, (num_groups, -1)).transpose(2, 3).unsqueeze(-1)
    y = (plan @ values).squeeze(-1).transpose(2, 3).flatten(1, 2).to(x.dtype)
    return (y, plan) if return_plan else y


def _relaxed_plan(
    x: Tensor, num_groups: int, temperature: float, num_iterations: int, mask: Tensor | None
) -> Tensor:
    groups = (num_groups, -1)
    channels = torch.unflatten(x, 1, groups).transpose(2, 3)  # (B, K, C, G)
    leader = channels[:, :, :1]
    keys = torch.unflatten(eager.sort_key(x, None, mask), 1, groups).transpose(2, 3)
    rows, columns = _dual_potentials(leader, channels, keys.sort(dim=3, stable=True).indices)
    gain = leader.unsqueeze(4) * channels.unsqueeze(3)
    scores = (gain - rows.unsqueeze(4) - columns.unsqueeze(3)) / temperature
    if mask is not None:
        # Padding is a block of its own: it exchanges mass with nothing but itself.
        padded = torch.unflatten(mask, 1, groups).unsqueeze(2)
        itself = torch.eye(padded.shape[3], dtype=torch.bool, device=x.device)
        apart = (padded.unsqueeze(4) | padded.unsqueeze(3)) & ~itself
        scores = scores.masked_fill(apart, float("-inf"))
    return sinkhorn(scores, num_iterations)


def _dual_potentials(leader: Tensor, channels: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Rows f and columns g with f_n + g_m >= leader_n * channel_m, equal where the sort matches.

    With both sorted, as a and b, f may rise from a_r to a_{r+1} by the difference times anything
    between b_r and b_{r+1}; the middle treats rows and columns alike.
    """
    rank = eager.invert(order, dim=3)
    a, b = leader.gather(3, order[:, :, :1]), channels.gather(3, order)
    f = F.pad((a.diff(dim=3) * (b[..., 1:] + b[..., :-1]) / 2).cumsum(3), (1, 0))
    g = a * b - f
    return f.gather(3, rank[:, :, :1].expand_as(f)), g.gather(3, rank)
