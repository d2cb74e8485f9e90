"""`linear_recurrence`: all variants, in one call, in pieces, padded and packed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrence_variants import (
    VARIANTS,
    recurrence,
    sequence,
    tensors,
    tokens,
    with_tensors,
)
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from rifflemix.ops import linear_recurrence
from rifflemix.ops.recurrence import cpu

NO_KERNELS = not cpu.supports(torch.ones(1, 1, 1, 1))
BACKENDS = (
    "reference",
    "eager",
    pytest.param("cpu", marks=pytest.mark.skipif(NO_KERNELS, reason="needs the compiled kernels")),
)
FAST = BACKENDS[1:]
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def with_gradients(arguments: dict[str, Any], **options: Any) -> list[Tensor]:
    """Return the output, the state and the gradients of all tensors."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors(arguments)]
    call = with_tensors(arguments, leaves)
    y, state = linear_recurrence(**call, return_state=True, **options)
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()
    loss = loss + (state * torch.linspace(-1, 1, state.numel()).view_as(state)).sum()
    return [y.detach(), state.detach(), *torch.autograd.grad(loss, leaves, materialize_grads=True)]


@pytest.mark.parametrize("backend", FAST)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_backends_equal_the_reference(backend: str, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    variant = data.draw(st.sampled_from(VARIANTS))
    batch, heads, length = (data.draw(st.integers(1, most)) for most in (3, 2, 20))
    sizes = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    options: dict[str, Any] = {}
    sequences = batch
    if data.draw(st.booleans()):
        cuts = st.lists(st.integers(0, length), max_size=4)
        offsets = [0, *sorted(data.draw(cuts)), length]
        options["cu_seqlens"] = torch.tensor(offsets)
        batch, sequences = 1, len(offsets) - 1
    elif data.draw(st.booleans()):
        options["key_padding_mask"] = torch.rand(batch, length) < 0.4
    arguments = recurrence(variant, (batch, heads, length), sizes)
    if data.draw(st.booleans()):
        arguments["initial_state"] = torch.randn(sequences, heads, *sizes, dtype=torch.float64)
    expected = with_gradients(arguments, backend="reference", **options)
    found = with_gradients(arguments, backend=backend, **options)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("backend", FAST)
@each_variant
def test_several_chunks_equal_the_reference(variant: str, backend: str) -> None:
    arguments = recurrence(variant, (1, 1, 150), (3, 37))
    expected = with_gradients(arguments, backend="reference")
    found = with_gradients(arguments, backend=backend)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@each_variant
def test_equals_the_equation(variant: str, backend: str) -> None:
    arguments = recurrence(variant, (1, 1, 4))
    y = linear_recurrence(**arguments, backend=backend)[0, 0]
    state = torch.zeros(3, 2, dtype=torch.float64)
    identity = torch.eye(3, dtype=torch.float64)
    for at in range(4):
        now = {n: tokens(arguments, at)[n] for n in arguments}
        q, k, v = (now[name][0, 0] for name in "qkv")
        decay = torch.zeros(3, dtype=torch.float64)
        if "log_decay" in now:
            decay = now["log_decay"][0, 0].expand(3)
        beta = now["beta"][0, 0] if "beta" in now else 1.0
        removal = identity
        if "beta" in now:
            removal = identity - beta * torch.outer(k, k)
        if "erase" in now:
            removal = identity - torch.outer(now["erase"][0][0, 0], now["erase"][1][0, 0])
        state = removal @ torch.diag(decay.exp()) @ state + beta * torch.outer(k, v)
        torch.testing.assert_close(y[at], state.T @ q)


@pytest.mark.parametrize("backend", FAST)
@each_variant
def test_gradcheck(variant: str, backend: str) -> None:
    arguments = recurrence(variant, (1, 1, 3), (2, 1))
    arguments["initial_state"] = torch.randn(1, 1, 2, 1, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in tensors(arguments)]

    def run(*values: Tensor) -> tuple[Tensor, Tensor]:
        call = with_tensors(arguments, list(values))
        return linear_recurrence(**call, return_state=True, backend=backend)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.parametrize("backend", FAST)
@each_variant
def test_padding_does_not_change_valid_tokens(variant: str, backend: str) -> None:
    """NaN in padded tokens changes neither values nor gradients; padded outputs are 0."""
    arguments = recurrence(variant, (2, 2, 9))
    mask = torch.rand(2, 9) < 0.4
    mask[:, 0], mask[:, 4] = True, False
    poisoned = [
        x.masked_fill(mask.view(2, 1, 9, *(1,) * (x.dim() - 3)), torch.nan)
        for x in tensors(arguments)
    ]
    leaves = [x.requires_grad_() for x in poisoned]
    call = with_tensors(arguments, leaves)
    y, state = linear_recurrence(**call, key_padding_mask=mask, return_state=True, backend=backend)
    gradients = torch.autograd.grad(y.square().sum() + state.sum(), leaves)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert (y.transpose(1, 2)[mask] == 0).all()
    for at in range(2):
        alone = tokens(sequence(arguments, at), ~mask[at])
        expected, last = linear_recurrence(**alone, return_state=True)
        torch.testing.assert_close(y[at : at + 1, :, ~mask[at]], expected)
        torch.testing.assert_close(state[at : at + 1], last)


@pytest.mark.parametrize("backend", FAST)
@each_variant
def test_packed_sequences_do_not_affect_each_other(variant: str, backend: str) -> None:
    offsets = [0, 3, 3, 70, 71, 140]
    arguments = recurrence(variant, (1, 2, 140))
    first = torch.randn(5, 2, 3, 2, dtype=torch.float64)
    y, state = linear_recurrence(
        **arguments,
        initial_state=first,
        cu_seqlens=torch.tensor(offsets),
        return_state=True,
        backend=backend,
    )
    for at, (start, end) in enumerate(pairwise(offsets)):
        alone = tokens(arguments, slice(start, end))
        expected, last = linear_recurrence(
            **alone, initial_state=first[at : at + 1], return_state=True
        )
        torch.testing.assert_close(y[:, :, start:end], expected)
        torch.testing.assert_close(state[at : at + 1], last)


@pytest.mark.parametrize("backend", FAST)
@each_variant
def test_chunks_equal_the_whole_sequence(variant: str, backend: str) -> None:
    arguments = recurrence(variant, (2, 2, 80))
    expected, last = linear_recurrence(**arguments, return_state=True)
    state, pieces = None, []
    for start, end in ((0, 66), (66, 66), (66, 67), (67, 80)):
        piece = tokens(arguments, slice(start, end))
        y, state = linear_recurrence(
            **piece, initial_state=state, return_state=True, backend=backend
        )
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 2), expected)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("backend", FAST)
@each_variant
def test_no_output_depends_on_a_later_token(variant: str, backend: str) -> None:
    arguments = recurrence(variant, (1, 2, 70))
    y = linear_recurrence(**arguments, backend=backend)
    for position in (1, 33, 64, 69):
        other = recurrence(variant, (1, 2, 70))
        mixed = [
            torch.cat((x[:, :, :position], z[:, :, position:]), 2)
            for x, z in zip(tensors(arguments), tensors(other), strict=True)
        ]
        changed = linear_recurrence(**with_tensors(arguments, mixed), backend=backend)
        torch.testing.assert_close(changed[:, :, :position], y[:, :, :position])


EXTREMES = torch.tensor([0.0, -1e-6, -1e-3, -50.0, -1e4, -torch.inf])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", [v for v in VARIANTS if "decay" in v or "gated" in v])
def test_extreme_decays(variant: str, backend: str) -> None:
    """Mix decays from 1 to exactly 0 in a chunk: no error from one reaches another."""
    arguments = recurrence(variant, (2, 2, 100), (8, 8), torch.float32)
    drawn = torch.randint(0, len(EXTREMES), arguments["log_decay"].shape)
    arguments["log_decay"] = EXTREMES[drawn * (torch.rand(drawn.shape) < 0.3)]
    wide = with_tensors(arguments, [x.double() for x in tensors(arguments)])
    expected = linear_recurrence(**wide, backend="reference").float()
    leaves = [x.requires_grad_() for x in tensors(arguments)]
    y = linear_recurrence(**with_tensors(arguments, leaves), backend=backend)
    torch.testing.assert_close(y, expected, atol=3e-5, rtol=3e-5)
    gradients = torch.autograd.grad(y.sum(), leaves)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_a_decay_of_zero_resets_the_state() -> None:
    arguments = recurrence("vector decay and delta rule", (1, 2, 90))
    arguments["log_decay"][:, :, 40] = -torch.inf
    y = linear_recurrence(**arguments)
    after = linear_recurrence(**tokens(arguments, slice(40, None)))
    torch.testing.assert_close(y[:, :, 40:], after)


def test_a_long_memory_keeps_small_decays() -> None:
    """After a decay of exp(-50) per token, a decay of exp(-1e-4) is still exact in float32."""
    arguments = recurrence("scalar decay", (1, 1, 64), (1, 1), torch.float32)
    arguments = with_tensors(arguments, [torch.ones_like(x) for x in tensors(arguments)])
    arguments["log_decay"][:] = -1e-4
    arguments["log_decay"][:, :, :30] = -50.0
    y = linear_recurrence(**arguments)[0, 0, 30:, 0].double()
    ratio = torch.tensor(-1e-4, dtype=torch.float64).exp()
    count = torch.arange(2.0, 36.0, dtype=torch.float64)
    torch.testing.assert_close(y, (1 - ratio**count) / (1 - ratio), atol=0, rtol=1e-6)


def test_step_sizes_of_the_delta_rule() -> None:
    """Beta 0 keeps the state, 1 replaces the value of a key, and 2 reflects it."""
    key = torch.nn.functional.normalize(torch.randn(1, 1, 2, 4, dtype=torch.float64), dim=-1)
    key[:, :, 1] = key[:, :, 0]
    v = torch.randn(1, 1, 2, 3, dtype=torch.float64)
    first, second = v[0, 0]
    for beta, expected in ((0.0, first), (1.0, second), (2.0, 2 * second - first)):
        step_sizes = torch.tensor([[[1.0, beta]]], dtype=torch.float64)
        y = linear_recurrence(key, key, v, beta=step_sizes)
        torch.testing.assert_close(y[0, 0, 1], expected)


def test_a_reflection_never_forgets() -> None:
    """Keys of unit norm and beta 2 give orthogonal transitions: the state keeps its norm."""
    key = torch.nn.functional.normalize(torch.randn(1, 1, 2000, 8), dim=-1)
    first = torch.randn(1, 1, 8, 4)
    _, last = linear_recurrence(
        key, key, torch.zeros(1, 1, 2000, 4), beta=torch.full((1, 1, 2000), 2.0),
        initial_state=first, return_state=True,
    )  # fmt: skip
    torch.testing.assert_close(last.norm(), first.norm(), atol=0, rtol=1e-4)


def test_removal_before_the_decay_equals_rwkv7() -> None:
    """S (diag(w) - kappa (kappa rate)^T) + v k^T in the notation of RWKV-7."""
    arguments = recurrence("vector decay", (1, 1, 20), (4, 4))
    q, k, v, log_decay = tensors(arguments)
    kappa = torch.nn.functional.normalize(torch.randn_like(q), dim=-1)
    rate = torch.rand_like(q)
    y = linear_recurrence(
        q, k, v, log_decay=log_decay, erase=(kappa * rate, kappa * (-log_decay).exp())
    )
    state = torch.zeros(4, 4, dtype=torch.float64)
    for at in range(20):
        w, z, a = log_decay[0, 0, at].exp(), kappa[0, 0, at], rate[0, 0, at]
        state = state @ (torch.diag(w) - torch.outer(z, z * a)) + torch.outer(
            v[0, 0, at], k[0, 0, at]
        )
        torch.testing.assert_close(y[0, 0, at], state @ q[0, 0, at])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@each_variant
def test_outputs_have_the_dtype_of_the_tokens(variant: str, dtype: torch.dtype) -> None:
    """Outputs have the dtype of the tokens; the state is float32."""
    arguments = recurrence(variant, (1, 2, 200), (8, 8))
    narrow = with_tensors(arguments, [x.to(dtype) for x in tensors(arguments)])
    y, state = linear_recurrence(**narrow, return_state=True)
    assert y.dtype == dtype
    assert state.dtype == torch.float32
    wide = with_tensors(narrow, [x.double() for x in tensors(narrow)])
    expected, last = linear_recurrence(**wide, return_state=True, backend="reference")
    torch.testing.assert_close(state, last.float(), atol=1e-4, rtol=1e-4)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(y.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@each_variant
@pytest.mark.parametrize("length", [0, 1])
def test_no_token_and_one_token(variant: str, length: int, backend: str) -> None:
    arguments = recurrence(variant, (2, 2, length))
    first = torch.randn(2, 2, 3, 2, dtype=torch.float64)
    y, state = linear_recurrence(
        **arguments, initial_state=first, return_state=True, backend=backend
    )
    assert y.shape == (2, 2, length, 2)
    assert state.shape == first.shape
    if not length:
        assert torch.equal(state, first)


@each_variant
def test_cost_is_linear_in_the_length(variant: str) -> None:
    counts = []
    for length in (128, 256, 512):
        arguments = recurrence(variant, (1, 1, length), (8, 8), torch.float32)
        leaves = [x.requires_grad_() for x in tensors(arguments)]
        with FlopCounterMode(display=False) as counter:
            call = with_tensors(arguments, leaves)
            linear_recurrence(**call, backend="eager").sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0]) > 0
