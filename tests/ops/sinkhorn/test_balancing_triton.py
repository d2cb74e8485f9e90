"""Compare the Triton kernels of Sinkhorn balancing with the eager formulas in float64.

Runs on a GPU, or through test_triton_interpreter.py on the CPU in Triton's interpreter.
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from triton_device import DEVICE, on_gpu, require_kernels

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.ops import sinkhorn
from rifflemix.ops.dispatch import prefer_backend

require_kernels()

FORMS = {
    "two-sided": {},
    "causal": {"causal": True},
    "causal, columns last": {"causal": True, "final_row_norm": False},
}
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def scores_of(*shape: int, scale: float = 3.0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(shape[-1]))
    return scale * made.to(DEVICE)


def hard_scores(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Create scores with a dead row, a dead column, a hard zero, and padding.

    Padding covers the last block of sample 0 and all blocks of sample 2.
    """
    scores = scores_of(3, 2, size, size).to(dtype)
    scores[0, 0, size // 2, size // 3] = -math.inf
    scores[0, 1, 0] = -math.inf
    scores[1, 0, :, 0] = -math.inf
    padding = torch.zeros(3, size, dtype=torch.bool, device=DEVICE)
    padding[0, size - 1] = True
    padding[2] = True
    return scores, padding


def sort_and_gradient(scores: Tensor, grad: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    leaf = scores.detach().requires_grad_()
    sort = sinkhorn(leaf, **options)
    return sort.detach(), torch.autograd.grad(sort, leaf, grad.to(sort.dtype))[0]


# The interpreter scans element by element, so a causal matrix takes seconds.
CASES = [
    *((torch.float32, size, form) for size in (1, 5) for form in FORMS),
    *((torch.float32, size, "two-sided") for size in (17, 40)),
    (torch.bfloat16, 17, "two-sided"),
    (torch.float16, 5, "causal"),
]


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(("dtype", "size", "form"), CASES, ids=str)
def test_kernel_equals_eager(dtype: torch.dtype, size: int, masked: bool, form: str) -> None:
    scores, padding = hard_scores(size, dtype)
    grad = scores_of(3, 2, size, size, scale=1.0).to(dtype)
    options = {"block_padding_mask": padding if masked else None, **FORMS[form]}
    options["num_iterations"] = 2 if FORMS[form] else 4
    found = sort_and_gradient(scores, grad, backend="triton", **options)
    expected = sort_and_gradient(scores.double(), grad.double(), backend="eager", **options)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize(("size", "causal"), [(64, False), (100, False), (128, False), (17, True)])
def test_large_matrices(size: int, causal: bool) -> None:
    """Matrices for several warps, with rows in which all exponentials but one are zero."""
    scores, grad = scores_of(1, size, size, scale=30.0), scores_of(1, size, size, scale=1.0)
    options = {"num_iterations": 2 if causal else 8, "causal": causal}
    found = sort_and_gradient(scores, grad, backend="triton", **options)
    expected = sort_and_gradient(scores.double(), grad.double(), backend="eager", **options)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=3e-5, rtol=0)


@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 5), (2, 3, 2, 5, 5), (0, 2, 5, 5)], ids=str)
def test_any_batch_shape(shape: tuple[int, ...]) -> None:
    scores = scores_of(*shape).transpose(-1, -2)  # not contiguous
    grad = scores_of(*shape, scale=1.0)
    samples = shape[:1] if len(shape) > 2 else ()
    padding = torch.zeros(*samples, 5, dtype=torch.bool, device=DEVICE)
    padding[..., 3] = True
    options = {"num_iterations": 3, "block_padding_mask": padding}
    found = sort_and_gradient(scores, grad, backend="triton", **options)
    expected = sort_and_gradient(scores.double(), grad.double(), backend="eager", **options)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=3e-6, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_large_scores_stay_finite(causal: bool) -> None:
    scores = scores_of(2, 8, 8, scale=300.0)
    options = {"num_iterations": 3, "causal": causal}
    sort, grad = sort_and_gradient(scores, scores, backend="triton", **options)
    assert sort.isfinite().all()
    assert grad.isfinite().all()
    if causal:
        torch.testing.assert_close(sort.sum(-1)[:, 1:], torch.ones(2, 7, device=DEVICE))
    else:
        torch.testing.assert_close(sort.sum(-2), torch.ones(2, 8, device=DEVICE))


def test_nan_spreads_as_in_torch() -> None:
    scores = scores_of(2, 5, 5)
    scores[0, 1, 2] = math.nan
    sort = sinkhorn(scores, 2, backend="triton")
    assert torch.equal(sort.isnan(), sinkhorn(scores, 2, backend="eager").isnan())


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives(form: str) -> None:
    scores = scores_of(2, 4, 4).requires_grad_()
    options = {"num_iterations": 2, **FORMS[form]}
    found, expected = (
        torch.autograd.grad(
            torch.autograd.grad(
                sinkhorn(scores, backend=backend, **options).square().sum(),
                scores,
                create_graph=True,
            )[0].square().sum(),
            scores,
        )[0]
        for backend in ("triton", "eager")
    )  # fmt: skip
    torch.testing.assert_close(found, expected)


def test_unsupported_inputs_are_refused() -> None:
    for size, options in ((3, {"num_iterations": 0}), (129, {}), (65, {"causal": True})):
        with pytest.raises(InputError, match=r"^backend:"):
            sinkhorn(scores_of(size, size), **{"num_iterations": 2, **options}, backend="triton")
    with pytest.raises(InputError, match=r"^backend:"):
        sinkhorn(scores_of(3, 3).double(), 2, backend="triton")


# test_attention_triton.py tests a layer with padding.
@pytest.mark.parametrize("causal", [False, True])
def test_layer_uses_the_kernels(causal: bool) -> None:
    options = {"num_heads": 2, "max_length": 40, "block_size": 8, "num_iterations": 2}
    layer = rm.create_mixer("sinkhorn", 16, causal=causal, **options).to(DEVICE)
    x = scores_of(2, 37, 16, scale=1.0).requires_grad_()
    found = []
    for backend in ("triton", "eager"):
        torch.manual_seed(0)  # seed of the noise
        with prefer_backend(backend):
            y = layer(x)
            found.append((y.detach(), torch.autograd.grad(y.square().sum(), x)[0]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


class TestOnAGpu:
    """Large sizes, on a GPU."""

    pytestmark = on_gpu

    @pytest.mark.parametrize(
        ("size", "causal"), [*itertools.product((8, 32, 64), (False, True)), (128, False)]
    )
    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    def test_many_matrices(self, dtype: torch.dtype, size: int, causal: bool) -> None:
        scores = scores_of(64, 8, size, size).to(dtype)
        grad = scores_of(64, 8, size, size, scale=1.0).to(dtype)
        options = {"num_iterations": 8, "causal": causal}
        found = sort_and_gradient(scores, grad, backend="triton", **options)
        expected = sort_and_gradient(scores.double(), grad.double(), backend="eager", **options)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.double(), b, atol=2 * TOLERANCE[dtype], rtol=0)
