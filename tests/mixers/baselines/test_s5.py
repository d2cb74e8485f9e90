"""S5 against its recurrence in complex numbers; HiPPO start, both directions, streams, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_checks import assert_acts_on_valid_tokens
from torch import Tensor

from perturbed import perturb
from rifflemix.mixers.baselines.s5 import S5, _hippo_eigenvalues

DIM = 5


def made(**options: Any) -> S5:
    torch.manual_seed(3)
    mixer = S5(DIM, **{"state_size": 8, **options})
    return perturb(mixer, 0.1).double().eval()


def tokens(length: int = 13, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def literal(mixer: S5, x: Tensor) -> Tensor:
    """Discretize h' = Lambda h + B x by zero-order hold.

    The loop runs per token, for one sequence (N, C).
    """
    eigenvalues = torch.complex(mixer.Lambda_re.clamp(max=-1e-4), mixer.Lambda_im)
    dt = mixer.log_step.exp()
    ratio = torch.exp(eigenvalues * dt)
    b = ((ratio - 1) / eigenvalues).unsqueeze(-1) * torch.view_as_complex(mixer.B.detach())
    readouts = torch.view_as_complex(mixer.C.detach())
    y = x * mixer.D
    orders = [range(len(x)), range(len(x) - 1, -1, -1)]
    for readout, order in zip(readouts, orders[: len(readouts)], strict=True):
        h = torch.zeros_like(ratio)
        for n in order:
            h = ratio * h + b @ x[n].to(b.dtype)
            y[n] = y[n] + 2 * (readout @ h).real
    g = F.gelu(y)
    return g * mixer.out2(g).sigmoid()


@pytest.mark.parametrize("length", [1, 2, 13])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"bidirectional": False}, {"num_blocks": 2}],
    ids=["both", "causal", "one direction", "blocks"],
)
def test_equals_the_recurrence(options: dict[str, Any], length: int) -> None:
    mixer, x = made(**options), tokens(length)
    assert len(mixer.C) == (2 if mixer.bidirectional else 1)
    expected = torch.stack([literal(mixer, sample.clone()) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_acts_on_the_valid_tokens(causal: bool) -> None:
    assert_acts_on_valid_tokens(made(causal=causal))


def test_causal_scan_does_not_depend_on_later_tokens() -> None:
    mixer, x = made(causal=True).float(), tokens(37).float()
    changed = x.clone()
    changed[:, 20:] = 1e6
    assert torch.equal(mixer(changed)[:, :20], mixer(x)[:, :20])


def test_state_of_a_stream_has_constant_size() -> None:
    mixer, x = made(causal=True), tokens(30)
    state, outputs = mixer.init_state(2), []
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
        assert state["state"].shape == (2, 4, 2)
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x), atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("blocks", [1, 3])
def test_initialization_is_the_normal_part_of_hippo(blocks: int) -> None:
    size = 6
    root = (2 * torch.arange(size).double() + 1).sqrt()
    hippo = -((root.unsqueeze(1) * root).tril() - torch.diag(torch.arange(size).double()))
    low_rank = (torch.arange(size).double() + 0.5).sqrt()
    normal = hippo + low_rank.unsqueeze(1) * low_rank
    eigenvalues, basis = _hippo_eigenvalues(blocks * size, blocks)
    rebuilt = 2 * (basis * eigenvalues @ basis.mH).real.double()
    torch.testing.assert_close(rebuilt, torch.block_diag(*[normal] * blocks), atol=1e-5, rtol=1e-5)
    mixer = S5(4, state_size=blocks * size, num_blocks=blocks)
    torch.testing.assert_close(mixer.Lambda_re, torch.full((3 * blocks,), -0.5))
    torch.testing.assert_close(mixer.Lambda_im, eigenvalues.imag)
    assert mixer.no_weight_decay() <= {name for name, _ in mixer.named_parameters()}


def test_eigenvalues_keep_negative_real_parts() -> None:
    mixer = S5(4, causal=True)
    with torch.no_grad():
        mixer.Lambda_re.fill_(3.0)
    assert mixer(torch.randn(1, 4000, 4)).isfinite().all()


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "odd state": ("state_size", lambda: made(state_size=5)),
    "no state": ("state_size", lambda: made(state_size=0)),
    "blocks": ("state_size", lambda: made(num_blocks=3)),
    "no blocks": ("num_blocks", lambda: made(num_blocks=0)),
    "both and causal": ("bidirectional", lambda: made(causal=True, bidirectional=True)),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
