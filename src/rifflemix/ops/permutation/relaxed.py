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
    """Sort groups in reference order, with gradients of the order.

    In every group of G tokens, channel c is multiplied by the plan
    T = Sinkhorn(exp(v_0 v_c^T / temperature)). Rows are destinations and follow channel 0, columns
    are sources. As the temperature goes to 0, T converges to the permutation of
    `group_sort(x, num_groups)` if that permutation is unique. A positive temperature also smooths
    channel 0.

    The iterations start from the closed-form optimal potentials at temperature 0. The limit does
    not depend on the start. But from the plain kernel, convergence becomes slower as the
    temperature decreases.

    The plans need B * C * N * G numbers. Use this function for small groups and to train an order.

    Args:
        x: (B, N, C) tokens.
        num_groups: groups K, a divisor of N.
        temperature: weight of the entropy, in units of the product of two values; above 0.
        num_iterations: number of iterations. Each iteration normalizes rows, then columns, in the
            log domain.
        key_padding_mask: (B, N) bool, True = padding. The transport excludes padding.
        return_plan: return (y, plan) with the (B, K, C, G, G) plans.
        backend: "auto", "reference" or "eager".

    Returns:
        (B, N, C), zero at padded positions; with `return_plan` also the plans. Plans leave padded
        tokens in place. Columns of a plan sum to 1, rows only after convergence.

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
        # A padded token exchanges mass only with itself.
        padded = torch.unflatten(mask, 1, groups).unsqueeze(2)
        itself = torch.eye(padded.shape[3], dtype=torch.bool, device=x.device)
        apart = (padded.unsqueeze(4) | padded.unsqueeze(3)) & ~itself
        scores = scores.masked_fill(apart, float("-inf"))
    return sinkhorn(scores, num_iterations)


def _dual_potentials(leader: Tensor, channels: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Compute optimal dual potentials f of rows and g of columns.

    f_n + g_m >= leader_n * channel_m, with equality if the sort matches n and m. Let a and b be the
    sorted leader and channel. From rank r to r + 1, f may increase by a_{r+1} - a_r times any value
    between b_r and b_{r+1}. The mean of b_r and b_{r+1} treats rows and columns symmetrically.
    """
    rank = eager.invert(order, dim=3)
    a, b = leader.gather(3, order[:, :, :1]), channels.gather(3, order)
    f = F.pad((a.diff(dim=3) * (b[..., 1:] + b[..., :-1]) / 2).cumsum(3), (1, 0))
    g = a * b - f
    return f.gather(3, rank[:, :, :1].expand_as(f)), g.gather(3, rank)
