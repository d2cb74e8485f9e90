"""`token_statistics`: the vision variant of TSSA, without its projections."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rifflemix.ops import causal_token_statistics, token_statistics

BACKENDS = ("reference", "eager")


def draw_tokens(data: st.DataObject) -> tuple[Tensor, Tensor]:
    """Draw tokens (B, H, N, D), sometimes with zero features, and a temperature per head."""
    b, h, n, d = (data.draw(st.integers(1, most)) for most in (3, 4, 9, 5))
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    w = torch.randn(b, h, n, d, dtype=torch.float64)
    if data.draw(st.booleans()):
        w[..., 0] = 0.0
    if data.draw(st.booleans()):
        w = w.round()
    return w, torch.randn(h, dtype=torch.float64) * 2


def draw_mask(data: st.DataObject, w: Tensor) -> Tensor:
    shape = (w.shape[0], w.shape[2])
    bits = st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    return torch.tensor(data.draw(bits)).view(shape)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_eager_equals_the_reference(data: st.DataObject) -> None:
    w, temperature = draw_tokens(data)
    mask = draw_mask(data, w) if data.draw(st.booleans()) else None
    normalize = data.draw(st.booleans())
    cotangent = torch.randn_like(w)
    results = []
    for backend in BACKENDS:
        inputs = [w.clone().requires_grad_(), temperature.clone().requires_grad_()]
        y, pi = token_statistics(
            *inputs,
            normalize=normalize,
            key_padding_mask=mask,
            return_membership=True,
            backend=backend,
        )
        loss = (y * cotangent).sum() + (pi * cotangent[..., 0]).sum()
        results.append((y.detach(), pi.detach(), *torch.autograd.grad(loss, inputs)))
    torch.testing.assert_close(results[1], results[0], atol=1e-11, rtol=1e-9)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_padding_does_not_change_valid_tokens(data: st.DataObject) -> None:
    w, temperature = draw_tokens(data)
    mask = draw_mask(data, w)
    w = torch.where(mask[:, None, :, None], torch.nan, w)
    for normalize in (True, False):
        y, pi = token_statistics(
            w, temperature, normalize=normalize, key_padding_mask=mask, return_membership=True
        )
        assert (y.transpose(1, 2)[mask] == 0).all()
        assert (pi.transpose(1, 2)[mask] == 0).all()
        for b in range(len(w)):
            valid = ~mask[b]
            if valid.any():
                alone = w[b : b + 1, :, valid]
                expected = token_statistics(
                    alone, temperature, normalize=normalize, return_membership=True
                )
                got = (y[b : b + 1, :, valid], pi[b : b + 1, :, valid])
                torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "unnormalized"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_gradcheck(backend: str, normalize: bool, masked: bool) -> None:
    w = torch.randn(2, 3, 5, 2, dtype=torch.float64, requires_grad=True)
    temperature = torch.randn(3, dtype=torch.float64, requires_grad=True)
    mask = None
    if masked:
        mask = torch.tensor([[True, False, False, True, False], [True] * 5])

    def run(w: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        return token_statistics(
            w,
            temperature,
            normalize=normalize,
            key_padding_mask=mask,
            return_membership=True,
            backend=backend,
        )

    assert torch.autograd.gradcheck(run, (w, temperature))


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_gradients(backend: str) -> None:
    w = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    temperature = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def run(*inputs: Tensor) -> Tensor:
        return token_statistics(*inputs, backend=backend)

    assert torch.autograd.gradgradcheck(run, (w, temperature))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_token_in_closed_form(backend: str) -> None:
    """A single token has unit norm in each feature, so its logit is temperature * D."""
    w = torch.tensor([[[[3.0, -1.0]], [[0.5, 2.0]]]], dtype=torch.float64)
    temperature = torch.tensor([0.3, -0.2], dtype=torch.float64)
    y, pi = token_statistics(w, temperature, return_membership=True, backend=backend)
    expected_pi = torch.softmax(2 * temperature, 0).view(1, 2, 1)
    p = expected_pi.unsqueeze(-1)
    expected = -w * p / (1 + p * w**2 / (p + 1e-8))
    torch.testing.assert_close(pi, expected_pi)
    torch.testing.assert_close(y, expected, atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_head_uses_every_token(backend: str) -> None:
    w = torch.randn(2, 1, 6, 3, dtype=torch.float64)
    y, pi = token_statistics(
        w, torch.tensor([5.0]).double(), return_membership=True, backend=backend
    )
    assert (pi == 1).all()
    moment = w.square().sum(2, keepdim=True) / (6 + 1e-8)
    torch.testing.assert_close(y, -w / (1 + moment))


@pytest.mark.parametrize("backend", BACKENDS)
def test_floor_of_the_norm(backend: str) -> None:
    """A column of norm 5e-13 is divided by 1e-12, so its squares sum to 0.25 instead of 1."""
    w = torch.zeros(1, 2, 2, 1, dtype=torch.float64)
    w[0, 0, :, 0] = torch.tensor([3e-13, 4e-13], dtype=torch.float64)
    pi = token_statistics(
        w, torch.tensor([10.0, 1.0]).double(), return_membership=True, backend=backend
    )[1]
    logits = torch.tensor([[0.9, 1.6], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(pi[0], torch.softmax(logits, 0), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_offset_of_the_count(backend: str) -> None:
    """A group with almost no members (Pi about 1e-9) exposes the 1e-8 in the denominator."""
    w = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    temperature = torch.tensor([0.0, 20.0], dtype=torch.float64)
    y, pi = token_statistics(w, temperature, return_membership=True, backend=backend)
    p = pi[0, 0, 0]
    assert 1e-9 < p < 3e-9
    torch.testing.assert_close(y[0, 0, 0, 0], -p / (1 + p / (p + 1e-8)), atol=0, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_column_of_zeros_has_finite_gradients(backend: str, dtype: torch.dtype) -> None:
    for column in (0.0, 1e-20, 1e-13, 1e-12, 3e-12, 1e-10):
        w = torch.randn(1, 2, 4, 3, dtype=dtype)
        w[..., 1] = column
        w[:, 0, :, 2] = 0.0
        w.requires_grad_()
        temperature = torch.ones(2, dtype=dtype, requires_grad=True)
        mask = torch.tensor([[False, True, False, False]])
        y = token_statistics(w, temperature, key_padding_mask=mask, backend=backend)
        for gradient in torch.autograd.grad(y.sum(), (w, temperature)):
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sample_of_padding_only(backend: str) -> None:
    w = torch.full((2, 2, 3, 2), torch.nan, dtype=torch.float64)
    w[1] = torch.randn(2, 3, 2)
    w.requires_grad_()
    temperature = torch.ones(2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 3, [False] * 3])
    y = token_statistics(w, temperature, key_padding_mask=mask, backend=backend)
    assert (y[0] == 0).all()
    gradients = torch.autograd.grad(y.square().sum(), (w, temperature))
    assert (gradients[0][0] == 0).all()
    assert all(torch.isfinite(g).all() for g in gradients)


def test_order_of_tokens_and_other_samples_do_not_matter() -> None:
    w = torch.randn(3, 4, 7, 2, dtype=torch.float64)
    temperature = torch.rand(4, dtype=torch.float64)
    y = token_statistics(w, temperature)
    order = torch.randperm(7)
    torch.testing.assert_close(token_statistics(w[:, :, order], temperature), y[:, :, order])
    torch.testing.assert_close(token_statistics(w[1:2], temperature), y[1:2])


@pytest.mark.parametrize("length", [1, 9, 4096])
def test_bfloat16_differs_by_the_last_rounding_only(length: int) -> None:
    """All sums are float32, so only the rounding of the result may be lost."""
    w = torch.randn(1, 4, length, 8).bfloat16()
    temperature = torch.rand(4).mul(3)
    y, pi = token_statistics(w, temperature, return_membership=True)
    assert y.dtype == torch.bfloat16
    assert pi.dtype == torch.float32
    expected = token_statistics(w.double(), temperature.double(), return_membership=True)
    torch.testing.assert_close(y.double(), expected[0], atol=1e-7, rtol=2**-8)
    torch.testing.assert_close(pi.double(), expected[1], atol=1e-6, rtol=1e-5)


def test_autocast_does_not_touch_the_statistics() -> None:
    w = torch.randn(1, 4, 500, 8)
    expected = token_statistics(w, torch.ones(4), return_membership=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = token_statistics(w, torch.ones(4), return_membership=True)
    torch.testing.assert_close(got, expected, atol=0, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_drops_a_feature_for_all_tokens(backend: str) -> None:
    w = torch.randn(2, 3, 4, 50, dtype=torch.float64)
    temperature = torch.ones(3, dtype=torch.float64)
    ratio = token_statistics(w, temperature, dropout_p=0.25, backend=backend)
    ratio = ratio / token_statistics(w, temperature)
    assert ((ratio.abs() < 1e-12) | ((ratio - 1 / 0.75).abs() < 1e-9)).all()
    assert (ratio - ratio[:, :, :1]).abs().max() < 1e-9
    assert 0.1 < (ratio == 0).double().mean() < 0.4


@pytest.mark.parametrize("strided", [True, False], ids=["strided", "contiguous"])
def test_compiles_and_exports(strided: bool) -> None:
    torch.compiler.reset()
    w = torch.randn(2, 6, 3, 4).transpose(1, 2) if strided else torch.randn(2, 3, 6, 4)
    mask = torch.tensor([[False] * 6, [True, False] * 3])

    class Call(torch.nn.Module):
        def forward(self, w: Tensor, temperature: Tensor, mask: Tensor) -> Any:
            return token_statistics(w, temperature, key_padding_mask=mask, return_membership=True)

    arguments = (w, torch.ones(3), mask)
    expected = Call()(*arguments)
    compiled = torch.compile(Call(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), expected)
    exported = torch.export.export(Call(), arguments, strict=False).module()
    torch.testing.assert_close(exported(*arguments), expected)


W = torch.randn(2, 3, 4, 5)
ONES = torch.ones(3)
BAD = {
    "rank": ({"w": W[0]}, r"w: .*\(B, H, N, D\).*got \(3, 4, 5\)"),
    "integers": ({"w": W.long()}, r"w: .*got torch.int64\b"),
    "list": ({"w": [1.0]}, "w:"),
    "no tokens": ({"w": W[:, :, :0]}, r"w: .*got \(2, 3, 0, 5\)"),
    "no features": ({"w": W[..., :0]}, r"w: .*got \(2, 3, 4, 0\)"),
    "a temperature per head": (
        {"temperature": torch.ones(4)},
        r"temperature: .*\(H,\).*\(3,\).*got \(4,\)",
    ),
    "temperature of the code": ({"temperature": torch.ones(3, 1)}, r"temperature: .*got \(3, 1\)"),
    "float temperature": ({"temperature": 1.0}, "temperature:"),
    "int temperature": ({"temperature": ONES.long()}, r"temperature: .*got torch\.int64"),
    "temperature elsewhere": ({"temperature": ONES.to("meta")}, "temperature:"),
    "mask shape": (
        {"key_padding_mask": torch.zeros(2, 3, dtype=torch.bool)},
        r"key_padding_mask: .*\(B, N\).*\(2, 4\).*got \(2, 3\)",
    ),
    "mask dtype": (
        {"key_padding_mask": torch.zeros(2, 4)},
        r"key_padding_mask: .*got torch\.float32",
    ),
    "dropout": ({"dropout_p": 1.0}, r"dropout_p: .*got 1\.0"),
    "no such backend": ({"backend": "fast"}, "backend: .*got 'fast'"),
    "backend not here": ({"backend": "triton"}, "backend: .*got 'triton'"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments = {"w": W, "temperature": ONES, **change}
    with pytest.raises(ValueError, match=message):
        token_statistics(**arguments)


@pytest.mark.parametrize("operator", [token_statistics, causal_token_statistics])
@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_padding_is_zero_next_to_a_nan_token(operator: Any, backend: str) -> None:
    w = torch.randn(2, 2, 5, 3)
    mask = torch.tensor([[False, False, True, False, True]]).expand(2, -1)
    w[0, :, 1, 0] = torch.nan
    y = operator(w, torch.ones(2), key_padding_mask=mask, backend=backend)
    y = y[0] if isinstance(y, tuple) else y
    assert y[0, :, :2].isnan().any()
    assert torch.equal(y[:, :, mask[0]], torch.zeros(2, 2, 2, 3))
    assert y[1].isfinite().all()
