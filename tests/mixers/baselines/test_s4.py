"""S4D-Lin against its recurrence in complex numbers; both directions, streams, errors."""

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
from rifflemix.mixers.baselines.s4 import S4

DIM = 5


def made(**options: Any) -> S4:
    torch.manual_seed(3)
    mixer = S4(DIM, **{"state_size": 6, **options})
    return perturb(mixer, 0.3).double().eval()


def tokens(length: int = 13, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def literal(mixer: S4, x: Tensor) -> Tensor:
    """Discretize h' = A h + x by zero-order hold.

    The loop runs per channel, for one sequence (N, C).
    """
    a = torch.complex(-mixer.log_A_real.exp(), mixer.A_imag)
    dt = mixer.log_dt.exp().unsqueeze(-1)
    ratio, gain = torch.exp(dt * a), (torch.exp(dt * a) - 1) / a
    readouts = torch.view_as_complex(mixer.C.detach())
    y = x * mixer.D
    h = torch.zeros_like(a)
    for n in range(len(x)):
        h = ratio * h + gain * x[n].unsqueeze(-1)
        y[n] = y[n] + 2 * (readouts[0] * h).sum(-1).real
    h = torch.zeros_like(a)
    for n in range(len(x) - 1, -1, -1) if mixer.bidirectional else ():
        y[n] = y[n] + 2 * (readouts[1] * h).sum(-1).real  # from the tokens after n
        h = ratio * h + gain * x[n].unsqueeze(-1)
    value, gate = mixer.output_linear(F.gelu(y)).chunk(2, -1)
    return value * gate.sigmoid()


@pytest.mark.parametrize("length", [1, 2, 13])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"bidirectional": False}],
    ids=["both", "causal", "one direction"],
)
def test_equals_the_recurrence(options: dict[str, Any], length: int) -> None:
    mixer, x = made(**options), tokens(length)
    expected = torch.stack([literal(mixer, sample.clone()) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_acts_on_the_valid_tokens(causal: bool) -> None:
    assert_acts_on_valid_tokens(made(causal=causal))


def test_state_of_a_stream_has_constant_size() -> None:
    mixer, x = made(causal=True), tokens(30)
    state, outputs = mixer.init_state(2), []
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
        assert state["state"].shape == (2, DIM, 3, 2)
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x), atol=1e-11, rtol=1e-9)


def test_initialization_is_s4d_lin() -> None:
    mixer = S4(7, state_size=10)
    expected = math.pi * torch.arange(5.0).expand(7, 5)
    torch.testing.assert_close(mixer.A_imag, expected)
    torch.testing.assert_close(mixer.log_A_real.exp(), torch.full((7, 5), 0.5))
    step = mixer.log_dt.exp()
    assert ((step >= 1e-3) & (step <= 1e-1)).all()
    assert mixer.no_weight_decay() <= {name for name, _ in mixer.named_parameters()}


def test_long_input_has_a_long_effect_and_finite_outputs() -> None:
    mixer = S4(4, causal=True)
    x = torch.zeros(1, 3000, 4)
    x[0, 0] = 1.0
    y = mixer(x)
    assert y.isfinite().all()
    nothing = mixer(torch.zeros(1, 3000, 4))
    assert (y - nothing)[0, 200].abs().max() > 1e-4


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "odd state": ("state_size", lambda: made(state_size=5)),
    "both and causal": ("bidirectional", lambda: made(causal=True, bidirectional=True)),
    "direction a number": ("bidirectional", lambda: made(bidirectional=1)),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
