"""Hyena against the sums of its definition; kernels, streams, padding, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rifflemix.mixers.baselines.recurrent.hyena import Hyena

DIM, MOST = 3, 12


def made(**options: Any) -> Hyena:
    torch.manual_seed(3)
    mixer = Hyena(DIM, **{"max_length": MOST, "filter_width": 8, "position_features": 5, **options})
    return mixer.double().eval()


def tokens(length: int = 9, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def kernel_at(mixer: Hyena, lag: int) -> Tensor:
    """Compute the kernels of all channels at one lag."""
    t = lag / (MOST - 1)
    angles = [2 * math.pi * lag / MOST * f for f in (1e-4, 1.0)]
    h = torch.tensor([t, *map(math.cos, angles), *(-math.sin(a) for a in angles)]).double()
    network = mixer.kernel
    for linear in network.linears:
        h = torch.sin(network.frequency * linear(h))
    decays = torch.linspace(math.log(100) / 1.5, math.log(100) / 0.3, DIM).double()
    return network.output_linear(h).unflatten(0, (-1, DIM)) * torch.exp(-decays * t)


def literal(mixer: Hyena, x: Tensor) -> Tensor:
    """Compute the outputs of one sequence (N, C), sum by sum."""
    projected, length = mixer.in_proj(x), len(x)
    weight, bias = mixer.short.weight[:, 0], mixer.short.bias
    offsets = (-2, -1, 0) if mixer.causal else (-1, 0, 1)
    rows = []
    for n in range(length):
        taps = [(w, n + o) for w, o in zip(weight.T, offsets, strict=True)]
        rows.append(sum((w * projected[m] for w, m in taps if 0 <= m < length), bias))
    q, k, v = torch.stack(rows).chunk(3, -1)
    product, outputs = k * v, []
    for n in range(length):
        y = mixer.skip * product[n]
        for m in range(length):
            if m <= n:
                y = y + kernel_at(mixer, n - m)[0] * product[m]
            if m >= n and not mixer.causal:
                y = y + kernel_at(mixer, m - n)[1] * product[m]
        outputs.append(q[n] * y)
    return mixer.out_proj(torch.stack(outputs))


@pytest.mark.parametrize("length", [1, 2, MOST])
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_equals_the_sums_of_the_definition(causal: bool, length: int) -> None:
    mixer, x = made(causal=causal), tokens(length)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-6, rtol=1e-6)


def test_output_does_not_depend_on_the_length_of_the_input() -> None:
    mixer, x = made(causal=True), tokens(MOST)
    torch.testing.assert_close(mixer(x[:, :5]), mixer(x)[:, :5])


def test_stream_has_a_state_of_constant_size() -> None:
    mixer, x = made(causal=True), tokens(MOST)
    state, outputs = mixer.init_state(2), []
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
        assert state["products"].shape == (2, MOST, DIM)
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x))


def test_has_the_parameters_of_the_released_125m_model() -> None:
    """Count a layer of 768 channels of safari's hyena-150b.yaml by hand."""
    mixer = Hyena(768, max_length=2048, causal=True)
    projections = 768 * 3 * 768 + 3 * 768 + 768 * 768 + 768
    short = 3 * 768 * 3 + 3 * 768
    network = (33 * 64 + 64) + 2 * (64 * 64 + 64) + 64 + 64 * 768
    expected = projections + short + network + 768
    assert sum(p.numel() for p in mixer.parameters()) == expected


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "no width": ("filter_width", lambda: made(filter_width=0)),
    "even features": ("position_features", lambda: made(position_features=4)),
    "few features": ("position_features", lambda: made(position_features=1)),
    "zero frequency": ("frequency", lambda: made(frequency=0.0)),
    "no length": ("max_length", lambda: made(max_length=None)),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
