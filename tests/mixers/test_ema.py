"""Damped moving averages: golden vectors, the recurrence, both directions, streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from perturbed import perturb
from rifflemix.mixers._convolution.state_space import DampedEMA


def made(dim: int = 5, ema_dim: int = 3, *, bidirectional: bool = False) -> DampedEMA:
    torch.manual_seed(1)
    ema = DampedEMA(dim, ema_dim, bidirectional=bidirectional).double()
    return perturb(ema, 0.5)


def literal(ema: DampedEMA, x: Tensor) -> Tensor:
    """Compute the paper's recurrence per token and channel, for one sequence."""
    length, dim = x.shape
    p, alpha = ema.delta.sigmoid().squeeze(-1), ema.alpha.sigmoid().squeeze(-1)
    beta, gamma = ema.beta.squeeze(-1), ema.gamma
    y = x * ema.omega
    directions = [(0, range(length)), (dim, range(length - 1, -1, -1))]
    for first, order in directions[: 2 if ema.bidirectional else 1]:
        for c in range(dim):
            row, h = first + c, torch.zeros(ema.ema_dim, dtype=x.dtype)
            for n in order:
                h = p[row] * beta[row] * x[n, c] + (1 - p[row] * alpha[row]) * h
                y[n, c] = y[n, c] + (gamma[row] * h).sum() / ema.ema_dim**0.5
    return torch.nn.functional.silu(y)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["causal", "both"])
@pytest.mark.parametrize("length", [1, 2, 11])
def test_equals_the_recurrence(length: int, bidirectional: bool) -> None:
    ema = made(bidirectional=bidirectional)
    x = torch.randn(2, length, 5, dtype=torch.float64)
    expected = torch.stack([literal(ema, sample.clone()) for sample in x])
    torch.testing.assert_close(ema(x), expected, atol=1e-12, rtol=1e-12)


def test_equals_the_golden_file(golden: Callable[[str], dict[str, np.ndarray]]) -> None:
    vectors = {key: torch.from_numpy(value) for key, value in golden("mega_ema_bi0").items()}
    parameters = {key[2:]: value for key, value in vectors.items() if key.startswith("p.")}
    ema = DampedEMA(6, 3, bidirectional=False)
    ema.load_state_dict(parameters)
    y = ema(vectors["x"].transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(y, vectors["y"], atol=1e-5, rtol=1e-4)


def test_steps_equal_the_whole_sequence() -> None:
    ema = made()
    x = torch.randn(3, 17, 5, dtype=torch.float64)
    state, outputs = ema.init_state(3), []
    for token in x.unbind(1):
        y, state = ema.step(token, state)
        outputs.append(y)
    assert state.shape == (3, 5, 3)
    torch.testing.assert_close(torch.stack(outputs, 1), ema(x), atol=1e-12, rtol=1e-12)


def test_current_token_is_included_in_both_directions() -> None:
    ema = made(bidirectional=True)
    x = torch.zeros(1, 9, 5, dtype=torch.float64)
    x[0, 4] = 1.0
    one_way = made()
    with torch.no_grad():
        for name, parameter in one_way.named_parameters():
            whole = getattr(ema, name)
            parameter.copy_(whole if name == "omega" else whole[:5])
    assert not torch.allclose(ema(x)[0, 4], one_way(x)[0, 4], atol=1e-3)
    torch.testing.assert_close(ema(x)[0, 5:], one_way(x)[0, 5:], atol=1e-12, rtol=0)


def test_bfloat16_is_computed_in_a_wider_dtype() -> None:
    ema = made(16, 4).bfloat16()
    x = torch.randn(1, 200, 16, dtype=torch.bfloat16)
    y = ema(x)
    assert y.dtype == torch.bfloat16
    expected = ema.double()(x.double())
    assert (y.double() - expected).abs().max() < 0.01 * expected.abs().max()


def test_initial_values_follow_the_released_code() -> None:
    ema = DampedEMA(400, 4)
    assert ema.beta[:, 0].mean() > 0.9
    assert ema.beta[:, 1].mean() < -0.9
    assert abs(ema.delta.std() - 0.2) < 0.02
    assert ema.no_weight_decay() == {name for name, _ in ema.named_parameters()}


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "no channels": ("dim", lambda: DampedEMA(0)),
    "no averages": ("ema_dim", lambda: DampedEMA(4, 0)),
    "directions a number": ("bidirectional", lambda: DampedEMA(4, bidirectional=1)),
    "channels": ("x", lambda: DampedEMA(4)(torch.randn(1, 3, 5))),
    "rank": ("x", lambda: DampedEMA(4)(torch.randn(3, 4))),
    "step in both": (
        "bidirectional",
        lambda: DampedEMA(4, bidirectional=True).step(torch.randn(1, 4), torch.zeros(1, 4, 16)),
    ),
    "step of three axes": (
        "x_t",
        lambda: DampedEMA(4).step(torch.randn(1, 1, 4), torch.zeros(1, 4, 16)),
    ),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
