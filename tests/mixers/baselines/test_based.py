"""Based against explicit weights; Taylor features, streams, packed batches, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rifflemix.mixers.baselines.recurrent.based import Based, taylor_features

DIM, HEADS, FEATURES, WINDOW = 6, 2, 4, 3


def made(**options: Any) -> Based:
    torch.manual_seed(3)
    sizes = {"num_heads": HEADS, "feature_dim": FEATURES, "window": WINDOW}
    return Based(DIM, **{**sizes, **options}).double().eval()


def tokens(length: int = 13, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def literal(mixer: Based, x: Tensor) -> Tensor:
    """Compute one sequence (N, C) with N x N weights in each head."""
    n = torch.arange(len(x))
    distance = n.unsqueeze(1) - n
    before, after = (WINDOW - 1, 0) if mixer.causal else (WINDOW // 2, (WINDOW - 1) // 2)
    near = (distance <= before) & (distance >= -after)
    seen = distance >= 0 if mixer.causal else distance == distance
    q, k, v = mixer.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(1)
    small_q, small_k = mixer.taylor_qk(x).unflatten(-1, (2, HEADS, -1)).unbind(1)
    heads = []
    for h in range(HEADS):
        scores = q[:, h] @ k[:, h].T / (DIM // HEADS) ** 0.5
        window = scores.masked_fill(~near, -torch.inf).softmax(-1)
        s = small_q[:, h] @ small_k[:, h].T / FEATURES**0.5
        taylor = (1 + s + s**2 / 2) * seen
        weights = window + taylor / taylor.sum(-1, keepdim=True)
        heads.append(weights @ v[:, h])
    return mixer.proj(torch.cat(heads, -1))


@pytest.mark.parametrize("length", [1, 2, 13, 64, 150])
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_equals_explicit_weights(causal: bool, length: int) -> None:
    mixer, x = made(causal=causal), tokens(length)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected)


def test_features_multiply_to_the_taylor_polynomial() -> None:
    x, y = torch.randn(2, 5, 16, dtype=torch.float64)
    s = (x * y).sum(-1) / 4.0
    product = (taylor_features(x.mT) * taylor_features(y.mT)).sum(-2)
    torch.testing.assert_close(product, 1 + s + s**2 / 2)


def test_stream_has_a_state_of_constant_size() -> None:
    mixer, x = made(causal=True), tokens(30)
    state, outputs = mixer.init_state(2), []
    sizes = {name: part.shape for name, part in state.items()}
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
    assert {name: part.shape for name, part in state.items()} == sizes
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x))


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "no features": ("feature_dim", lambda: made(feature_dim=0)),
    "no window": ("window", lambda: made(window=0)),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
