"""Split and merge follow the definition of the groups and are inverse to each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rifflemix as rm
from rifflemix.ops import butterfly_merge, butterfly_split

CASES = [
    (16, 4, 1),
    (16, 4, 4),
    (8, 4, 2),
    (12, 4, 3),
    (24, 4, 2),
    (24, 4, 6),
    (9, 3, 3),
    (6, 6, 1),
]
BACKENDS = ["reference", "eager", "auto"]


def literal_groups(n: int, a: int, s: int) -> list[list[int]]:
    """View n as (n/(a s), a, s) and swap the last two."""
    return [
        [q * a * s + j * s + r for j in range(a)] for q in range(n // (a * s)) for r in range(s)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("n", "a", "s"), CASES)
def test_groups_contain_positions_one_stride_apart(n: int, a: int, s: int, backend: str) -> None:
    positions = torch.arange(n).view(1, n, 1)
    groups = butterfly_split(positions, a, s, backend=backend)
    assert groups.shape == (1, n // a, a, 1)
    assert groups[0, :, :, 0].tolist() == literal_groups(n, a, s)
    assert torch.equal(butterfly_merge(groups, s, backend=backend), positions)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_backends_agree_on_any_axis(data: st.DataObject) -> None:
    spans, a, s = (data.draw(st.integers(1, 4)) for _ in range(3))
    rank = data.draw(st.integers(1, 4))
    dim = data.draw(st.integers(-rank, rank - 1))
    shape = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    shape[dim] = spans * a * s
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    results = []
    for backend in ("reference", "eager"):
        y = butterfly_split(x, a, s, dim, backend=backend)
        front = dim % rank
        assert y.shape == (*shape[:front], spans * s, a, *shape[front + 1 :])
        weights = torch.linspace(0, 1, y.numel(), dtype=y.dtype).view(y.shape)
        (gradient,) = torch.autograd.grad((y * weights).sum(), x)
        # A negative `dim` counts from the end, so the two group axes shift it by one.
        back = butterfly_merge(y, s, dim - 1 if dim < 0 else dim, backend=backend)
        assert torch.equal(back, x)
        results.append((y.detach(), gradient))
    torch.testing.assert_close(*results, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [8, 12, 24, 36])
def test_samples_do_not_affect_each_other(n: int, backend: str) -> None:
    """No group mixes positions of two samples, for any sequence length."""
    sample = torch.arange(5).view(5, 1, 1).expand(5, n, 2)
    for stride in rm.ops.butterfly_strides(n, 4):
        groups = butterfly_split(sample, 4, stride, backend=backend)
        assert torch.equal(groups, torch.arange(5).view(5, 1, 1, 1).expand_as(groups))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool], ids=str
)
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    x = torch.randn(2, 8, 3).to(dtype)
    for backend in ("reference", "eager"):
        y = butterfly_split(x, 4, 2, backend=backend)
        assert y.dtype == dtype
        assert torch.equal(butterfly_merge(y, 2, backend=backend), x)


def test_gradcheck() -> None:
    x = torch.randn(2, 8, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: butterfly_split(x, 4, 2), (x,))
    assert torch.autograd.gradcheck(lambda y: butterfly_merge(y, 2), (y,))


def test_compiles_and_exports() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return butterfly_merge(butterfly_split(x, 4, 2) * 2, 2)

    x = torch.randn(2, 8, 3)
    torch.compiler.reset()
    compiled = torch.compile(Twice(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), 2 * x)
    assert torch.equal(torch.export.export(Twice(), (x,)).module()(x), 2 * x)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: butterfly_split(torch.randn(2, 10, 3), 4, 1), "block: .*got 4"),
        (lambda: butterfly_split(torch.randn(2, 8, 3), 0, 1), "block: .*got 0"),
        (lambda: butterfly_split(torch.randn(2, 24, 3), 4, 4), "stride: .*got 4"),
        (lambda: butterfly_split(torch.randn(2, 8, 3), 4, 0), "stride: .*got 0"),
        (lambda: butterfly_split(torch.randn(2, 8, 3), 4, 1, dim=3), "dim: .*got 3"),
        (lambda: butterfly_split([1, 2], 2, 1), "x:"),  # type: ignore[arg-type]
        (lambda: butterfly_split(torch.randn(2, 8), 4, 1, backend="gpu"), "backend: .*got 'gpu'"),
        (
            lambda: butterfly_split(torch.randn(2, 8), 4, 1, backend="triton"),
            "backend: .*got 'triton'",
        ),
        (lambda: butterfly_merge(torch.randn(2, 6, 4), 4), "stride: .*got 4"),
        (lambda: butterfly_merge(torch.randn(2, 6, 4), 1, dim=2), "dim: .*got 2"),
        (lambda: butterfly_merge(torch.randn(2, 6, 4), 1, dim=-1), "dim: .*got -1"),
    ],
)
def test_bad_arguments_are_refused(call, named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        call()
