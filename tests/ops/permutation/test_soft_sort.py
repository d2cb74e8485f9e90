"""Soft sorts and ranks: projection, limits, gradients, kernels, invalid arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from permutation_cases import MASK_TENSORS
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.runs.device import using_threads
from rifflemix.ops import (
    butterfly_merge,
    butterfly_split,
    group_sort,
    native,
    relaxed_group_sort,
    soft_rank,
    soft_sort,
)
from rifflemix.ops.permutation import cpu_soft

needs_kernels = pytest.mark.skipif(
    native.instruction_level() < 3, reason="the compiled kernels, or AVX2, are missing"
)
BACKENDS = ("reference", "eager", pytest.param("cpu", marks=needs_kernels))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One rounding in the type of the result, plus a few in the float64 sums.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-7,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
}
both = pytest.mark.parametrize("operator", [soft_sort, soft_rank])


def results(operator: Any, x: Tensor, weight: Tensor, *arguments: Any, **options: Any) -> Any:
    """Return values and the gradient of their weighted sum, zero for unused inputs."""
    x = x.detach().requires_grad_()
    y = operator(x, *arguments, **options)
    return y.detach(), torch.autograd.grad(y + 0.0 * x, x, weight)[0]


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(
            a.double(), b.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale
        )


@both
@pytest.mark.parametrize("mask", MASK_TENSORS)
def test_eager_is_the_equation(operator: Any, mask: str) -> None:
    options = {"key_padding_mask": MASK_TENSORS[mask]}
    for groups, temperature in ((2, 0.31), (3, 1.7), (12, 1.0)):
        x, weight = torch.randn(2, 3, 12, 2, dtype=torch.float64)
        x = x if groups == 2 else (2 * x).round() / 2  # with many ties
        options |= {"temperature": temperature}
        found = results(operator, x, weight, groups, backend="eager", **options)
        expected = results(operator, x, weight, groups, backend="reference", **options)
        assert_near(found, expected, torch.float64)


@both
@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernel_is_the_eager_form_in_float64(operator: Any, dtype: torch.dtype) -> None:
    """Cases: partial vectors, groups of one token, long groups, padding, any memory layout."""
    for length, groups, channels in ((1, 1, 1), (21, 7, 40), (100, 1, 17), (64, 32, 5), (97, 1, 3)):
        x, weight = torch.randn(2, 2, length, channels).to(dtype)
        mask = (torch.rand(2, length) < 0.3) if length % 2 else None
        if channels == 5:
            x, weight = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, weight))
        if channels == 3:  # a few long runs
            x = torch.cat((x[:, :50] - 1e4, x[:, 50:]), 1)
        for temperature in (0.0137, 0.9):
            options = {"temperature": temperature, "key_padding_mask": mask}
            found = results(operator, x, weight, groups, backend="cpu", **options)
            exact = results(
                operator, x.double(), weight.double(), groups, backend="eager", **options
            )
            assert_near(found, exact, dtype)
            with torch.no_grad():
                assert torch.equal(operator(x, groups, backend="cpu", **options), found[0])


def test_known_numbers() -> None:
    x = torch.tensor([2.9, 0.1, 1.2], dtype=torch.float64).view(1, 3, 1)
    assert soft_sort(x, temperature=0.5).flatten().tolist() == [0.1, 1.2, 2.9]
    assert soft_rank(x, temperature=1.0).flatten().tolist() == [2, 0, 1]
    # The upper two are 1.7 apart, more than a step of 1.6. Their mean is 2.05.
    found = soft_sort(x, temperature=0.625).flatten()
    torch.testing.assert_close(found, torch.tensor([0.1, 1.25, 2.85]).double())
    # The lower two are 1.1 apart, less than 1.2. Their mean is 0.65.
    found = soft_rank(x, temperature=1.2).flatten()
    apart = 0.55 / 1.2
    torch.testing.assert_close(found, torch.tensor([2, 0.5 - apart, 0.5 + apart]).double())


@both
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", ["none", "scattered"])
def test_limits(operator: Any, backend: str, mask: str) -> None:
    """A low temperature gives the exact sort or ranks, a high temperature gives the means."""
    x = torch.randn(3, 12, 2)
    padded = MASK_TENSORS[mask]
    options: dict[str, Any] = {"key_padding_mask": padded}
    hard, index = group_sort(x, 2, order="ascending", return_indices=True, **options)
    group = torch.arange(12)[:, None] // 6
    valid = torch.ones(3, 12, 1, dtype=torch.bool) if padded is None else ~padded[..., None]
    if operator is soft_rank:
        place = (
            valid.cumsum(1) - valid.unflatten(1, (2, 6)).sum(2).cumsum(1)[:, :1] * group - 1
        ) * valid
        hard = torch.zeros_like(x).scatter(1, index, place.expand_as(x).float())
    low = operator(x, 2, temperature=1e-5, backend=backend, **options)
    assert torch.equal(low, hard)
    sums = (hard * valid).unflatten(1, (2, 6)).sum(2, keepdim=True)
    means = sums / valid.unflatten(1, (2, 6)).sum(2, keepdim=True).clamp(min=1)
    high = operator(x, 2, temperature=1e7, backend=backend, **options)
    expected = means.expand(3, 2, 6, 2).flatten(1, 2) * valid
    torch.testing.assert_close(high, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.02, 0.4, 3.0])
def test_what_a_projection_keeps(temperature: float) -> None:
    x = torch.randn(2, 33, 5, dtype=torch.float64)
    order = torch.randperm(33)
    y, ranks = (f(x, temperature=temperature) for f in (soft_sort, soft_rank))
    torch.testing.assert_close(y.sum(1), x.sum(1))
    torch.testing.assert_close(ranks.sum(1), torch.full((2, 5), 33 * 16.0, dtype=torch.float64))
    torch.testing.assert_close(soft_sort(x[:, order], temperature=temperature), y)
    torch.testing.assert_close(soft_rank(x[:, order], temperature=temperature), ranks[:, order])
    assert float(y.diff(dim=1).min()) >= -1e-12
    assert ((ranks >= -1e-12) & (ranks <= 32 + 1e-12)).all()
    # The result is in the convex hull of all permutations: the k smallest results sum to at least
    # the k smallest inputs.
    assert (y.cumsum(1) >= x.sort(dim=1).values.cumsum(1) - 1e-9).all()
    lowest = torch.arange(33, dtype=torch.float64).cumsum(0)[:, None]
    assert (ranks.sort(dim=1).values.cumsum(1) >= lowest - 1e-9).all()
    down = -soft_sort(-x, temperature=temperature)
    assert float(down.diff(dim=1).max()) <= 1e-12


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_values_have_equal_ranks(backend: str) -> None:
    x = torch.tensor([1.0, 3.0, 1.0, -2.0, 3.0, 3.0]).view(1, 6, 1)
    ranks = soft_rank(x, temperature=1e-3, backend=backend).flatten()
    torch.testing.assert_close(ranks, torch.tensor([1.5, 4, 1.5, 0, 4, 4]))
    assert torch.equal(soft_sort(x, temperature=1e-3, backend=backend), x.sort(dim=1).values)


@both
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_number_spoils_its_own_column(operator: Any, backend: str) -> None:
    x = torch.randn(2, 8, 20)
    spoilt = x.clone()
    spoilt[0, 1, 3], spoilt[0, 6, 4], spoilt[1, 2, 19] = torch.nan, torch.inf, -torch.inf
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[1, 7] = True
    spoilt[1, 7] = torch.nan
    options = {"temperature": 0.7, "key_padding_mask": mask, "backend": backend}
    y, expected = operator(spoilt, 2, **options), operator(x, 2, **options)
    nan = torch.zeros_like(x, dtype=torch.bool)
    nan[0, :4, 3] = nan[0, 4:, 4] = nan[1, :4, 19] = True
    assert torch.equal(y.isnan(), nan)
    assert torch.equal(y[~nan], expected[~nan])


def test_strided_groups_are_split_first() -> None:
    x = torch.randn(2, 12, 3)
    groups = butterfly_split(x, 3, 4)  # (2, 4, 3, 3)
    y = soft_sort(groups.flatten(1, 2), 4, temperature=0.5).unflatten(1, (4, 3))
    for start in range(4):
        expected = soft_sort(x[:, start::4], temperature=0.5)
        assert torch.equal(butterfly_merge(y, 4)[:, start::4], expected)


# Gradients.


@both
def test_numerical_gradients(operator: Any) -> None:
    mask = torch.zeros(1, 7, dtype=torch.bool)
    mask[0, 2] = True
    x = torch.randn(1, 7, 2, dtype=torch.float64, requires_grad=True)
    for temperature in (0.2, 2.0):

        def run(x: Tensor, temperature: float = temperature) -> Tensor:
            y: Tensor = operator(x, temperature=temperature, key_padding_mask=mask)
            return y

        assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(lambda x: run(x) ** 2, (x,))


@both
@needs_kernels
def test_gradient_of_the_kernel_s_gradient(operator: Any) -> None:
    x, weight = torch.randn(2, 1, 9, 6)
    second = []
    for backend in ("cpu", "eager"):
        leaf, direction = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = operator(leaf, 3, temperature=0.8, backend=backend)
        (first,) = torch.autograd.grad(y, leaf, direction, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), direction)[0])
    torch.testing.assert_close(*second)


@needs_kernels
def test_what_is_kept_for_the_gradient() -> None:
    x = torch.randn(2, 64, 48, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: kept.append(saved.nbytes) or saved, lambda saved: saved
    ):
        soft_sort(x, temperature=0.5, backend="cpu")
    assert sum(kept) == 3 * x.numel()  # a 16-bit index, and one byte


# Kernels.


@both
@needs_kernels
def test_any_number_of_threads_gives_the_same_bits(operator: Any) -> None:
    x, weight = torch.randn(2, 3, 512, 70)
    found = []
    for threads in (1, 2, 5):
        with using_threads(threads):
            found.append(results(operator, x, weight, 2, temperature=0.1, backend="cpu"))
    alone = [results(operator, *(t[:1] for t in (x, weight)), 2, temperature=0.1, backend="cpu")]
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))
    assert all(torch.equal(a, b[:1]) for a, b in zip(alone[0], found[0], strict=True))


@needs_kernels
@pytest.mark.slow
def test_registered_operators() -> None:
    x = torch.randn(2, 12, 8, requires_grad=True)
    mask = torch.rand(2, 12) < 0.3
    starts = torch.randint(2, (2, 12, 8), dtype=torch.uint8)
    for ranks in (False, True):
        torch.library.opcheck(cpu_soft._project.overload, (x, 3, 0.5, mask, ranks, True))
        torch.library.opcheck(cpu_soft._project_back.overload, (x, starts, 3, 0.5, mask, ranks))


def run_both(x: Tensor, backend: str = "auto") -> Tensor:
    y = soft_sort(x, 2, temperature=0.6, backend=backend)
    return y + soft_rank(x, temperature=0.3, backend=backend)


# Warning of torch's own modules on their first import.
old_warning = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)


@old_warning
@pytest.mark.slow
def test_compile() -> None:
    torch._dynamo.reset()
    run = torch.compile(run_both, fullgraph=True, backend="aot_eager")
    for length in (8, 22):
        x = torch.randn(2, length, 5, requires_grad=True)
        found, expected = run(x), run_both(x)
        assert torch.equal(found, expected)
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
        assert torch.equal(*gradients)


class Both(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return run_both(x)


@old_warning
@pytest.mark.slow
def test_export_takes_the_eager_path() -> None:
    x = torch.randn(2, 8, 4)
    program = torch.export.export(Both(), (x,))
    assert not any("rifflemix." in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(x), run_both(x, "eager"))


@old_warning
@both
def test_transforms_take_the_eager_path(operator: Any) -> None:
    x, tangent = torch.randn(2, 2, 9, 4, dtype=torch.float64)

    def run(x: Tensor) -> Tensor:
        y: Tensor = operator(x, temperature=0.6)
        return y

    y, found = torch.func.jvp(run, (x,), (tangent,))
    assert torch.equal(y, run(x))
    step = 1e-7
    rise = (run(x + step * tangent) - run(x - step * tangent)) / (2 * step)
    torch.testing.assert_close(found, rise, atol=1e-6, rtol=1e-6)
    stacked = torch.func.vmap(run)(torch.stack((x, tangent)))
    torch.testing.assert_close(stacked, torch.stack((run(x), run(tangent))))


def test_soft_ranks_and_the_entropic_form_agree_where_both_are_hard() -> None:
    x = torch.randn(1, 5, 3, dtype=torch.float64)
    hard = group_sort(x)
    torch.testing.assert_close(relaxed_group_sort(x, temperature=1e-4), hard, atol=1e-3, rtol=1e-3)
    leader = soft_rank(x[..., :1], temperature=1e-9).long().expand_as(x)
    assert torch.equal(soft_sort(x, temperature=1e-9).gather(1, leader), hard)


BAD: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "temperature 0": (lambda x: soft_sort(x, temperature=0.0), r"temperature: .*\b0\b.*got 0\b"),
    "temperature inf": (lambda x: soft_rank(x, temperature=float("inf")), "temperature:"),
    "temperature text": (lambda x: soft_rank(x, temperature="1"), "temperature: .*got '1'"),
    "groups": (lambda x: soft_sort(x, 2, temperature=1.0), "num_groups: .*got 2"),
    "integers": (lambda x: soft_rank(x.long(), temperature=1.0), r"x: .*got torch\.int64"),
    "two dimensions": (lambda x: soft_sort(x[0], temperature=1.0), r"x: .*got \(5, 3\)"),
    "mask": (
        lambda x: soft_sort(x, temperature=1.0, key_padding_mask=torch.zeros(2, 4)),
        r"key_padding_mask: .*got torch\.float32",
    ),
    "no kernel": (
        lambda x: soft_sort(x.double(), temperature=1.0, backend="cpu"),
        "backend: .*got 'cpu'",
    ),
    "no kernel for a GPU": (
        lambda x: soft_rank(x, temperature=1.0, backend="triton"),
        "backend: .*got 'triton'",
    ),
}


@pytest.mark.parametrize(("call", "says"), BAD.values(), ids=BAD)
def test_bad_arguments(call: Callable[[Tensor], Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        call(torch.randn(2, 5, 3))
