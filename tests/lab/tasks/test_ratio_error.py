"""Tests of the error of a share of tokens if every sampled sequence has several tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rifflemix.lab.tasks.core.kinds import ratio_deviation, ratio_moments


def means_of(right: torch.Tensor, parts: torch.Tensor) -> dict[str, float]:
    return {name: total / count for name, (total, count) in ratio_moments(right, parts).items()}


def test_one_part_per_sample_gives_the_binomial_error() -> None:
    right = torch.tensor([1, 0, 1, 1])
    found = ratio_deviation(0.75, means_of(right, torch.ones(4, dtype=torch.int64)))
    assert found == pytest.approx(math.sqrt(0.75 * 0.25))


def test_ratio_error_equals_a_bootstrap_over_sequences() -> None:
    """Compare with a bootstrap over sequences of many lengths with different shares."""
    draws = np.random.default_rng(0)
    parts = draws.integers(1, 60, 400)
    right = draws.binomial(parts, draws.beta(2, 3, 400))
    share = right.sum() / parts.sum()
    found = ratio_deviation(share, means_of(torch.tensor(right), torch.tensor(parts)))
    rows = draws.integers(0, 400, (2000, 400))
    bootstrap = (right[rows].sum(1) / parts[rows].sum(1)).std()
    assert found / math.sqrt(400) == pytest.approx(bootstrap, rel=0.1)


def test_no_samples_give_no_error() -> None:
    assert ratio_deviation(0.5, {}) is None
