"""Compiled kernels of attention over local and sorted blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from block_variants import BATCH, DOUBLE, HEADS, VARIANTS, causal_sort, settings_of
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.runs.environment import using_threads
from rifflemix.ops import (
    sinkhorn_attention,
    sorted_padding_mask,
)
from rifflemix.ops.native import instruction_level
from rifflemix.ops.sinkhorn import cpu
from rifflemix.ops.sinkhorn.kernel_attention import Visibility, attend_to_blocks

needs_kernels = pytest.mark.skipif(instruction_level() < 2, reason="needs the compiled kernels")


SHAPES = [
    pytest.param(5, 7, 9, 1, id="odd"),
    pytest.param(2, 16, 16, 2, id="whole vectors, two sorted blocks each"),
    pytest.param(70, 2, 3, 1, id="more blocks than are sorted together", marks=pytest.mark.slow),
    pytest.param(2, 67, 5, 1, id="queries of a block in two shares", marks=pytest.mark.slow),
    pytest.param(1, 1, 1, 1, id="one token"),
]


def kernel_inputs(n: int, block: int, width: int, rows: int, dtype: torch.dtype) -> list[Tensor]:
    """Create q, k, v as views of one projection, and a sort matrix."""
    torch.manual_seed(n)
    qkv = torch.randn(BATCH, n * block, 3, HEADS, width, dtype=DOUBLE).to(dtype)
    sort = torch.randn(BATCH, HEADS, n * rows, n, dtype=DOUBLE).softmax(-1).to(dtype)
    heads = [part.transpose(1, 2).requires_grad_() for part in qkv.unbind(2)]
    return [*heads, sort.requires_grad_()]


@needs_kernels
@pytest.mark.parametrize("form", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize(("n", "block", "width", "rows"), SHAPES)
def test_kernel_equals_reference(
    n: int, block: int, width: int, rows: int, form: dict[str, Any]
) -> None:
    inputs = kernel_inputs(n, block, width, rows, DOUBLE)
    settings = settings_of(form, BATCH, n, block)

    def run(backend: str) -> Tensor:
        *qkv, sort = inputs
        if settings.get("causal"):
            sort = causal_sort(sort)
        return sinkhorn_attention(*qkv, sort, block, backend=backend, **settings)

    y = run("cpu")
    torch.testing.assert_close(y, run("reference"))
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, inputs, grad)
    torch.testing.assert_close(found, torch.autograd.grad(run("eager"), inputs, grad))


@needs_kernels
@pytest.mark.parametrize(("n", "block", "width", "rows"), SHAPES)
def test_kernel_drops_the_same_weights_as_the_formula(
    n: int, block: int, width: int, rows: int
) -> None:
    inputs = kernel_inputs(n, block, width, rows, DOUBLE)
    padding = settings_of({"padded": True}, BATCH, n, block)["key_padding_mask"]
    unseen = torch.rand(BATCH, HEADS, n * rows, block) > 0.7
    terms = Visibility(unseen, padding, False, True, torch.tensor(2**62 + 5), 0.3)
    y, _ = cpu._attend(*inputs, block, *terms)
    expected = attend_to_blocks(*inputs, block, terms)
    torch.testing.assert_close(y, expected)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, inputs, grad)
    torch.testing.assert_close(found, torch.autograd.grad(expected, inputs, grad))


@pytest.mark.parametrize("name", [name for name in VARIANTS if "mixture" not in name])
def test_formula_of_second_derivatives_equals_reference(name: str) -> None:
    inputs = kernel_inputs(3, 4, 5, 2, DOUBLE)
    settings = settings_of(VARIANTS[name], BATCH, 3, 4)
    sort = causal_sort(inputs[3]) if settings.get("causal") else inputs[3]
    padding, rule = settings.get("key_padding_mask"), settings.get("padding_rule", "majority")
    unseen = None
    if settings:
        unseen = sorted_padding_mask(sort.detach(), 4, padding, rule=rule)
    terms = Visibility(unseen, padding, rule == "argmax", settings.get("causal", False))
    y = attend_to_blocks(*inputs[:3], sort, 4, terms)
    expected = sinkhorn_attention(*inputs[:3], sort, 4, backend="reference", **settings)
    torch.testing.assert_close(y, expected)


@needs_kernels
@pytest.mark.parametrize("form", [{}, {"causal": True, "padded": True}], ids=["plain", "hidden"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
    ids=str,
)
def test_kernel_in_other_dtypes(dtype: torch.dtype, tolerance: float, form: dict[str, Any]) -> None:
    inputs = kernel_inputs(5, 7, 20, 1, dtype)
    settings = settings_of(form, BATCH, 5, 7)

    def run(backend: str, *inputs: Tensor) -> Tensor:
        *qkv, sort = inputs
        if settings.get("causal"):
            sort = causal_sort(sort)
        return sinkhorn_attention(*qkv, sort, 7, backend=backend, **settings)

    y = run("cpu", *inputs)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    expected = run("eager", *exact)
    grad = torch.randn_like(y)
    assert y.dtype == dtype
    pairs = zip(
        (y, *torch.autograd.grad(y, inputs, grad)),
        (expected, *torch.autograd.grad(expected, exact, grad.double())),
        strict=True,
    )
    for found, true in pairs:
        assert found.dtype == dtype
        assert (found.double() - true).abs().max() < tolerance * true.abs().max()


@needs_kernels
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_kernel_with_any_number_of_threads(p: float) -> None:
    inputs = kernel_inputs(5, 7, 9, 1, torch.float32)
    settings = settings_of({"padded": True}, BATCH, 5, 7)
    results = []
    for threads in (1, 3):
        with using_threads(threads):
            torch.manual_seed(0)
            y = sinkhorn_attention(*inputs, 7, backend="cpu", dropout_p=p, **settings)
            results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@needs_kernels
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("form", VARIANTS.values(), ids=VARIANTS.keys())
def test_second_derivatives_of_the_kernel(form: dict[str, Any], p: float) -> None:
    inputs = kernel_inputs(2, 3, 2, 1, DOUBLE)
    settings = settings_of(form, BATCH, 2, 3)

    def run(*inputs: Tensor) -> Tensor:
        torch.manual_seed(1)
        *qkv, sort = inputs
        if settings.get("causal"):
            sort = causal_sort(sort)
        return sinkhorn_attention(*qkv, sort, 3, backend="cpu", dropout_p=p, **settings)

    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@needs_kernels
def test_kernel_refuses_unsupported_inputs() -> None:
    inputs = kernel_inputs(2, 4, 3, 1, DOUBLE)
    for options in ({"combine": "sum_out"}, {"sortcut": 1}, {"causal": True, "rotation": 1}):
        with pytest.raises(InputError, match=r"^backend:"):
            sinkhorn_attention(*inputs, 4, backend="cpu", **options)


@needs_kernels
def test_padding_that_is_not_finite_is_not_read() -> None:
    inputs = kernel_inputs(3, 4, 5, 1, torch.float32)
    settings = settings_of({"padded": True}, BATCH, 3, 4)
    padded = settings["key_padding_mask"][:, None, :, None]
    q, k, v, sort = (t.detach() for t in inputs)
    y = sinkhorn_attention(q, k, v, sort, 4, backend="cpu", **settings)
    spoilt = [t.masked_fill(padded, torch.nan).requires_grad_() for t in (k, v)]
    other = sinkhorn_attention(q, *spoilt, sort, 4, backend="cpu", **settings)
    assert torch.equal(y, other)
    for grad in torch.autograd.grad(other.sum(), spoilt):
        assert (grad * padded == 0).all()
