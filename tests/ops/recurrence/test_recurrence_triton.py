"""Triton kernels of `linear_recurrence`, compared with the equations in float64."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recurrence_variants import VARIANTS, recurrence, tensors, with_tensors
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import linear_recurrence, triton_support
from rifflemix.ops.dispatch import PLAIN
from rifflemix.ops.recurrence.common import check_limits, with_triton

sys.path.append(str(Path(__file__).parents[1]))
from triton_device import DEVICE, INTERPRETED, on_gpu, require_kernels

require_kernels()

OFFSETS = (0, 3, 3, 36)
MASK = torch.arange(36) % 3 == 0
# The interpreter takes seconds for a head of 36 tokens, which are two chunks.
LAYOUTS: dict[str, dict[str, Any]] = {
    "batch": {},
    "padded": {"key_padding_mask": MASK[None].to(DEVICE)},
    "packed": {"cu_seqlens": torch.tensor(OFFSETS, device=DEVICE)},
}
CASES = [
    (variant, [*LAYOUTS][i % 3]) for i, variant in enumerate((*VARIANTS, "scalar decay and erase"))
]


def drawn(variant: str, *sizes: Any, sequences: int = 0, **options: Any) -> dict[str, Any]:
    """Draw float32 arguments on the device, with an initial state if there are `sequences`."""
    arguments = recurrence(variant, *sizes, dtype=torch.float32, **options)
    if sequences:
        heads, keys, values = arguments["q"].shape[1], arguments["q"].shape[3], sizes[1][1]
        arguments["initial_state"] = torch.randn(sequences, heads, keys, values)
    return with_tensors(arguments, [x.to(DEVICE) for x in tensors(arguments)])


def with_gradients(arguments: dict[str, Any], **options: Any) -> list[Tensor]:
    """Return the output, the state and the gradients of all tensors."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors(arguments)]
    y, state = linear_recurrence(**with_tensors(arguments, leaves), return_state=True, **options)
    loss = sum(
        (x.double() * torch.linspace(-1, 1, x.numel(), device=DEVICE).view_as(x)).sum()
        for x in (y, state)
    )
    return [y.detach(), state.detach(), *torch.autograd.grad(loss, leaves, materialize_grads=True)]


def check(arguments: dict[str, Any], tolerance: float = 1e-5, **options: Any) -> None:
    """Compare with the reference, relative to the largest number of each tensor."""
    found = with_gradients(arguments, backend="triton", **options)
    wide = with_tensors(arguments, [x.double() for x in tensors(arguments)])
    expected = with_gradients(wide, backend="reference", **options)
    for value, right in zip(found, expected, strict=True):
        atol = tolerance * max(right.abs().max().item(), 1e-3)
        torch.testing.assert_close(value.double(), right, atol=atol, rtol=0)


@pytest.mark.parametrize(("variant", "layout"), CASES, ids=str)
def test_kernels_equal_the_reference(variant: str, layout: str) -> None:
    sequences = len(OFFSETS) - 1 if layout == "packed" else 1
    check(drawn(variant, (1, 1, 36), (5, 3), sequences=sequences), **LAYOUTS[layout])


@pytest.mark.parametrize(("shape", "sizes"), [((2, 3, 4), (1, 1)), ((1, 1, 17), (70, 34))], ids=str)
def test_batches_and_wide_heads(shape: tuple[int, int, int], sizes: tuple[int, int]) -> None:
    check(drawn("gated delta rule", shape, sizes))


EXTREMES = torch.tensor([0.0, -1e-6, -1e-3, -50.0, -1e4, -torch.inf])


@pytest.mark.parametrize("variant", ["gated delta rule", "vector decay and delta rule"])
def test_decays_near_0_and_1(variant: str) -> None:
    arguments = drawn(variant, (1, 1, 34), (4, 3))
    drawn_at = torch.randint(0, len(EXTREMES), arguments["log_decay"].shape)
    drawn_at[torch.rand(drawn_at.shape) < 0.7] = 0
    arguments["log_decay"] = EXTREMES[drawn_at].to(DEVICE)
    check(arguments)


@pytest.mark.parametrize("variant", ["scalar decay", "vector decay"])
def test_small_decays_after_large_decays_are_accurate(variant: str) -> None:
    arguments = drawn(variant, (1, 1, 64), (1, 1))
    arguments = with_tensors(arguments, [torch.ones_like(x) for x in tensors(arguments)])
    if variant == "vector decay":
        ones = torch.ones(1, 1, 64, 2, device=DEVICE)
        arguments.update(q=ones / 2, k=ones, log_decay=ones.clone())
    arguments["log_decay"][:] = -1e-4
    arguments["log_decay"][:, :, :30] = -50.0
    y = linear_recurrence(**arguments, backend="triton")[0, 0, 30:, 0].double().cpu()
    ratio = torch.tensor(-1e-4, dtype=torch.float64).exp()
    count = torch.arange(2.0, 36.0, dtype=torch.float64)
    torch.testing.assert_close(y, (1 - ratio**count) / (1 - ratio), atol=0, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_tokens_have_a_wide_state(dtype: torch.dtype) -> None:
    arguments = drawn("vector decay and erase", (1, 1, 3), (3, 2))
    narrow = with_tensors(arguments, [x.to(dtype) for x in tensors(arguments)])
    y, state = linear_recurrence(**narrow, return_state=True, backend="triton")
    assert (y.dtype, state.dtype) == (dtype, torch.float32)
    wide = with_tensors(narrow, [x.float() for x in tensors(narrow)])
    expected, last = linear_recurrence(**wide, return_state=True, backend="triton")
    assert torch.equal(y, expected.to(dtype))
    assert torch.equal(state, last)


def test_gradient_of_a_gradient() -> None:
    arguments = drawn("gated delta rule", (1, 1, 3))
    second = []
    for backend in ("triton", "eager"):
        leaves = [x.clone().requires_grad_() for x in tensors(arguments)]
        y = linear_recurrence(**with_tensors(arguments, leaves), backend=backend)
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        second.append(torch.autograd.grad(sum(x.square().sum() for x in first), leaves))
    torch.testing.assert_close(*second, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 2, 0), (0, 2, 3)], ids=["no tokens", "no samples"])
def test_empty_inputs(shape: tuple[int, int, int]) -> None:
    arguments = drawn("gated delta rule", shape, (3, 2), sequences=shape[0])
    y, state, *gradients = with_gradients(arguments, backend="triton")
    assert y.shape == (*shape, 2)
    assert torch.equal(state, arguments.get("initial_state", state))
    assert [x.shape for x in gradients] == [x.shape for x in tensors(arguments)]


def test_fake_tensors_have_the_shapes_of_results() -> None:
    from rifflemix.ops.recurrence import triton
    from rifflemix.ops.recurrence.common import Terms

    names = ("q", "k", "v", "log_decay", "beta", "erase")
    terms = Terms.of(*map(drawn("gated delta rule", (1, 1, 3)).get, names), None)
    leaves = [None if x is None else x.detach().requires_grad_() for x in terms]
    torch.library.opcheck(
        triton._forward.overload,
        (*leaves, [0, 1, 3]),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU it does choose the kernels")
def test_auto_never_interprets() -> None:
    y = linear_recurrence(*(x.requires_grad_() for x in torch.randn(3, 1, 1, 2, 3)))
    assert "triton" not in type(y.grad_fn).__name__.lower()


@pytest.mark.parametrize(
    "tokens", [torch.randn(3, 1, 1, 2, 3).double(), torch.randn(3, 1, 1, 2, 129)],
    ids=["float64", "features"],
)  # fmt: skip
def test_unsupported_tokens_are_refused(tokens: Tensor) -> None:
    q, k, v = tokens.to(DEVICE)
    with pytest.raises(InputError, match="backend:"):
        linear_recurrence(q, k, v, backend="triton")
    linear_recurrence(q, k, v)


def test_gpus_with_less_memory_have_narrower_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for kib, most in ((227, 128), (163, 64), (99, 64)):
        monkeypatch.setattr(triton_support, "shared_memory", lambda _, room=1024 * kib: room)
        q = torch.zeros(1, 1, 1, most + 1, device=DEVICE)
        assert "triton" not in with_triton(PLAIN, q)
        assert "triton" in with_triton(PLAIN, q[..., :most])
        with pytest.raises(InputError, match=f"at most {most} features"):
            check_limits(q)


class TestOnGpu:
    """Large sizes and all types, on a GPU."""

    pytestmark = on_gpu

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("sizes", [(64, 64), (64, 128), (128, 128), (20, 40)], ids=str)
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_near_eager(self, variant: str, sizes: tuple[int, int], dtype: torch.dtype) -> None:
        arguments = drawn(variant, (3, 4, 1000), sizes)
        narrow = with_tensors(arguments, [x.to(dtype) for x in tensors(arguments)])
        found = with_gradients(narrow, backend="triton")
        wide = with_tensors(narrow, [x.double() for x in tensors(narrow)])
        for value, right in zip(found, with_gradients(wide, backend="eager"), strict=True):
            tolerance = {torch.float32: 1e-4}.get(dtype, 1e-2)
            atol = tolerance * max(right.abs().max().item(), 1e-3)
            torch.testing.assert_close(value.double(), right, atol=atol, rtol=0)

    def test_auto_is_triton(self) -> None:
        q, k, v = torch.randn(3, 1, 1, 2, 3, device=DEVICE).unbind()
        y = linear_recurrence(q.requires_grad_(), k, v)
        assert "triton" in type(y.grad_fn).__name__.lower()
