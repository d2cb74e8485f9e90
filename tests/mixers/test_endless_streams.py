"""States of unbounded streams: a float32 sum stops growing near 2^24 tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.compat import widest_float
from rifflemix.ops.precision import sum_of_products

STREAMING = [name for name in rm.list_mixers() if rm.mixer_card(name).streaming]
SUMS = {
    "average": {"sum"},
    "cosformer": {"sums", "norms"},
    "linear": {"sums", "norms"},
    "based": {"sums", "norms"},
    "performer": {"sums", "norms"},
    "tssa": {"energy", "member_energy", "member_count"},
}
"""Parts of a state that grow without bound."""
State = dict[str, Tensor]


def build(name: str, dtype: torch.dtype = torch.float32) -> rm.TokenMixer:
    options: dict[str, Any] = {"denominator_bias": False} if name == "tssa" else {}
    needs_length = rm.mixer_card(name).needs_max_length
    max_length = 1 << 40 if name == "cosformer" else 64  # weights fade over this distance
    if needs_length:
        options["max_length"] = max_length
    mixer = rm.create_mixer(name, 16, num_heads=2, causal=True, **options)
    return mixer.to(dtype).eval()


def token(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.linspace(0.5, 1.5, 16, dtype=dtype).view(1, 16)


@torch.no_grad()
def after(mixer: rm.TokenMixer, state: State, tokens: int) -> State:
    """Return the state after `tokens` equal tokens."""
    for _ in range(tokens):
        _, state = mixer.step(token(next(mixer.parameters(), torch.ones(1)).dtype), state)
    return state


def doubled(once: Tensor, twice: Tensor) -> bool:
    large = once.abs() > 0.1 * float(once.abs().amax())
    return bool(large.any()) and torch.allclose(twice[large], 2 * once[large], rtol=1e-3)


@pytest.mark.parametrize("name", STREAMING)
def test_growing_sums_are_float64(name: str) -> None:
    mixer = build(name)
    once = after(mixer, mixer.init_state(1), 8)
    twice = after(mixer, once, 8)
    sums = {
        part
        for part, value in once.items()
        if value.is_floating_point()
        and value.shape == twice[part].shape
        and doubled(value, twice[part])
    }
    assert sums == SUMS.get(name, set())
    assert all(once[part].dtype == torch.float64 for part in sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_stream_is_accurate_after_2_to_the_26_tokens(name: str, dtype: torch.dtype) -> None:
    mixer, factor = build(name, dtype), 1 << 25
    state = after(mixer, mixer.init_state(1, dtype=dtype), 2)
    late = {part: value * factor for part, value in state.items()}
    later = after(mixer, late, 2)
    assert later["position"].item() == 2 * factor + 2
    for part in SUMS[name]:
        grown, expected = later[part] - late[part], state[part]
        if name == "tssa" and part != "energy":  # memberships depend on the number of tokens
            assert bool((grown > 0).all())
            continue
        torch.testing.assert_close(grown, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", SUMS)
def test_prompt_gives_the_same_state_dtypes_as_steps(name: str) -> None:
    mixer = build(name)
    with torch.no_grad():
        _, filled = mixer.prefill(token().expand(1, 5, 16).contiguous())
    stepped = after(mixer, mixer.init_state(1), 5)
    for part, value in stepped.items():
        torch.testing.assert_close(filled[part], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["average", "linear", "performer"])
def test_float32_state_is_widened_again(name: str) -> None:
    mixer = build(name)
    state = after(mixer, mixer.init_state(1), 2)
    narrow = {k: v.float() if v.is_floating_point() else v for k, v in state.items()}
    assert all(after(mixer, narrow, 1)[part].dtype == torch.float64 for part in SUMS[name])


def test_device_without_float64_uses_float32_sums() -> None:
    assert widest_float(torch.device("mps")) == torch.float32
    assert widest_float(torch.device("cpu")) == torch.float64


def test_linear_attention_is_accurate_over_a_long_sequence() -> None:
    """Check a long sum: one product over all tokens lost 1e-4."""
    x, y = torch.full((1, 1, (1 << 20) + 5, 3), 0.3), torch.full((1, 1, (1 << 20) + 5, 2), 0.7)
    found, exact = sum_of_products(x, y), x.shape[2] * float(x[0, 0, 0, 0]) * float(y[0, 0, 0, 0])
    torch.testing.assert_close(found, torch.full((1, 1, 3, 2), exact), rtol=2e-5, atol=0)
    x = torch.randn(2, 3, 9000, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 3, 9000, 5, dtype=torch.float64)
    torch.testing.assert_close(sum_of_products(x, y), x.mT @ y)
