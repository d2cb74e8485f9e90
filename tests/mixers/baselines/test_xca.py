"""Cross-covariance attention against loops over heads and channels."""

from __future__ import annotations

import torch
from attention_checks import assert_linear_memory
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines.xca import XCA


def build(dim: int = 12, num_heads: int = 3, **options) -> XCA:
    mixer = rm.create_mixer("xca", dim, num_heads=num_heads, **options).double().eval()
    torch.nn.init.uniform_(mixer.temperature, 0.5, 4.0)
    return mixer


def literal(mixer: XCA, x: Tensor) -> Tensor:
    """Mix each head's value channels j into output channel i, for (N, C)."""
    q, k, v = mixer.qkv(x).chunk(3, -1)
    width = mixer.dim // mixer.num_heads
    y = torch.zeros_like(v)
    for h in range(mixer.num_heads):
        for i in range(h * width, (h + 1) * width):
            scores = []
            for j in range(h * width, (h + 1) * width):
                cosine = (q[:, i] * k[:, j]).sum() / (q[:, i].norm() * k[:, j].norm())
                scores.append(mixer.temperature[h, 0, 0] * cosine)
            weights = torch.stack(scores).softmax(0)
            y[:, i] = v[:, h * width : (h + 1) * width] @ weights
    return mixer.proj(y)


def test_equals_loops_over_channels() -> None:
    for options in ({}, {"bias": False, "out_bias": False}):
        mixer = build(**options)
        x = torch.randn(2, 7, 12, dtype=torch.float64)
        expected = torch.stack([literal(mixer, sample) for sample in x])
        torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-10)
        mask = torch.rand(2, 7) < 0.4
        y = mixer(x, key_padding_mask=mask)
        for sample, padded, out in zip(x, mask, y, strict=True):
            torch.testing.assert_close(
                out[~padded], literal(mixer, sample[~padded]), atol=1e-10, rtol=1e-10
            )


def test_norms_of_long_bfloat16_sequences_are_summed_in_float32() -> None:
    mixer = build(4, 1)
    x = torch.randn(1, 8192, 4).bfloat16()
    exact = mixer(x.double())
    y = mixer.bfloat16()(x).double()
    assert (y - exact).abs().mean() < 0.02 * exact.abs().mean()


def test_no_matrix_of_token_pairs_is_computed() -> None:
    assert_linear_memory(build(), per_token=3 * 12)
