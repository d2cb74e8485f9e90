"""Soft sorts and ranks in compiled CPU kernels: a sort, then one pass over the sorted tokens.

The backward pass needs the index of the sort and one byte per value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import check_positive
from rifflemix.ops.operands import check_operand, on_one_device
from rifflemix.ops.operator import operator
from rifflemix.ops.permutation.cpu import group_sort, sort_with_index, unsort
from rifflemix.ops.permutation.cpu_common import FORMATS, new, run
from rifflemix.ops.permutation.operands import check_sort
from rifflemix.ops.permutation.spec import SortSpec


def soft_sort(x: Tensor, num_groups: int, temperature: float, mask: Tensor | None) -> Tensor:
    """Sort each group with steps of at most 1 / temperature."""
    ordered, _ = group_sort(x, SortSpec(num_groups, by_reference=False), mask, False)
    return _fit(ordered, num_groups, temperature, mask, ranks=False)


def soft_rank(x: Tensor, num_groups: int, temperature: float, mask: Tensor | None) -> Tensor:
    """Rank the values of each group, with smooth ranks of close values."""
    ordered, index = sort_with_index(x, num_groups, mask)
    return unsort(_fit(ordered, num_groups, temperature, mask, ranks=True), index, mask, num_groups)


def _fit(
    x: Tensor, num_groups: int, temperature: float, mask: Tensor | None, ranks: bool
) -> Tensor:
    wants_grad = torch.is_grad_enabled() and x.requires_grad
    y: Tensor = _project(x, num_groups, temperature, mask, ranks, wants_grad)[0]
    return y


@operator("rifflemix::project", device_types="cpu")
def _project(
    x: Tensor, num_groups: int, temperature: float, mask: Tensor | None, ranks: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    """Project sorted groups; return the projection and the block starts, uint8 (B, N, C).

    ranks=True projects the values onto the permutahedron of the ranks. ranks=False projects the
    ranks onto the permutahedron of the values. The block starts are empty unless `keep` is True.
    """
    _check("x", x, num_groups, temperature, mask)
    y = new(x)
    starts = new(x, None if keep else (0,), torch.uint8)
    size = x.shape[1] // num_groups
    run("project", x, size, int(ranks), temperature, y=y, index=starts, mask=mask)
    return y, starts


@_project.register_fake
@on_one_device
def _(
    x: Tensor, num_groups: int, temperature: float, mask: Tensor | None, ranks: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape if keep else (0,), dtype=torch.uint8)


def _save_starts(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, ctx.num_groups, ctx.temperature, mask, ctx.ranks, _ = inputs
    ctx.save_for_backward(output[1], mask)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate_project(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:  # no gradient of the values
        return (None,) * 6
    starts, mask = ctx.saved_tensors
    back = _project_back(grad, starts, ctx.num_groups, ctx.temperature, mask, ctx.ranks)
    return back, None, None, None, None, None


_project.register_autograd(_differentiate_project, setup_context=_save_starts)


@operator("rifflemix::project_back", device_types="cpu")
def _project_back(
    grad: Tensor,
    starts: Tensor,
    num_groups: int,
    temperature: float,
    mask: Tensor | None,
    ranks: bool,
) -> Tensor:
    """Compute the gradient of `_project`.

    For a soft sort it is the mean over each block. For soft ranks it is the difference from that
    mean, divided by the temperature.
    """
    _check("grad", grad, num_groups, temperature, mask)
    check_operand("starts", starts, grad.shape, torch.uint8, grad.device)
    out = new(grad)
    size = grad.shape[1] // num_groups
    run("project_back", grad, size, int(ranks), temperature, y=out, index=starts, mask=mask)
    return out


@_project_back.register_fake
@on_one_device
def _(
    grad: Tensor,
    starts: Tensor,
    num_groups: int,
    temperature: float,
    mask: Tensor | None,
    ranks: bool,
) -> Tensor:
    return grad.new_empty(grad.shape)


def _keep_starts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, starts, ctx.num_groups, ctx.temperature, mask, ctx.ranks = inputs
    ctx.save_for_backward(starts, mask)


def _differentiate_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    # The operator is a symmetric matrix, so its gradient is the same operator.
    starts, mask = ctx.saved_tensors
    back = _project_back(grad, starts, ctx.num_groups, ctx.temperature, mask, ctx.ranks)
    return back, None, None, None, None, None


_project_back.register_autograd(_differentiate_back, setup_context=_keep_starts)


def _check(name: str, x: Tensor, num_groups: int, temperature: float, mask: Tensor | None) -> None:
    check_sort(x, FORMATS, num_groups, 0, None, mask, None, name)
    check_positive("temperature", temperature)
