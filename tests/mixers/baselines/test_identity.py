"""The identity mixer changes padded positions only."""

from __future__ import annotations

import pytest
import torch

import rifflemix as rm


@pytest.mark.parametrize("causal", [False, True])
def test_identity_returns_its_input(causal: bool) -> None:
    x = torch.randn(2, 5, 4)
    mixer = rm.create_mixer("identity", 4, causal=causal)
    assert torch.equal(mixer(x), x)
    assert not list(mixer.parameters())
    mask = torch.rand(2, 5) < 0.5
    y = mixer(x, key_padding_mask=mask)
    assert torch.equal(y, x.masked_fill(mask.unsqueeze(-1), 0.0))
