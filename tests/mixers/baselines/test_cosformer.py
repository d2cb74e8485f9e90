"""cosFormer against its quadratic form."""

from __future__ import annotations

import math

import pytest
import torch
from attention_checks import assert_acts_on_valid_tokens, assert_linear_memory, assert_streams
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines.cosformer import CosFormer


def build(dim: int = 6, num_heads: int = 2, max_length: int = 80, **options) -> CosFormer:
    mixer = rm.create_mixer("cosformer", dim, num_heads=num_heads, max_length=max_length, **options)
    return mixer.double().eval()


def quadratic(mixer: CosFormer, x: Tensor) -> Tensor:
    """Compute the quadratic form for one sequence (N, C), with normalized rows.

    The weights are relu(q_i) relu(k_j) cos(pi (i - j) / 2M).
    """
    q, k, v = mixer.qkv(x).chunk(3, -1)
    position = torch.arange(len(x), dtype=torch.float64)
    fade = torch.cos(math.pi / 2 * (position[:, None] - position[None, :]) / mixer.max_length)
    if mixer.causal:
        fade = fade.tril()
    y = []
    for qh, kh, vh in zip(*(t.chunk(mixer.num_heads, -1) for t in (q, k, v)), strict=True):
        weights = qh.clamp_min(0) @ kh.clamp_min(0).T * fade
        y.append(weights @ vh / (weights.sum(-1, keepdim=True) + 1e-6))
    return mixer.proj(torch.cat(y, -1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "max_length"), [(9, 9), (9, 40), (70, 70)])
def test_equals_the_quadratic_form(length: int, max_length: int, causal: bool) -> None:
    mixer = build(max_length=max_length, causal=causal)
    x = torch.randn(2, length, 6, dtype=torch.float64)
    expected = torch.stack([quadratic(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_does_not_change_valid_tokens(causal: bool) -> None:
    assert_acts_on_valid_tokens(build(causal=causal))


@pytest.mark.parametrize("causal", [False, True])
def test_kept_positions_include_all_tokens(causal: bool) -> None:
    """Check that zero keys get no weight and positions count all tokens."""
    mixer = build(causal=causal, keep_positions=True)
    x, mask = torch.randn(2, 13, 6, dtype=torch.float64), torch.rand(2, 13) < 0.4
    y = mixer(x, key_padding_mask=mask)
    for sample, padded, out in zip(x, mask, y, strict=True):
        q, k, v = mixer.qkv(sample).chunk(3, -1)
        position = torch.arange(13).double()
        fade = torch.cos(math.pi / 2 * (position[:, None] - position[None, :]) / mixer.max_length)
        fade = (fade.tril() if causal else fade) * ~padded
        heads = []
        for qh, kh, vh in zip(*(t.chunk(2, -1) for t in (q, k, v)), strict=True):
            weights = qh.clamp_min(0) @ kh.clamp_min(0).T * fade
            heads.append(weights @ vh / (weights.sum(-1, keepdim=True) + 1e-6))
        expected = mixer.proj(torch.cat(heads, -1))
        torch.testing.assert_close(out[~padded], expected[~padded], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear_in_the_length(causal: bool) -> None:
    assert_linear_memory(build(max_length=2048, causal=causal), per_token=2 * 64)


def test_streams_past_a_chunk() -> None:
    assert_streams(build(causal=True), 70)


def test_streams_end_at_max_length() -> None:
    mixer = build(max_length=1, causal=True)
    x = torch.randn(1, 6, dtype=torch.float64)
    _, state = mixer.step(x, mixer.init_state(1))
    with pytest.raises(rm.InputError, match="max_length = 1"):
        mixer.step(x, state)
