"""Compare mixed images and labels with their equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rifflemix.lab.tasks.images.crops import mix_images

CLASSES = 7


def mixed(seed: int, batch: int = 5, **settings: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images = torch.rand(batch, 3, 9, 14)
    labels = torch.arange(batch) % CLASSES
    kept = images.clone()
    found = mix_images(
        images,
        labels,
        np.random.default_rng(seed),
        num_classes=CLASSES,
        **{"mixup": 0.0, "cutmix": 0.0, **settings},
    )
    assert torch.equal(images, kept)
    return images, labels, *found


def share_of(labels: Tensor, found: Tensor) -> float:
    """Return the remaining weight of the first sample's label."""
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(len(labels)))
    return float(found[0, labels[0]])


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_mixup_is_a_weighted_mean(batch: int) -> None:
    for seed in range(20):
        images, labels, new, probabilities = mixed(seed, batch, mixup=0.8)
        share = share_of(labels, probabilities)
        torch.testing.assert_close(new, share * images + (1 - share) * images.flip(0))
        for row in range(batch):
            expected = torch.zeros(CLASSES)
            expected[labels[row]] += share
            expected[labels[batch - 1 - row]] += 1 - share
            torch.testing.assert_close(probabilities[row], expected)


def test_cutmix_cuts_one_rectangle_for_all() -> None:
    shares = []
    for seed in range(200):
        images, labels, new, probabilities = mixed(seed, cutmix=1.0)
        other = (new != images).any(1)
        cut = other[0]
        assert torch.equal(other[1], cut)
        assert torch.equal(new, torch.where(cut, images.flip(0), images))
        rows, columns = cut.any(1).nonzero(), cut.any(0).nonzero()
        if len(rows):
            assert cut[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
        share = share_of(labels, probabilities)
        assert share == pytest.approx(1 - float(cut.float().mean()), abs=1e-6)
        shares.append(share)
    # Uniform, with larger values at the edge if part of the rectangle is outside the image.
    assert 0.5 < np.mean(shares) < 0.75


def test_mixup_and_cutmix_are_equally_likely() -> None:
    cut = 0
    for seed in range(300):
        images, _, new, _ = mixed(seed, mixup=0.8, cutmix=1.0)
        cut += bool(((new == images) | (new == images.flip(0))).all())
    assert 0.42 < cut / 300 < 0.58


def test_mixing_weight_has_a_beta_distribution() -> None:
    """Compare with the variance of a beta distribution, 1 / (4 (2 a + 1))."""
    for parameter in (0.2, 0.8, 3.0):
        shares = []
        for seed in range(800):
            _, labels, _, probabilities = mixed(seed, 2, mixup=parameter)
            shares.append(share_of(labels, probabilities))
        assert np.var(shares) == pytest.approx(1 / (4 * (2 * parameter + 1)), rel=0.15)
        assert np.mean(shares) == pytest.approx(0.5, abs=0.05)


def test_same_seed_gives_the_same_draws() -> None:
    torch.manual_seed(1)
    first = mixed(3, mixup=0.8, cutmix=1.0)
    torch.manual_seed(1)
    again = mixed(3, mixup=0.8, cutmix=1.0)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
