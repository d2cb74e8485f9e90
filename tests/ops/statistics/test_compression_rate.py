"""The compression objectives, and checks that token statistics descend on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rifflemix.ops import compression_rate, token_statistics, variational_compression_rate

BACKENDS = ("reference", "eager")
RATES = [variational_compression_rate, compression_rate]


def orthogonal_bases(channels: int, heads: int) -> Tensor:
    """Create (H, C, C / H) orthonormal bases of subspaces that span the space."""
    square = torch.linalg.qr(torch.randn(channels, channels, dtype=torch.float64))[0]
    return square.view(channels, heads, -1).transpose(0, 1)


def project(z: Tensor, bases: Tensor) -> Tensor:
    return torch.einsum("bnc,hcd->bhnd", z, bases)


def lift(y: Tensor, bases: Tensor) -> Tensor:
    return torch.einsum("bhnd,hcd->bnc", y, bases)


def tokens_from_subspaces(bases: Tensor, length: int, noise: float) -> Tensor:
    """Create (1, N, C) tokens near the subspaces, with noise."""
    heads, channels, features = bases.shape
    chosen = bases[torch.arange(length) % heads]
    inside = torch.einsum("ncd,nd->nc", chosen, torch.randn(length, features).double())
    return (inside + noise * torch.randn(length, channels)).unsqueeze(0)


def random_membership(b: int, h: int, n: int) -> Tensor:
    return torch.softmax(3 * torch.randn(b, h, n, dtype=torch.float64), dim=1)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_eager_equals_the_reference(data: st.DataObject) -> None:
    b, h, n, d = (data.draw(st.integers(1, most)) for most in (3, 4, 7, 4))
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    scale = data.draw(st.floats(0.1, 20))
    w = torch.randn(b, h, n, d, dtype=torch.float64)
    mask = torch.rand(b, n) < 0.3
    membership = random_membership(b, h, n).masked_fill(mask.unsqueeze(1), 0.0)
    for rate, tokens in ((variational_compression_rate, w), (compression_rate, w[:, 0])):
        results = []
        for backend in BACKENDS:
            inputs = [tokens.clone().requires_grad_(), membership.clone().requires_grad_()]
            value = rate(*inputs, scale=scale, backend=backend)
            results.append((value.detach(), *torch.autograd.grad(value.sum(), inputs)))
        torch.testing.assert_close(results[1], results[0], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend: str) -> None:
    w = torch.randn(2, 3, 5, 2, dtype=torch.float64, requires_grad=True)
    membership = random_membership(2, 3, 5).requires_grad_()
    options: dict[str, Any] = {"scale": 2.5, "backend": backend}
    assert torch.autograd.gradcheck(
        lambda w, pi: variational_compression_rate(w, pi, **options), (w, membership)
    )
    assert torch.autograd.gradcheck(
        lambda w, pi: compression_rate(w[:, 0], pi, **options), (w, membership)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "unnormalized"])
def test_token_statistics_is_its_gradient(backend: str, masked: bool, normalize: bool) -> None:
    """Equations (5) to (7): with Pi fixed, y = -n * gradient of the variational rate."""
    w = torch.randn(3, 4, 9, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 9) < 0.4 if masked else torch.zeros(3, 9, dtype=torch.bool)
    y, membership = token_statistics(
        w,
        torch.rand(4).double() * 3,
        normalize=normalize,
        key_padding_mask=mask,
        return_membership=True,
        backend=backend,
    )
    rate = variational_compression_rate(w, membership.detach(), backend=backend)
    (gradient,) = torch.autograd.grad(rate.sum(), w)
    count = (~mask).sum(1).view(3, 1, 1, 1)
    torch.testing.assert_close(y, -count * gradient, atol=1e-9, rtol=1e-7)


def test_update_of_a_token_is_a_gradient_step_on_the_rate() -> None:
    """The same holds for tokens before the projection: U_h projects them and lifts the update."""
    bases = orthogonal_bases(12, 3)
    z = torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    y, membership = token_statistics(
        project(z, bases), torch.ones(3).double(), return_membership=True
    )
    rate = variational_compression_rate(project(z, bases), membership.detach())
    (gradient,) = torch.autograd.grad(rate.sum(), z)
    torch.testing.assert_close(lift(y, bases), -7 * gradient, atol=1e-9, rtol=1e-7)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_step_below_two_lowers_the_rate(data: st.DataObject) -> None:
    """With orthogonal bases and Pi fixed, log is below its tangent, so no step raises the rate."""
    h, d, n = (data.draw(st.integers(1, most)) for most in (4, 4, 12))
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    step = data.draw(st.floats(0.01, 1.99))
    bases = orthogonal_bases(h * d, h)
    z = data.draw(st.floats(0.1, 10)) * torch.randn(2, n, h * d, dtype=torch.float64)
    w = project(z, bases)
    y, membership = token_statistics(w, torch.rand(h).double() * n, return_membership=True)
    moved = project(z + step * lift(y, bases), bases)
    before = variational_compression_rate(w, membership)
    assert (variational_compression_rate(moved, membership) < before).all()


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("step", [0.1, 1.0])
def test_layers_compress_tokens_from_subspaces(noise: float, step: float) -> None:
    """Both rates decrease layer by layer, with Pi estimated again in each layer."""
    bases = orthogonal_bases(16, 4)
    z = tokens_from_subspaces(bases, 120, noise)
    rates = []
    for _ in range(6):
        w = project(z, bases)
        y, membership = token_statistics(w, torch.full((4,), 60.0).double(), return_membership=True)
        rates.append((variational_compression_rate(w, membership), compression_rate(z, membership)))
        z = z + step * lift(y, bases)
    variational, exact = (torch.cat(column) for column in zip(*rates, strict=True))
    assert (variational.diff() < 0).all()
    assert (exact.diff() < 0).all()
    assert variational[-1] < 0.8 * variational[0]


def test_variational_rate_bounds_the_exact_one() -> None:
    """Theorem 1: the bound holds for any orthogonal bases of the whole space."""
    z = torch.randn(4, 10, 6, dtype=torch.float64)
    membership = random_membership(4, 3, 10)
    bases = torch.stack([orthogonal_bases(6, 1)[0] for _ in range(3)])
    exact = compression_rate(z, membership, scale=4.0)
    assert (variational_compression_rate(project(z, bases), membership, scale=4.0) > exact).all()


def test_bound_is_tight_at_the_eigenvectors() -> None:
    z = torch.randn(1, 10, 6, dtype=torch.float64)
    membership = random_membership(1, 3, 10)
    moments = torch.einsum("hn,bnc,bne->hce", membership[0], z, z)
    bases = torch.linalg.eigh(moments)[1]
    exact = compression_rate(z, membership, scale=4.0)
    variational = variational_compression_rate(project(z, bases), membership, scale=4.0)
    torch.testing.assert_close(variational, exact)


def test_bound_holds_with_bases_of_the_subspaces() -> None:
    """Corollary 1: the bound holds if each group lies in the span of its basis columns."""
    bases = orthogonal_bases(12, 3)
    z = tokens_from_subspaces(bases, 30, noise=0.0)
    membership = torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3].T.unsqueeze(0)
    exact = compression_rate(z, membership)
    assert (variational_compression_rate(project(z, bases), membership) > exact).all()
    moments = torch.einsum("hn,bnc,bne->hce", membership[0], z, z)
    tight = torch.linalg.eigh(moments)[1][..., -4:]
    variational = variational_compression_rate(project(z, tight), membership)
    torch.testing.assert_close(variational, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_group_of_unit_tokens_in_closed_form(backend: str) -> None:
    """N copies of C unit vectors have second moment I / C and rate C / 2 * log(1 + s / C)."""
    z = torch.eye(5, dtype=torch.float64).repeat(1, 3, 1)
    everything = torch.ones(1, 1, 15, dtype=torch.float64)
    expected = torch.tensor([2.5 * math.log(1 + 2.0 / 5)], dtype=torch.float64)
    exact = compression_rate(z, everything, scale=2.0, backend=backend)
    torch.testing.assert_close(exact, expected)
    variational = variational_compression_rate(
        z.unsqueeze(1), everything, scale=2.0, backend=backend
    )
    torch.testing.assert_close(variational, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rate", RATES)
def test_padded_tokens_do_not_count(rate: Callable[..., Tensor], backend: str) -> None:
    w = torch.randn(2, 3, 6, 4, dtype=torch.float64)
    membership = random_membership(2, 3, 6)
    membership[:, :, 4:] = 0.0
    tokens = w if rate is variational_compression_rate else w[:, 0]
    expected = rate(tokens[..., :4, :], membership[..., :4], backend=backend)
    torch.testing.assert_close(rate(tokens, membership, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rate", RATES)
def test_no_tokens_at_all_have_rate_zero(rate: Callable[..., Tensor], backend: str) -> None:
    shape = (1, 2, 3, 4) if rate is variational_compression_rate else (1, 3, 4)
    tokens = torch.randn(shape, requires_grad=True)
    value = rate(tokens, torch.zeros(1, 2, 3), backend=backend)
    value.sum().backward()
    assert (value == 0).all()
    assert (tokens.grad == 0).all()


@pytest.mark.parametrize("rate", RATES)
def test_low_precision_is_summed_in_float32(rate: Callable[..., Tensor]) -> None:
    shape = (1, 2, 2000, 4) if rate is variational_compression_rate else (1, 2000, 4)
    tokens = torch.randn(shape).bfloat16()
    membership = random_membership(1, 2, 2000).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = rate(tokens, membership)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), rate(tokens.double(), membership.double()))


@pytest.mark.parametrize("rate", RATES)
def test_compiles(rate: Callable[..., Tensor]) -> None:
    torch.compiler.reset()
    tokens = torch.randn((2, 3, 5, 4) if rate is variational_compression_rate else (2, 5, 4))
    membership = random_membership(2, 3, 5).float()
    compiled = torch.compile(rate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens, membership), rate(tokens, membership))


W, Z, PI = torch.randn(2, 3, 4, 5), torch.randn(2, 4, 5), random_membership(2, 3, 4).float()
BAD: dict[str, tuple[Callable[..., Tensor], tuple[Any, Any], dict[str, Any], str]] = {
    "whole tokens": (variational_compression_rate, (Z, PI), {}, r"w: .*B.*N.*got \(2, 4, 5\)"),
    "split tokens": (compression_rate, (W, PI), {}, r"z: .*\(B, N, C\)"),
    "groups": (variational_compression_rate, (W, PI[:, :2]), {}, r"membership: .*got \(2, 2, 4\)"),
    "tokens": (compression_rate, (Z, PI[..., :3]), {}, r"membership: .*got \(2, 3, 3\)"),
    "samples": (compression_rate, (Z, PI[:1]), {}, r"membership: .*got \(1, 3, 4\)"),
    "labels": (compression_rate, (Z, PI.long()), {}, r"membership: .*got torch\.int64"),
    "flat": (compression_rate, (Z, PI[0]), {}, r"membership: .*\(B, H, N\)"),
    "half": (compression_rate, (Z, PI.half()), {}, r"membership: .*torch.float32\b"),
    "elsewhere": (compression_rate, (Z, PI.to("meta")), {}, "membership:"),
    "scale": (compression_rate, (Z, PI), {"scale": 0.0}, r"scale: .*\b0\b"),
    "nan scale": (variational_compression_rate, (W, PI), {"scale": math.nan}, "scale:"),
    "backend": (compression_rate, (Z, PI), {"backend": "cpu"}, "backend: .*got 'cpu'"),
}


@pytest.mark.parametrize(("rate", "arguments", "options", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(
    rate: Callable[..., Tensor], arguments: tuple[Any, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rate(*arguments, **options)
