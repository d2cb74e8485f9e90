"""Complex exponential smoothing against its recurrence; gate, directions, streams, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_checks import assert_acts_on_valid_tokens
from torch import Tensor

from perturbed import perturb
from rifflemix.mixers.baselines.exp_smoothing import ComplexSmoothing, ExpSmoothing

DIM = 5


def made(**options: Any) -> ExpSmoothing:
    torch.manual_seed(3)
    mixer = ExpSmoothing(DIM, **options)
    return perturb(mixer, 0.2).double().eval()


def tokens(length: int = 13, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def smoothed(module: ComplexSmoothing, x: Tensor) -> Tensor:
    """Smooth each channel in complex numbers, for one sequence (N, C)."""
    log_delta, alpha, beta = (
        torch.view_as_complex(p.detach()) for p in (module.log_delta, module.alpha, module.beta)
    )
    log_factor = log_delta.exp() * alpha.exp()
    limit = log_factor.real.clamp(max=math.log(0.9999))
    factor = torch.complex(limit, log_factor.imag).exp()
    y = x * module.omega
    for c in range(x.shape[1]):
        h = torch.zeros((), dtype=factor.dtype)
        for n in range(len(x)):
            h = factor[c] * h + (1 - factor[c]) * beta[c].exp() * x[n, c]
            y[n, c] = y[n, c] + h.real
        if module.bidirectional:
            row, h = c + x.shape[1], torch.zeros((), dtype=factor.dtype)
            for n in range(len(x) - 1, -1, -1):
                y[n, c] = y[n, c] + h.real
                h = factor[row] * h + (1 - factor[row]) * beta[row].exp() * x[n, c]
    return y


def literal(mixer: ExpSmoothing, x: Tensor) -> Tensor:
    y = mixer.out_proj(F.relu(smoothed(mixer.cets, mixer.k_proj(x))))
    return y if mixer.g_proj is None else y * mixer.g_proj(x).sigmoid()


@pytest.mark.parametrize("length", [1, 2, 13])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"bidirectional": False}, {"gate": False}, {"hidden_dim": 3}],
    ids=["both", "causal", "one direction", "no gate", "narrow"],
)
def test_equals_the_recurrence(options: dict[str, Any], length: int) -> None:
    mixer, x = made(**options), tokens(length)
    with torch.no_grad():
        expected = torch.stack([literal(mixer, sample) for sample in x])
        torch.testing.assert_close(mixer(x), expected, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_acts_on_the_valid_tokens(causal: bool) -> None:
    assert_acts_on_valid_tokens(made(causal=causal))


def test_state_of_a_stream_has_constant_size() -> None:
    mixer, x = made(causal=True, hidden_dim=7), tokens(30)
    state, outputs = mixer.init_state(2), []
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
        assert state["state"].shape == (2, 7, 1, 2)
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x), atol=1e-11, rtol=1e-9)


def test_initial_factors_are_inside_the_ring() -> None:
    module = ComplexSmoothing(500, bidirectional=False)
    log_factor = torch.view_as_complex(module.log_delta.detach()).exp()
    modulus = log_factor.real.exp()
    assert 0.1 <= modulus.min() < 0.3
    assert 0.85 < modulus.max() <= 0.9
    assert log_factor.imag.min() >= 0
    assert log_factor.imag.max() <= math.pi + 1e-4
    assert module.no_weight_decay() == {name for name, _ in module.named_parameters()}


def test_factors_stay_inside_the_unit_circle() -> None:
    mixer = ExpSmoothing(4, causal=True)
    with torch.no_grad():
        mixer.cets.log_delta.copy_(torch.tensor([1.0, 0.1]).expand(4, 2))  # grows without the bound
    assert mixer(torch.randn(1, 4000, 4)).isfinite().all()


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "hidden": ("hidden_dim", lambda: made(hidden_dim=0)),
    "gate": ("gate", lambda: made(gate=2)),
    "both and causal": ("bidirectional", lambda: made(causal=True, bidirectional=True)),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
