"""Performer against explicit features, softmax attention and golden vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from attention_checks import (
    TOLERANCE,
    assert_acts_on_valid_tokens,
    assert_linear_memory,
    assert_streams,
    assert_valid_equal,
    padding_mask,
    queries_keys_values,
)
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines import performer
from rifflemix.mixers.baselines.performer import Performer, orthogonal_projection

Golden = Callable[[str], dict[str, np.ndarray]]


def build(dim: int = 8, num_heads: int = 2, **options) -> Performer:
    return rm.create_mixer("performer", dim, num_heads=num_heads, **options).double().eval()


def literal_features(mixer: Performer, x: Tensor, largest: str) -> Tensor:
    """Compute features (N, M) of one head (N, D), with `largest` subtracted."""
    x = x / x.shape[-1] ** 0.25
    products = x if mixer.projection is None else x @ mixer.projection.T
    if mixer.kernel == "relu":
        return products.clamp_min(0) + 1e-3
    exponents = products - x.square().sum(-1, keepdim=True) / 2
    if largest == "row":
        exponents = exponents - products.max(-1, keepdim=True).values
    elif largest == "head":
        exponents = exponents - products.max()
    return (exponents.exp() + 1e-4) / math.sqrt(products.shape[-1])


def literal(mixer: Performer, x: Tensor) -> Tensor:
    """Compute one sequence (N, C) with the weight matrix."""
    y = []
    heads = (t.chunk(mixer.num_heads, -1) for t in mixer.qkv(x).chunk(3, -1))
    for q, k, v in zip(*heads, strict=True):
        keys = literal_features(mixer, k, "none" if mixer.causal else "head")
        weights = literal_features(mixer, q, "row") @ keys.T
        if mixer.causal:
            weights = weights.tril()
        y.append(weights @ v / weights.sum(-1, keepdim=True))
    return mixer.proj(torch.cat(y, -1))


OPTIONS = [
    {},
    {"num_features": 7},
    {"kernel": "relu"},
    {"kernel": "relu", "num_features": 5, "bias": False},
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_explicit_features(options: dict[str, object], causal: bool) -> None:
    mixer = build(causal=causal, **options)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_padding_does_not_change_valid_tokens(options: dict[str, object], causal: bool) -> None:
    assert_acts_on_valid_tokens(build(causal=causal, **options))


def test_stabilizer_is_the_largest_valid_key() -> None:
    mixer = build()
    q, k, v = torch.randn(3, 2, 2, 9, 4, dtype=torch.float64).unbind(0)
    mask = torch.arange(9).expand(2, 9) >= 6
    k[:, :, 6:] *= 10
    expected = mixer.attend(q[:, :, :6], k[:, :, :6], v[:, :, :6], None)
    y = mixer.attend(q, k, v, mask)[:, :, :6]
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear_in_the_length(causal: bool, kernel: str) -> None:
    mixer = build(causal=causal, kernel=kernel, num_features=24)
    assert_linear_memory(mixer, per_token=2 * 64)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_streams_past_a_chunk(options: dict[str, object]) -> None:
    assert_streams(build(causal=True, **options), 70)


@pytest.mark.parametrize("causal", [False, True])
def test_many_features_approach_softmax_attention(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the limit without the offset, since the offset adds a bias."""
    monkeypatch.setattr(performer, "_SOFTMAX_OFFSET", 0.0)
    x = torch.randn(2, 16, 8, dtype=torch.float64)
    softmax = rm.create_mixer("softmax", 8, num_heads=2, causal=causal).double()
    expected = softmax(x)
    errors = []
    for num_features in (8, 256, 8192):
        mixer = build(causal=causal, num_features=num_features)
        mixer.load_state_dict({**softmax.state_dict(), "projection": mixer.projection})
        errors.append(((mixer(x) - expected).norm() / expected.norm()).item())
    assert errors[0] > 1.3 * errors[1]
    assert errors[1] > 3 * errors[2]
    assert errors[2] < 0.04


def test_wide_causal_heads_distinguish_keys() -> None:
    """Check long projection rows: a bound from their length hides all keys."""
    mixer = build(256, 1, causal=True)
    x = torch.randn(1, 9, 256, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], literal(mixer, x[0]), atol=1e-8, rtol=1e-8)
    _, k, _ = mixer.split(mixer.qkv(x))
    _, features = mixer.features(k, k, None, None)
    assert features.std(-2).mean() > 0.1 * features.mean()


def test_large_exponents_stay_finite_when_causal() -> None:
    """Check the largest exponents: keys equal to rows of the projection."""
    mixer = rm.create_mixer("performer", 512, causal=True, num_features=16)
    assert 0.5 * mixer.projection.square().sum(1).max() > 150  # over float32's e^88
    k = (mixer.projection * 512**0.25)[None, None].requires_grad_()
    y = mixer.attend(k, k, torch.randn(1, 1, 16, 512), None)
    assert y.isfinite().all()
    y.sum().backward()
    assert k.grad.isfinite().all()


def test_rows_are_orthogonal_normal_vectors() -> None:
    projection = orthogonal_projection(20, 8)
    assert projection.shape == (20, 8)
    for block in projection.split(8):
        inner = block @ block.T
        torch.testing.assert_close(inner, inner.diagonal().diag(), atol=1e-4, rtol=0)
    many = orthogonal_projection(40_000, 4)
    assert many.mean(0).abs().max() < 0.03
    torch.testing.assert_close(many.T @ many / 40_000, torch.eye(4), atol=0.03, rtol=0)
    # Stronger than a zero mean: each entry of a block is positive half of the time.
    assert (many.view(-1, 4, 4) > 0).double().mean(0).sub(0.5).abs().max() < 0.03


def test_the_projection_is_seeded_saved_and_redrawn() -> None:
    torch.manual_seed(5)
    first = build()
    torch.manual_seed(5)
    assert torch.equal(build().projection, first.projection)
    assert torch.equal(first.state_dict()["projection"], first.projection)
    assert "projection" not in dict(first.named_parameters())
    before = first.projection.clone()
    first.redraw_projection(torch.Generator().manual_seed(1))
    assert not torch.equal(first.projection, before)
    assert first.projection.dtype == torch.float64
    again = build()
    again.redraw_projection(torch.Generator().manual_seed(1))
    assert torch.equal(again.projection, first.projection)


def test_default_numbers_of_features() -> None:
    assert build(64, 2).projection.shape == (math.ceil(32 * math.log(32)), 32)
    assert build(2, 2).projection.shape == (1, 1)
    relu = build(kernel="relu")
    assert relu.projection is None
    with pytest.raises(rm.InputError, match=r"num_features: .*got None"):
        relu.redraw_projection()


def test_options_out_of_range() -> None:
    with pytest.raises(rm.InputError, match=r"kernel: .*softmax.*got 'gelu'"):
        build(kernel="gelu")
    with pytest.raises(rm.InputError, match=r"num_features: .*\b1\b"):
        build(num_features=0)
    with pytest.raises(rm.InputError, match="scale_exponent: expected"):
        build(scale_exponent=-0.25)
    with pytest.raises(rm.InputError, match=r"padded_keys: .*left_out.*got 'seen'"):
        build(padded_keys="seen")
    with pytest.raises(rm.InputError, match=r"padded_keys: .*'left_out'.*causal=True"):
        build(padded_keys="zero", causal=True)


def golden_layer(arrays: dict[str, np.ndarray], kernel: str, **options) -> Performer:
    projection = torch.from_numpy(arrays["projection"])
    mixer = rm.create_mixer(
        "performer", 8, num_heads=2, kernel=kernel, num_features=len(projection), **options
    )
    mixer.projection.copy_(projection)
    return mixer


def test_softmax_kernel_equals_the_golden_file(golden: Golden) -> None:
    """Check the reference wrapper.

    It ignores the kernel's name, scales twice and counts padding as zeros.
    """
    arrays = golden("lra_performer_relu")
    mixer = golden_layer(arrays, "softmax", scale_exponent=0.5, padded_keys="zero")
    q, k, v = queries_keys_values(arrays)
    expected = torch.from_numpy(arrays["y_nomask"])
    torch.testing.assert_close(mixer.attend(q, k, v, None), expected, **TOLERANCE)
    mask = padding_mask(arrays)
    assert_valid_equal(mixer.attend(q, k, v, mask), arrays["y_masked"], mask)
    once = golden_layer(arrays, "softmax")
    torch.testing.assert_close(
        once.attend(q / 4**0.25, k / 4**0.25, v, mask),
        golden_layer(arrays, "softmax", scale_exponent=0.5).attend(q, k, v, mask),
    )


def test_relu_kernel_equals_the_golden_file(golden: Golden) -> None:
    arrays = golden("performer_generalized_relu")
    y = golden_layer(arrays, "relu").attend(*queries_keys_values(arrays), None)
    torch.testing.assert_close(y, torch.from_numpy(arrays["y"]), **TOLERANCE)
