"""Subspace self-attention against sums over subspaces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers.baselines.crate import Crate


def build(dim: int = 12, num_heads: int = 3, **options) -> Crate:
    return rm.create_mixer("crate", dim, num_heads=num_heads, **options).double().eval()


def literal(mixer: Crate, x: Tensor) -> Tensor:
    """Sum U_h (U_h^T x) softmax over the heads of one sequence (N, C)."""
    width = mixer.dim // mixer.num_heads
    total, coordinates = torch.zeros_like(x), []
    for h in range(mixer.num_heads):
        basis = mixer.in_proj.weight[h * width : (h + 1) * width].T  # (C, D), U_h
        z = x @ basis
        scores = z @ z.T / width**0.5
        if mixer.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        attended = scores.softmax(-1) @ z
        total = total + attended @ basis.T
        coordinates.append(attended)
    return total if mixer.out_proj is None else mixer.out_proj(torch.cat(coordinates, -1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tied_output", [False, True])
def test_equals_the_sum_over_subspaces(tied_output: bool, causal: bool) -> None:
    mixer = build(tied_output=tied_output, causal=causal)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-10)
    mask = torch.rand(2, 7) < 0.4
    y = mixer(x, key_padding_mask=mask)
    for sample, padded, out in zip(x, mask, y, strict=True):
        torch.testing.assert_close(
            out[~padded], literal(mixer, sample[~padded]), atol=1e-10, rtol=1e-10
        )


def test_untied_streams() -> None:
    mixer = build(tied_output=False, causal=True)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    state = mixer.init_state(2)
    for n in range(5):
        y, state = mixer.step(x[:, n], state)
        torch.testing.assert_close(y, mixer(x)[:, n])


def test_parameters_are_counted() -> None:
    assert sum(p.numel() for p in build().parameters()) == 12 * 12
    assert sum(p.numel() for p in build(tied_output=False).parameters()) == 2 * 12 * 12 + 12


def test_dropout_drops_weights_in_training_only() -> None:
    mixer = build(dropout=0.5).train()
    x = torch.randn(1, 6, 12, dtype=torch.float64)
    assert not torch.equal(mixer(x), mixer(x))
    mixer.eval()
    assert torch.equal(mixer(x), mixer(x))
