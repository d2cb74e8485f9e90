"""Causal token statistics between equations (33) and (34): memberships recomputed at times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.ops import causal_token_statistics
from rifflemix.ops.statistics.backends import renormalized_token_statistics
from rifflemix.ops.statistics.common import renewal_counts

EVERY = (1, 2, 3, 8, 11, 50, "doubling")


def make(b: int, h: int, n: int, d: int) -> list[Tensor]:
    return [
        torch.randn(b, h, n, d, dtype=torch.float64),
        torch.randn(h, dtype=torch.float64) * 2,
        torch.randn(h, n + 2, dtype=torch.float64) * 0.3,
    ]


def equation_33(w: Tensor, temperature: Tensor) -> Tensor:
    """Compute each prefix separately: scale features to unit norm, then (10), (28), (29)."""
    outputs = []
    for t in range(w.shape[2]):
        prefix = w[:, :, : t + 1]
        scaled = prefix / torch.linalg.vector_norm(prefix, dim=2, keepdim=True)
        pi = torch.softmax(temperature[:, None] * scaled.square().sum(-1), dim=1).unsqueeze(-1)
        moment = (pi * prefix.square()).sum(2) / (pi.sum(2) + 1e-8)
        outputs.append(-prefix[:, :, t] * pi[:, :, t] / (1 + moment))
    return torch.stack(outputs, 2)


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_one_step_equals_equation_33(backend: str) -> None:
    w, temperature, _ = make(2, 3, 9, 4)
    y, _ = renormalized_token_statistics(w, temperature, None, 1, backend=backend)
    torch.testing.assert_close(y, equation_33(w, temperature), atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_without_a_bound_equals_equation_34(backend: str) -> None:
    w, temperature, bias = make(2, 3, 9, 4)
    found = renormalized_token_statistics(w, temperature, bias, 10, backend=backend)
    expected = causal_token_statistics(
        w, temperature, bias, return_membership=True, backend="reference"
    )
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("every", EVERY)
def test_eager_equals_the_reference(every: int | str, masked: bool) -> None:
    w, temperature, bias = make(2 if masked else 1, 3, 11, 4)
    w[..., 0] = 0.0
    mask = torch.arange(11) >= torch.tensor([[6], [0]]) if masked else None
    arguments = (w, temperature, bias if masked else None, every, mask)
    expected = renormalized_token_statistics(*arguments, backend="reference")
    found = renormalized_token_statistics(*arguments)
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-12)


def test_memberships_are_recomputed_on_schedule() -> None:
    assert renewal_counts(3, 10) == [3, 6, 9]
    assert renewal_counts(4, 3) == []
    assert renewal_counts("doubling", 9) == [1, 2, 4, 8]
    assert renewal_counts("doubling", 16) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("every", [2, "doubling"])
def test_gradients_are_correct(every: int | str) -> None:
    w, temperature, bias = (x.requires_grad_() for x in make(1, 2, 5, 2))
    mask = torch.tensor([[False, False, False, False, True]])

    def run(*arguments: Tensor) -> Tensor:
        return renormalized_token_statistics(*arguments, every, mask)[0]

    assert torch.autograd.gradcheck(run, (w, temperature, bias))


def mixer_of(every: Any, **options: Any) -> rm.TokenMixer:
    torch.manual_seed(5)
    mixer = rm.create_mixer(
        "tssa", 12, num_heads=3, causal=True, renormalize_every=every, **options
    )
    return perturb(mixer, 0.1).double().eval()


@pytest.mark.parametrize("every", [1, 4, "doubling"])
def test_no_token_depends_on_later_tokens_or_padding(every: int | str) -> None:
    mixer = mixer_of(every, max_length=20)
    x = torch.randn(2, 17, 12, dtype=torch.float64)
    y = mixer(x)
    for n in (1, 4, 7, 16):
        later = x.clone()
        later[:, n:] += 1.0
        torch.testing.assert_close(mixer(later)[:, :n], y[:, :n], atol=1e-13, rtol=1e-12)
        assert not torch.allclose(mixer(later)[:, n:], y[:, n:])
    mask = torch.rand(2, 17) < 0.4
    found, pi = mixer(x, key_padding_mask=mask), mixer.membership(x, key_padding_mask=mask)
    for sample, padded in enumerate(mask):
        valid = x[sample : sample + 1, ~padded]
        torch.testing.assert_close(found[sample, ~padded], mixer(valid)[0], atol=1e-12, rtol=1e-10)
        torch.testing.assert_close(pi[sample][:, ~padded], mixer.membership(valid)[0])
    assert not found[mask].any()


def test_half_precision_is_summed_in_float32() -> None:
    """Sums are float32: in bfloat16, sums over 2,000 tokens would stop growing."""
    w = torch.randn(1, 2, 2000, 4).bfloat16()
    temperature = torch.tensor([0.5, -0.5])
    y, pi = renormalized_token_statistics(w, temperature, None, "doubling")
    exact, wanted = renormalized_token_statistics(w.double(), temperature, None, "doubling")
    assert (y.dtype, pi.dtype) == (torch.bfloat16, torch.float32)
    assert (pi - wanted).abs().max() < 1e-6
    torch.testing.assert_close(y.double(), exact, atol=1e-3, rtol=2**-8)


def test_autocast_changes_only_the_projections() -> None:
    mixer = mixer_of(4, denominator_bias=False).float()
    x = torch.randn(1, 40, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = mixer(x)
    torch.testing.assert_close(low.float(), mixer(x), atol=0.02, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, "doubling"])
def test_compiles_and_exports(every: int | str) -> None:
    mixer, x = mixer_of(every, max_length=20), torch.randn(2, 11, 12, dtype=torch.float64)
    mask = torch.arange(11).expand(2, 11) % 4 == 1
    compiled = torch.compile(mixer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), mixer(x))
    exported = torch.export.export(mixer, (x,), {"key_padding_mask": mask}).module()
    torch.testing.assert_close(exported(x, key_padding_mask=mask), mixer(x, key_padding_mask=mask))


def test_dropout_drops_in_training() -> None:
    mixer = mixer_of(2, denominator_bias=False, dropout=0.5)
    x = torch.randn(1, 9, 12, dtype=torch.float64)
    assert torch.equal(mixer(x), mixer(x))
    assert not torch.equal(mixer.train()(x), mixer(x))


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "often"])
def test_bad_settings_are_refused(every: Any) -> None:
    with pytest.raises(rm.InputError, match="renormalize_every:"):
        mixer_of(every, max_length=8)


def test_unsupported_uses_are_refused() -> None:
    with pytest.raises(rm.InputError, match=r"renormalize_every: .*None"):
        rm.create_mixer("tssa", 12, renormalize_every=2)
    mixer = mixer_of(2, max_length=8)
    x = torch.randn(1, 4, 12, dtype=torch.float64)
    for stream in (lambda: mixer.init_state(1), lambda: mixer.prefill(x)):
        with pytest.raises(rm.InputError, match=r"renormalize_every: .*None"):
            stream()
