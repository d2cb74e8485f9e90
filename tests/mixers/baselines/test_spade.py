"""SPADE against dense windows and S4: layers with a state space, streams, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_checks import assert_acts_on_valid_tokens
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.mixers.baselines.spade import Spade

DIM, HEADS = 8, 2


def made(**options: Any) -> Spade:
    torch.manual_seed(3)
    mixer = Spade(DIM, **{"num_heads": HEADS, "radius": 3, "state_size": 4, **options})
    return perturb(mixer, 0.2).double().eval()


def tokens(length: int = 13, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def literal(mixer: Spade, x: Tensor) -> Tensor:
    """Compute attention with a dense band for one sequence (N, C).

    S4 has its own test.
    """
    positions = torch.arange(len(x))
    offset = positions - positions.unsqueeze(1)
    sees = (offset.abs() <= mixer.radius) & ((offset <= 0) | (not mixer.causal))
    q, k, v = mixer.qkv(x).chunk(3, -1)
    heads = []
    for part in torch.arange(DIM).chunk(HEADS):
        scores = q[:, part] @ k[:, part].T / math.sqrt(DIM // HEADS)
        heads.append(scores.masked_fill(~sees, -math.inf).softmax(-1) @ v[:, part])
    near = mixer.proj(torch.cat(heads, -1))
    if mixer.ssm is None:
        return near
    far = mixer.ssm(x.unsqueeze(0)).squeeze(0)
    return mixer.aggregate(torch.cat((mixer.norm_global(far), mixer.norm_local(near)), -1))


@pytest.mark.parametrize("length", [1, 2, 13, 40])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"layer_index": 1, "num_layers": 2}, {"radius": 100}],
    ids=["both", "causal", "upper layer", "wide"],
)
def test_equals_dense_windows_plus_s4(options: dict[str, Any], length: int) -> None:
    mixer, x = made(**options), tokens(length)
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_acts_on_the_valid_tokens(causal: bool) -> None:
    assert_acts_on_valid_tokens(made(causal=causal))


@pytest.mark.parametrize("layer", [0, 1])
def test_memory_of_a_stream_is_bounded(layer: int) -> None:
    mixer, x = made(causal=True, layer_index=layer, num_layers=2), tokens(20)
    state, outputs = mixer.init_state(2), []
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
        assert state["keys"].shape[2] <= 3
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x), atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize(
    ("every", "holders"), [(None, [0]), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4])], ids=str
)
def test_layers_with_a_state_space(every: int | None, holders: list[int]) -> None:
    layers = [
        rm.create_mixer("spade", 4, layer_index=i, num_layers=5, ssm_every=every) for i in range(5)
    ]
    assert [i for i, layer in enumerate(layers) if layer.ssm is not None] == holders


def test_only_the_state_space_reaches_beyond_the_window() -> None:
    x = tokens(30, 1)
    changed = x.clone()
    changed[:, 0] += 1.0
    with_state = made()
    assert (with_state(changed) - with_state(x))[0, 20].abs().max() > 1e-6
    without = made(layer_index=1, num_layers=2)
    assert not (without(changed) - without(x))[0, 4:].any()


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "radius": ("radius", lambda: made(radius=0)),
    "period": ("ssm_every", lambda: made(ssm_every=0)),
    "state": ("state_size", lambda: made(state_size=3)),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
