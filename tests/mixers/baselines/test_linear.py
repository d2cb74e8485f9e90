"""The Linear Transformer's attention against loops, and golden vectors of two benchmarks."""

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
from rifflemix.mixers.baselines.linear import LinearAttention

Golden = Callable[[str], dict[str, np.ndarray]]


def build(dim: int = 6, num_heads: int = 2, **options) -> LinearAttention:
    return rm.create_mixer("linear", dim, num_heads=num_heads, **options).double().eval()


def feature(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.exp())


def literal(mixer: LinearAttention, x: Tensor) -> Tensor:
    """Compute the attention of one sequence (N, C) token by token."""
    q, k, v = mixer.qkv(x).chunk(3, -1)
    width = mixer.dim // mixer.num_heads
    y = torch.zeros_like(v)
    for h in range(mixer.num_heads):
        part = slice(h * width, (h + 1) * width)
        for n in range(len(x)):
            weights = [
                feature(q[n, part]) @ feature(k[s, part])
                for s in range(n + 1 if mixer.causal else len(x))
            ]
            total = sum(weights) + 1e-6 if mixer.normalize else math.sqrt(len(x))
            y[n, part] = sum(w * v[s, part] for s, w in enumerate(weights)) / total
    return mixer.proj(y)


FORMS = [{}, {"causal": True}, {"normalize": False}, {"bias": False, "out_bias": False}]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_equals_an_explicit_loop(options: dict[str, bool]) -> None:
    mixer = build(**options)
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_padding_does_not_change_valid_tokens(options: dict[str, bool]) -> None:
    assert_acts_on_valid_tokens(build(**options))


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear_in_the_length(causal: bool) -> None:
    assert_linear_memory(build(causal=causal), per_token=2 * 64)


def test_streams_past_a_chunk() -> None:
    assert_streams(build(causal=True), 70)


def test_state_has_constant_size_and_wide_dtype() -> None:
    mixer = build(causal=True).bfloat16()
    state = mixer.init_state(3)
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    assert shapes == {"sums": (3, 2, 3, 3), "norms": (3, 2, 3), "position": (3,)}
    before = {name: value.clone() for name, value in state.items()}
    y, after = mixer.step(torch.randn(3, 6).bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert after["sums"].dtype == after["norms"].dtype == torch.float64
    assert {name: tuple(value.shape) for name, value in after.items()} == shapes
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_streams_refuse_states_that_do_not_fit() -> None:
    mixer = build(causal=True, max_length=2)
    x = torch.randn(1, 6, dtype=torch.float64)
    with pytest.raises(rm.InputError, match=r"state: .*init_state.*'sums'"):
        mixer.step(x, {})
    state = mixer.init_state(1)
    for _ in range(2):
        _, state = mixer.step(x, state)
    with pytest.raises(rm.InputError, match="max_length = 2"):
        mixer.step(x, state)


def test_unnormalised_cannot_be_causal() -> None:
    with pytest.raises(rm.InputError, match=r"normalize: .*True.*got False"):
        build(normalize=False, causal=True)


def test_normalised_form_equals_the_golden_file(golden: Golden) -> None:
    arrays = golden("lra_jax_linear_attention")
    y = rm.create_mixer("linear", 8, num_heads=2).attend(*queries_keys_values(arrays), None)
    torch.testing.assert_close(y, torch.from_numpy(arrays["y"]), **TOLERANCE)


def test_unnormalised_form_equals_the_golden_file(golden: Golden) -> None:
    arrays = golden("lra_linear_unnormalised")
    mixer = rm.create_mixer("linear", 8, num_heads=2, normalize=False)
    q, k, v = queries_keys_values(arrays)
    expected = torch.from_numpy(arrays["y_nomask"])
    torch.testing.assert_close(mixer.attend(q, k, v, None), expected, **TOLERANCE)
    # The vectors divide by the root of all 16 positions, rifflemix by the root of the valid
    # positions.
    mask = padding_mask(arrays)
    valid = (~mask).sum(1).float()[:, None, None, None]
    y = mixer.attend(q, k, v, mask) * (valid / 16).sqrt()
    assert_valid_equal(y, arrays["y_masked"], mask)
