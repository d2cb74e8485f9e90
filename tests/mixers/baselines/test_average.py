"""The mean and the running mean of valid tokens, checked against a loop."""

from __future__ import annotations

import pattern_reference as reference
import pytest
import torch
from torch import Tensor

import rifflemix as rm


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "trailing", "leading", "scattered"])
def test_equals_a_loop(padding: str, causal: bool) -> None:
    x = torch.randn(3, 11, 4, dtype=torch.float64)
    mask = reference.masks(3, 11)[padding]

    def one(tokens: Tensor) -> Tensor:
        n = len(tokens)
        return torch.stack([tokens[: i + 1 if causal else n].mean(0) for i in range(n)])

    y = rm.create_mixer("average", 4, causal=causal)(x, key_padding_mask=mask)
    torch.testing.assert_close(y, reference.on_valid_tokens(one, x, mask), atol=1e-13, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_sums_of_bfloat16_have_a_wider_dtype(causal: bool) -> None:
    """Check a sum of ones that stops at 256 in bfloat16."""
    y = rm.create_mixer("average", 2, causal=causal)(torch.ones(1, 5000, 2, dtype=torch.bfloat16))
    assert (y == 1).all()


def test_stream_in_bfloat16() -> None:
    mixer = rm.create_mixer("average", 2, causal=True)
    state = mixer.init_state(1, dtype=torch.bfloat16)
    for _ in range(1000):
        y, state = mixer.step(torch.ones(1, 2, dtype=torch.bfloat16), state)
    assert y.dtype == torch.bfloat16
    assert (y == 1).all()
    assert state["sum"].dtype == torch.float64
