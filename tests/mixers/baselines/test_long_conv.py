"""Generated long convolutions against the dense sum: kernel network, window, errors."""

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
from rifflemix.mixers._convolution.long_convolution import KernelNetwork
from rifflemix.mixers.baselines.long_conv import LongConv

DIM, MOST = 5, 20


def made(**options: Any) -> LongConv:
    torch.manual_seed(3)
    mixer = LongConv(DIM, **{"max_length": MOST, "features": 6, **options})
    return perturb(mixer, 0.2).double().eval()


def tokens(length: int = 13, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def kernel_at(mixer: LongConv, lag: int) -> Tensor:
    """Compute (C,): the network of Gabor filters times the window."""
    t = lag / MOST
    filters = [
        torch.exp(-0.5 * (f.gamma * (t - f.mu)) ** 2) * torch.sin(f.omega * t + f.phi)
        for f in mixer.kernel.filters
    ]
    h = filters[0]
    for gabor, linear in zip(filters[1:], mixer.kernel.linears, strict=True):
        h = gabor * linear(h)
    return mixer.kernel.output_linear(h) * math.exp(-0.5 * (t / mixer.log_width.exp()) ** 2)


def literal(mixer: LongConv, x: Tensor) -> Tensor:
    rows = []
    for n in range(len(x)):
        sources = range(n + 1) if mixer.causal else range(len(x))
        rows.append(sum(kernel_at(mixer, n - m) * x[m] for m in sources) + mixer.bias)
    return F.gelu(mixer.proj(F.gelu(mixer.pointwise(torch.stack(rows)))))


@pytest.mark.parametrize("length", [1, 2, 13, MOST])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"kernel_layers": 1}, {"frequency": 0.5, "width": 1.0}],
    ids=["both", "causal", "shallow", "slow and wide"],
)
def test_equals_the_dense_sum(options: dict[str, Any], length: int) -> None:
    mixer, x = made(**options), tokens(length)
    with torch.no_grad():
        expected = torch.stack([literal(mixer, sample) for sample in x])
        torch.testing.assert_close(mixer(x), expected, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_acts_on_the_valid_tokens(causal: bool) -> None:
    assert_acts_on_valid_tokens(made(causal=causal))


def test_kernel_does_not_depend_on_the_length_of_input() -> None:
    mixer = made(causal=True)
    x = tokens(MOST)
    torch.testing.assert_close(mixer(x)[:, :7], mixer(x[:, :7]), atol=1e-11, rtol=1e-9)


def test_dropout_acts_in_training_only() -> None:
    mixer, x = made(dropout=0.5), tokens()
    torch.testing.assert_close(mixer(x), made()(x), atol=0, rtol=0)
    mixer.train()
    assert not torch.allclose(mixer(x), mixer(x))


def test_initial_outputs_keep_the_scale() -> None:
    """Check that the last layer is divided by sqrt(num_taps)."""
    for most in (64, 2048):
        torch.manual_seed(0)
        network = KernelNetwork(8, features=32, num_layers=3, frequency=most / 12, num_taps=most)
        energy = network(torch.linspace(0, 1, most)).square().sum(0)
        assert 1e-3 < energy.mean() < 10.0


def released_start(taps: int, frequency: float, width: float, channels: int = 64) -> Tensor:
    """Compute the initial causal kernel (lags, C) of the released code.

    Positions go from -1 to 1 (the current token) over all taps. `width` uses the same unit.
    """
    features, end = 32, width * math.sqrt(-2.0 * math.log(0.1))
    positions = torch.linspace(-1, 1, taps)[:, None]
    positions = positions[int((2.0 - end) / (2.0 / (taps - 1))) :]
    h = torch.ones(1)
    for layer in range(4):
        mu = 1.0 - 1.667 * width * torch.rand(features)
        gamma = torch.distributions.Gamma(6.0 / (layer + 1), 1.0).sample((features,))
        omega = 2.0 * math.pi * frequency * gamma * (2.0 * torch.rand(features) - 1.0)
        gabor = torch.exp(-0.5 * (gamma * (positions - mu)) ** 2) * torch.sin(omega * positions)
        weight = torch.empty(features, features)
        torch.nn.init.kaiming_uniform_(weight, nonlinearity="linear")
        h = gabor * (1.0 if layer == 0 else h @ weight.mT + 1.0)
    last = torch.empty(channels, features)
    torch.nn.init.kaiming_uniform_(last, nonlinearity="linear")
    window = torch.exp(-0.5 * ((positions - 1.0) / width) ** 2)
    return (h @ last.mT / math.sqrt(len(positions)) * window).flip(0)


@pytest.mark.parametrize("width", [0.03, 0.4])
def test_causal_kernels_are_initialized_as_released(width: float) -> None:
    """Check the kernels' energy, mean lag and share of the current token."""
    taps, frequency = 1024, 2272.557

    def figures(kernels: list[Tensor]) -> Tensor:
        energy = torch.stack([kernel.square().sum(1) for kernel in kernels]).mean(0)
        energy = energy / len(kernels[0].mT)
        lags = torch.arange(len(energy))
        return torch.stack([energy.sum(), (energy * lags).sum() / energy.sum(), energy[0]])

    torch.manual_seed(0)
    options = {"features": 32, "frequency": frequency, "width": width / 2.0}
    ours = [LongConv(64, max_length=taps, causal=True, **options) for _ in range(100)]
    with torch.no_grad():
        found = figures([mixer._kernels(taps)[0].mT for mixer in ours])
    expected = figures([released_start(taps, frequency, width) for _ in range(100)])
    assert found[0].item() == pytest.approx(expected[0].item(), rel=0.1)
    assert found[1].item() == pytest.approx(expected[1].item(), rel=0.1)
    assert found[2].item() == pytest.approx(expected[2].item(), rel=0.2)


def test_first_window() -> None:
    assert LongConv(4, max_length=8).log_width.exp().item() == pytest.approx(0.075)
    mixer = LongConv(4, max_length=8, width=0.5)
    assert mixer.log_width.exp().item() == pytest.approx(0.5)
    assert mixer.no_weight_decay() <= {name for name, _ in mixer.named_parameters()}


def test_operations_are_counted_without_memory() -> None:
    with torch.device("meta"):
        mixer = LongConv(DIM, max_length=MOST)
    expected = sum(p.numel() for p in LongConv(DIM, max_length=MOST).parameters())
    assert sum(p.numel() for p in mixer.parameters()) == expected


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "features": ("features", lambda: made(features=0)),
    "layers": ("num_layers", lambda: made(kernel_layers=0)),
    "frequency": ("frequency", lambda: made(frequency=0.0)),
    "width": ("width", lambda: made(width=-1.0)),
    "no channels": (
        "channels",
        lambda: KernelNetwork(0, features=1, num_layers=1, frequency=1.0, num_taps=1),
    ),
    "no taps": (
        "num_taps",
        lambda: KernelNetwork(1, features=1, num_layers=1, frequency=1.0, num_taps=0),
    ),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
