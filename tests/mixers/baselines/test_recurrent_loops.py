"""Recurrent mixers against loops over the tokens, written from the equations of their papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rifflemix as rm
from perturbed import perturb

DIM, HEADS = 8, 2
RECURRENT = ("retention", "mamba2", "gla", "deltanet", "gated_deltanet", "rwkv7")


def made(name: str, *, causal: bool = True, **options: Any) -> Any:
    torch.manual_seed(3)
    mixer = rm.create_mixer(name, DIM, num_heads=HEADS, causal=causal, **options)
    return perturb(mixer, 0.2).double().eval()


def tokens(length: int = 13, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def convolved(conv: Any, x: Tensor) -> Tensor:
    """Apply SiLU to torch's own convolution of (N, C)."""
    padded = F.pad(x.T, (conv.kernel_size - 1, 0))
    return F.silu(F.conv1d(padded, conv.weight, conv.bias, groups=len(conv.weight)).T)


def heads(x: Tensor) -> Tensor:
    """Split (N, H D) into (H, N, D)."""
    return x.view(len(x), HEADS, -1).transpose(0, 1)


def joined(y: Tensor) -> Tensor:
    return y.transpose(0, 1).flatten(1)


def rms(y: Tensor, weight: Tensor | float, epsilon: float) -> Tensor:
    return y / (y.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def retention(mixer: Any, x: Tensor) -> Tensor:
    """Sum over all earlier tokens, with complex rotations: equation (5) of the paper."""
    q, k = (heads(part) for part in mixer.query_key(x).chunk(2, -1))
    v, size = heads(mixer.value(x)), DIM // HEADS
    frequencies = 10_000.0 ** -torch.linspace(0, 1, size // 2).double()
    turns = torch.exp(1j * torch.arange(len(x)).double().unsqueeze(-1) * frequencies)
    q, k = (torch.view_as_complex(t.reshape(HEADS, len(x), -1, 2)) * turns for t in (q, k))
    outputs = torch.zeros_like(v)
    for h in range(HEADS):
        gamma = 1 - 2.0 ** (-5 - h)
        for n in range(len(x)):
            for m in range(n + 1):
                score = (q[h, n] * k[h, m].conj()).sum().real / size**0.5
                outputs[h, n] += gamma ** (n - m) * score * v[h, m]
    return joined(rms(outputs, 1.0, 1e-6)) * F.silu(mixer.gate(x))


def mamba2(mixer: Any, x: Tensor) -> Tensor:
    inner, size = mixer.norm.weight.shape[0], mixer.key_dim
    z, xbc, dt = mixer.in_proj(x).split((inner, inner + 2 * size, HEADS), -1)
    u, b, c = convolved(mixer.conv1d, xbc).split((inner, size, size), -1)
    u, dt, a = heads(u), F.softplus(dt + mixer.dt_bias), -mixer.A_log.exp()
    outputs = torch.zeros_like(u)
    for h in range(HEADS):
        state = torch.zeros(u.shape[-1], size).double()
        for n in range(len(x)):
            state = (dt[n, h] * a[h]).exp() * state + dt[n, h] * torch.outer(u[h, n], b[n])
            outputs[h, n] = state @ c[n] + mixer.D[h] * u[h, n]
    return rms(joined(outputs) * F.silu(z), mixer.norm.weight, 1e-5)


def gla(mixer: Any, x: Tensor) -> Tensor:
    q, k = (heads(part) for part in mixer.query_key(x).chunk(2, -1))
    v = heads(mixer.value(x))
    alpha = heads(mixer.decay[1](mixer.decay[0](x)).sigmoid() ** (1 / 16))
    outputs = torch.zeros_like(v)
    for h in range(HEADS):
        state = torch.zeros(k.shape[-1], v.shape[-1]).double()
        for n in range(len(x)):
            state = alpha[h, n].unsqueeze(-1) * state + torch.outer(k[h, n], v[h, n])
            outputs[h, n] = q[h, n] @ state / k.shape[-1] ** 0.5
    return joined(rms(outputs, mixer.norm.weight, 1e-5)) * F.silu(mixer.gate(x))


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, alpha: Tensor) -> Tensor:
    """Loop over S <- S alpha (I - beta k k^T) + beta v k^T with S (E, D)."""
    outputs = torch.zeros_like(v)
    for h in range(HEADS):
        state = torch.zeros(v.shape[-1], k.shape[-1]).double()
        eye = torch.eye(k.shape[-1]).double()
        for n in range(v.shape[1]):
            b, key = beta[n, h], unit(k[h, n])
            state = alpha[n, h] * state @ (eye - b * torch.outer(key, key))
            state = state + b * torch.outer(v[h, n], key)
            outputs[h, n] = state @ unit(q[h, n]) / k.shape[-1] ** 0.5
    return outputs


def deltanet(mixer: Any, x: Tensor) -> Tensor:
    q, k, v = (heads(t) for t in convolved(mixer.conv, mixer.qkv(x)).chunk(3, -1))
    beta = mixer.beta(x).sigmoid() * (2 if mixer.negative_eigenvalues else 1)
    y = delta_rule(q, k, v, beta, torch.ones_like(beta))
    return joined(rms(y, mixer.norm.weight, 1e-5))


def gated_deltanet(mixer: Any, x: Tensor) -> Tensor:
    sizes = (DIM, DIM, mixer.value_expansion * DIM)
    q, k, v = (heads(t) for t in convolved(mixer.conv, mixer.qkv(x)).split(sizes, -1))
    beta, a = mixer.beta_and_decay(x).chunk(2, -1)
    alpha = torch.exp(-mixer.A_log.exp() * F.softplus(a + mixer.dt_bias))
    y = delta_rule(q, k, v, beta.sigmoid(), alpha)
    return joined(rms(y, mixer.norm.weight, 1e-6)) * F.silu(mixer.gate(x))


def rwkv7(mixer: Any, x: Tensor) -> Tensor:
    """Loop over S <- S (diag(w) - kappa (a kappa)^T) + v k^T with S (E, D), equation (17)."""
    before = F.pad(x, (0, 0, 1, 0))[:-1]
    xr, xw, xk, xv, xa, xg = ((1 - m) * x + m * before for m in mixer.shift)
    r, k, v = mixer.receptance(xr), mixer.key(xk), mixer.value(xv)
    decay = mixer.decay_bias + mixer.decay.up(mixer.decay.down(xw).tanh())
    w = torch.exp(-torch.tensor(-0.5).double().exp() * decay.sigmoid())
    a = torch.sigmoid(mixer.rate_bias + mixer.rate.up(mixer.rate.down(xa)))
    g = mixer.gate.up(mixer.gate.down(xg).sigmoid())
    kappa = F.normalize(heads(k * mixer.removal_key), dim=-1)
    k = k * (1 + (a - 1) * mixer.key_rate)
    r, k, v, w, a = (heads(t) for t in (r, k, v, w, a))
    outputs = torch.zeros_like(v)
    for h in range(HEADS):
        state = torch.zeros(v.shape[-1], k.shape[-1]).double()
        for n in range(len(x)):
            move = torch.diag(w[h, n]) - torch.outer(kappa[h, n], a[h, n] * kappa[h, n])
            state = state @ move + torch.outer(v[h, n], k[h, n])
            outputs[h, n] = state @ r[h, n]
    groups = joined(outputs)
    y = F.group_norm(groups, HEADS, mixer.norm_weight, mixer.norm_bias, 1e-5 * mixer.key_dim)
    bonus = (r * k * mixer.bonus.unsqueeze(1)).sum(-1, keepdim=True) * v
    return (y + joined(bonus)) * g


LOOPS: dict[str, tuple[Callable[[Any, Tensor], Tensor], dict[str, Any]]] = {
    "retention": (retention, {}),
    "mamba2": (mamba2, {"state_dim": 3}),
    "gla": (gla, {"gate_rank": 4}),
    "deltanet": (deltanet, {}),
    "deltanet beyond 1": (deltanet, {"negative_eigenvalues": True}),
    "gated_deltanet": (gated_deltanet, {}),
    "gated_deltanet wide": (gated_deltanet, {"value_expansion": 2}),
    "rwkv7": (rwkv7, {"layer_index": 1, "num_layers": 3}),
}


@pytest.mark.parametrize("length", [1, 13])
@pytest.mark.parametrize("case", LOOPS)
@torch.no_grad()
def test_equals_the_loop_of_the_paper(case: str, length: int) -> None:
    loop, options = LOOPS[case]
    mixer, x = made(case.partition(" ")[0], **options), tokens(length)
    expected = torch.stack([mixer.proj(loop(mixer, sample)) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("name", RECURRENT)
def test_both_directions_are_added(name: str) -> None:
    causal, both, x = made(name), made(name, causal=False), tokens()
    both.load_state_dict(causal.state_dict())
    expected = causal(x) + causal(x.flip(1)).flip(1)
    torch.testing.assert_close(both(x), expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", RECURRENT)
def test_state_has_constant_size(name: str) -> None:
    mixer, x = made(name), tokens(40)
    _, short = mixer.prefill(x[:, :3])
    _, long = mixer.prefill(x)
    assert {n: t.shape for n, t in short.items()} == {n: t.shape for n, t in long.items()}
    assert short["memory"].shape == (2, HEADS, mixer.key_dim, mixer.value_dim)


def test_rwkv7_has_the_parameters_of_the_released_model() -> None:
    """Count RWKV-7 World 0.1B: 12 layers of 768 channels, 65,536 tokens, appendix of the paper."""
    width, layers, vocabulary, value_rank = 768, 12, 65_536, 32
    mixer = rm.create_mixer("rwkv7", width, num_heads=12, causal=True)
    time_mixing = sum(p.numel() for p in mixer.parameters())
    value_residual = 2 * width * value_rank + width  # in all layers except the first
    channel_mixing = 8 * width**2 + width
    norms = 4 * width * layers + 4 * width
    total = layers * (time_mixing + channel_mixing) + (layers - 1) * value_residual + norms
    assert total + 2 * vocabulary * width == 191_034_624


def test_retention_needs_an_even_number_of_features() -> None:
    with pytest.raises(ValueError, match=r"^dim:"):
        rm.create_mixer("retention", 6, num_heads=2)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("mamba2", "state_dim"),
        ("mamba2", "expansion"),
        ("gla", "gate_rank"),
        ("gated_deltanet", "value_expansion"),
    ],
)
def test_bad_sizes_are_named(name: str, option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}:"):
        made(name, **{option: 0})
