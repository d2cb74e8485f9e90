"""MEGA and MEGA-chunk: golden layer, formula, chunks, MEGA-CSP, streams, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_checks import assert_acts_on_valid_tokens
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.mixers.baselines.mega import Mega, MegaChunk
from rifflemix.mixers.baselines.mega_layer import MegaLayer
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.registry import mixer_options

DIM, LENGTH = 6, 11


def made(kind: type[MegaLayer] = Mega, **options: Any) -> MegaLayer:
    torch.manual_seed(2)
    mixer = kind(DIM, **{"max_length": 16, "z_dim": 4, "ema_dim": 3, **options})
    return perturb(mixer, 0.4).double().eval()


def tokens(length: int = LENGTH, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def literal(mixer: MegaLayer, x: Tensor) -> Tensor:
    """Compute one sequence (N, C) without padding, token by token."""
    length, causal, chunk = len(x), mixer.causal, mixer.chunk_size or len(x)
    v = F.silu(mixer.v_proj(x))
    base = mixer.mx_proj(mixer.move(x.unsqueeze(0)).squeeze(0))
    u, z, r, hx = base.split([DIM, 4, mixer.hidden_dim, DIM], -1)
    u, z, r = u.sigmoid(), F.silu(z), F.silu(r)
    q, k = z * mixer.gamma[0] + mixer.beta[0], z * mixer.gamma[1] + mixer.beta[1]
    bias, centre = mixer.rel_pos_bias.rel_pos_bias, mixer.rel_pos_bias.max_length - 1
    rows = []
    for n in range(length):
        start = n - n % chunk
        keys = range(start, n + 1 if causal else min(start + chunk, length))
        if mixer.attention_fn == "softmax":
            scores = [q[n] @ k[m] / math.sqrt(4) + bias[m - n + centre] for m in keys]
            weights = torch.stack(scores).softmax(0)
        else:
            scores = [q[n] @ k[m] / len(keys) + bias[m - n + centre] for m in keys]
            deviation = math.sqrt(1 / (4 * math.pi))
            weights = torch.special.ndtr((torch.stack(scores) - math.sqrt(0.5)) / deviation)
        h = sum(weight * v[m] for weight, m in zip(weights, keys, strict=True))
        new = F.silu(hx[n] + mixer.h_proj(h * r[n]))
        rows.append(x[n] + u[n] * (new - x[n]))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize("attention_fn", ["softmax", "laplace"])
@pytest.mark.parametrize("chunk", [None, 1, 4, 11, 20])
def test_equals_the_formula(chunk: int | None, attention_fn: str, causal: bool) -> None:
    options: dict[str, Any] = {"attention_fn": attention_fn, "causal": causal}
    mixer = made(**options) if chunk is None else made(MegaChunk, chunk_size=chunk, **options)
    x = tokens()
    expected = torch.stack([literal(mixer, sample) for sample in x])
    torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=1e-10)


def test_layer_equals_the_golden_file(golden: Callable[[str], dict[str, np.ndarray]]) -> None:
    vectors = {key: torch.from_numpy(value) for key, value in golden("mega_layer_softmax").items()}
    parameters = {key[2:]: value for key, value in vectors.items() if key.startswith("p.")}
    weight, bias = parameters.pop("norm.norm.weight"), parameters.pop("norm.norm.bias")
    mixer = Mega(6, z_dim=4, hidden_dim=8, ema_dim=3, max_length=16, attention_fn="softmax")
    mixer.load_state_dict(parameters)
    stream = vectors["x"].transpose(0, 1)
    y = mixer.gated_residual(F.layer_norm(stream, (6,), weight, bias), stream)
    torch.testing.assert_close(y.transpose(0, 1), vectors["y"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [Mega, MegaChunk])
@pytest.mark.parametrize("attention_fn", ["softmax", "laplace"])
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_acts_on_the_valid_tokens(kind: type[MegaLayer], attention_fn: str, causal: bool) -> None:
    mixer = made(kind, attention_fn=attention_fn, causal=causal)
    if isinstance(mixer, MegaChunk):
        assert mixer.chunk_size == 2
    assert_acts_on_valid_tokens(mixer)


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("attention_fn", ["softmax", "laplace"])
def test_steps_equal_the_whole_sequence(attention_fn: str, chunk: int | None) -> None:
    options: dict[str, Any] = {"attention_fn": attention_fn, "causal": True}
    mixer = made(**options) if chunk is None else made(MegaChunk, chunk_size=chunk, **options)
    x = tokens(14)
    state, outputs = mixer.init_state(2), []
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
        assert chunk is None or state["keys"].shape[1] <= chunk
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x), atol=1e-11, rtol=1e-9)


def test_a_stream_ends_at_max_length() -> None:
    mixer = made(max_length=2, causal=True)
    state = mixer.init_state(1)
    for _ in range(2):
        _, state = mixer.step(tokens(1, 1)[:, 0], state)
    with pytest.raises(ValueError, match=r"x_t: .*max_length = 2"):
        mixer.step(tokens(1, 1)[:, 0], state)


def test_average_crosses_chunks_and_attention_does_not() -> None:
    mixer = made(MegaChunk, chunk_size=4, causal=True)
    x = tokens(8, 1)
    changed = x.clone()
    changed[:, 1] += 1.0
    assert (mixer(changed) - mixer(x))[0, 5].abs().max() > 1e-4
    with torch.no_grad():
        mixer.move.gamma.zero_()  # no average: only the attention can reach further
    assert not (mixer(changed) - mixer(x))[0, 4:].any()
    assert (mixer(changed) - mixer(x))[0, 3].abs().max() > 1e-6


CSP_OPTIONS = {
    "default": None,
    "whole sequence": {"num_groups": 1, "shift": "none"},
    "shift only": {"group_size": 1, "shift": "linear"},
    "ascending": {"group_size": 4, "order": "ascending", "shift": "code_exp"},
}


@pytest.mark.parametrize("options", CSP_OPTIONS.values(), ids=CSP_OPTIONS)
def test_csp_replaces_attention(options: dict[str, Any] | None) -> None:
    mixer = made(mixing="csp", csp_options=options, layer_index=1, num_layers=3)
    names = {name for name, _ in mixer.named_parameters()}
    assert not names & {"gamma", "beta", "rel_pos_bias.rel_pos_bias"}
    assert mixer.mx_proj.out_features == 2 * DIM + 2 * DIM
    x = tokens(12)
    place: dict[str, Any] = {"max_length": mixer.max_length, "layer_index": 1, "num_layers": 3}
    plain = CSP(2 * DIM, value_proj=False, out_proj=False, **place, **(options or {})).double()
    h = plain(F.silu(mixer.v_proj(x)))
    u, r, hx = mixer.mx_proj(mixer.move(x)).split([DIM, 2 * DIM, DIM], -1)
    new = F.silu(hx + mixer.h_proj(h * F.silu(r)))
    torch.testing.assert_close(mixer(x), x + u.sigmoid() * (new - x), atol=1e-12, rtol=1e-10)


def test_csp_variant_ignores_padding() -> None:
    mixer = made(mixing="csp")
    x, mask = tokens(12), torch.zeros(2, 12, dtype=torch.bool)
    mask[0, 3:6], mask[1, 9:] = True, True
    y = mixer(x, key_padding_mask=mask)
    filled = mixer(x.masked_fill(mask.unsqueeze(-1), math.nan), key_padding_mask=mask)
    assert torch.equal(y, filled)
    assert y.isfinite().all()


def test_no_weight_decay_returns_parameter_names() -> None:
    names = rm.create_mixer("mega", 8, max_length=4, mixing="csp").no_weight_decay()
    assert names == set()
    attention = rm.create_mixer("mega", 8, max_length=4)
    assert attention.no_weight_decay() <= {name for name, _ in attention.named_parameters()}


def test_gated_residual_is_the_layer_on_the_stream() -> None:
    mixer, x, stream = made(), tokens(), tokens()
    y = mixer.gated_residual(x, stream)
    on_itself = mixer(x)
    u = mixer.mx_proj(mixer.move(x))[..., :DIM].sigmoid()
    torch.testing.assert_close(y - on_itself, (1 - u) * (stream - x), atol=1e-12, rtol=1e-10)
    mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    mask[:, 4:7] = True
    padded = mixer.gated_residual(x, stream, key_padding_mask=mask)
    assert torch.equal(padded[mask], stream[mask])
    valid = ~mask[0]
    alone = mixer.gated_residual(x[:, valid], stream[:, valid])
    torch.testing.assert_close(padded[:, valid], alone, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", ["dropout", "hidden_dropout", "layer_dropout"])
@pytest.mark.parametrize("attention_fn", ["softmax", "laplace"])
def test_dropout_acts_in_training_only(name: str, attention_fn: str) -> None:
    mixer = made(attention_fn=attention_fn, **{name: 0.5})
    x = tokens()
    torch.testing.assert_close(mixer(x), made(attention_fn=attention_fn)(x), atol=0, rtol=0)
    mixer.train()
    assert not torch.allclose(mixer(x), mixer(x))


def test_unidirectional_without_causal() -> None:
    assert made(bidirectional=False).move.delta.shape == (DIM, 3, 1)
    assert made().move.delta.shape == (2 * DIM, 3, 1)
    assert made(causal=True).move.delta.shape == (DIM, 3, 1)


def test_initial_weights_follow_the_paper() -> None:
    mixer = Mega(64, max_length=256)
    assert (mixer.z_dim, mixer.hidden_dim) == (32, 128)
    for weight in (mixer.v_proj.weight, mixer.mx_proj.weight, mixer.h_proj.weight, mixer.gamma):
        assert abs(weight.std() - 0.02) < 0.004
    assert not mixer.v_proj.bias.any()
    assert not mixer.beta.any()


@pytest.mark.parametrize(
    ("max_length", "chunk"), [(None, 128), (4096, 128), (64, 8), (3, 1)], ids=str
)
def test_default_chunk(max_length: int | None, chunk: int) -> None:
    assert MegaChunk(8, max_length=max_length).chunk_size == chunk


def test_mega_chunk_refuses_mixing() -> None:
    assert not {"mixing", "csp_options"} & set(mixer_options("mega_chunk"))
    with pytest.raises(rm.InputError, match=r"mega_chunk.*chunk_size.*got 'mixing'"):
        rm.create_mixer("mega_chunk", 8, mixing="csp")


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "attention": ("attention_fn", lambda: made(attention_fn="relu")),
    "mixing": ("mixing", lambda: made(mixing="conv")),
    "z_dim": ("z_dim", lambda: made(z_dim=0)),
    "hidden_dim": ("hidden_dim", lambda: made(hidden_dim=0)),
    "ema_dim": ("ema_dim", lambda: made(ema_dim=0)),
    "chunk": ("chunk_size", lambda: made(MegaChunk, chunk_size=0)),
    "hidden dropout": ("hidden_dropout", lambda: made(hidden_dropout=1.0)),
    "layer dropout": ("layer_dropout", lambda: made(layer_dropout=-0.1)),
    "both and causal": ("bidirectional", lambda: made(causal=True, bidirectional=True)),
    "csp options alone": ("csp_options", lambda: made(csp_options={})),
    "csp option": ("csp_options", lambda: made(mixing="csp", csp_options={"inner_dim": 3})),
    "csp options a list": ("csp_options", lambda: made(mixing="csp", csp_options=["pad"])),
    "causal csp": ("mixing", lambda: made(mixing="csp", causal=True)),
    "residual": ("residual", lambda: made().gated_residual(tokens(3), tokens(4))),
}


@pytest.mark.parametrize(("named", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(named: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named}:"):
        call()
