"""Causal language models: sizes, initialization, padding, streaming, and official weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.models import GPT

SMALL = {"vocab_size": 13, "max_length": 16, "dim": 12, "num_layers": 2, "num_heads": 3}
CAUSAL = [name for name in rm.list_mixers() if rm.mixer_card(name).causal]
STREAMING = [name for name in CAUSAL if rm.mixer_card(name).streaming]


def small(name: str = "gpt", **changes: Any) -> GPT:
    model = rm.create_model(name, **{**SMALL, **changes})
    assert isinstance(model, GPT)
    return model.double().eval()


def shaken(model: GPT) -> GPT:
    """Change every parameter, so that no initial zero or one hides an error."""
    return perturb(model, 0.3)


# Sizes.

COUNTS = {
    # embedding + positions + layers * (mixer + feed-forward + norms + LayerScale) + norm
    "gpt2_base": ({}, 124_475_904),
    "tost_lm_base": ({}, 110_467_728),
    "tost_lm_medium": ({}, 304_933_248),
    "tost_lm_large": ({}, 656_863_440),
    "tost_lm_base without bias": ({"bias": False}, 110_384_016),
    "sinkhorn_lm_base": ({}, 52_654_464),
    "sinkhorn_lm_big": ({}, 437_109_120),
}


@pytest.mark.parametrize(("changes", "count"), COUNTS.values(), ids=COUNTS)
def test_parameter_counts(
    changes: dict[str, Any], count: int, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.split()[0]
    with torch.device("meta"):
        assert rm.create_model(name, **changes).num_parameters() == count


@pytest.mark.parametrize(
    ("size", "millions"), [("base", 110.5), ("medium", 304.9), ("large", 656.9)]
)
def test_tost_parameters_equal_the_printed_digits(size: str, millions: float) -> None:
    with torch.device("meta"):
        model = rm.create_model(f"tost_lm_{size}", bias=True)
    assert round(model.num_parameters() / 1e6, 1) == millions


@pytest.mark.parametrize(("size", "printed"), [("base", 110), ("medium", 304), ("large", 655)])
def test_tost_parameters_are_rounded_as_in_the_paper(size: str, printed: int) -> None:
    with torch.device("meta"):
        model = rm.create_model(f"tost_lm_{size}", bias=False)
    assert round((model.num_parameters() - model.positions.table.numel()) / 1e6) == printed


def test_tied_embeddings_are_counted_once() -> None:
    tied, untied = small(), small(tie_embeddings=False)
    assert untied.num_parameters() - tied.num_parameters() == 13 * 12


def test_bias_false_removes_every_bias() -> None:
    names = [name for name, _ in small("tost_lm_base", bias=False).named_parameters()]
    assert not [name for name in names if name.endswith(".bias")]


# Initialization.


def test_initialization_equals_gpt2() -> None:
    layers = 8
    model = rm.create_model("tost_lm_base", dim=128, num_layers=layers, num_heads=4, vocab_size=99)
    small_std = 0.02 / math.sqrt(2 * layers)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif name.endswith("temperature") or ".norm" in name or name.startswith("norm"):
            assert (parameter == 1).all(), name
        elif ".scale" in name:
            assert (parameter == 1e-5).all(), name
        else:
            ends = name.endswith(("out_proj.weight", "fc2.weight"))
            expected = small_std if ends else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


def test_scaled_embeddings_have_unit_deviation() -> None:
    model = rm.create_model("gpt", scale_embeddings=True, dim=256, vocab_size=500)
    assert (model.embed.weight * model.embedding_factor).std().item() == pytest.approx(1, rel=0.05)


# Forward pass.


@pytest.mark.parametrize("mixer", CAUSAL)
def test_no_logit_depends_on_later_tokens(mixer: str) -> None:
    model = shaken(small(mixer=mixer))
    tokens = torch.randint(13, (2, 11))
    before = model(tokens)
    for position in range(1, 11):
        other = tokens.clone()
        other[:, position:] = torch.randint(13, (2, 11 - position))
        torch.testing.assert_close(model(other)[:, :position], before[:, :position])


@pytest.mark.parametrize("mixer", ["softmax", "tssa", "sinkhorn"])
@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_padding_anywhere_does_not_change_outputs(mixer: str, positions: str) -> None:
    model = shaken(small(mixer=mixer, positions=positions))
    tokens = torch.randint(13, (3, 7))
    alone = model(tokens)
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[0, 5:] = mask[1, :7] = mask[2, ::2] = mask[2, 1] = False  # left, right and scattered
    padded = torch.full((3, 12), 5)
    padded[~mask] = tokens.flatten()
    found = model(padded, key_padding_mask=mask)
    torch.testing.assert_close(found[~mask].view(3, 7, 13), alone)


@pytest.mark.parametrize("mixer", STREAMING)
@pytest.mark.parametrize("name", ["gpt", "tost_lm_base", "sinkhorn_lm_base"])
def test_step_by_step_equals_the_parallel_form(name: str, mixer: str) -> None:
    model = shaken(small(name, mixer=mixer, mixer_options={}))
    assert model.streams
    tokens = torch.randint(13, (3, 16))
    state, logits = model.init_state(3), []
    for column in tokens.unbind(1):
        out, state = model.step(column, state)
        logits.append(out)
    torch.testing.assert_close(torch.stack(logits, 1), model(tokens))


@pytest.mark.parametrize("mixer", STREAMING)
@pytest.mark.parametrize("name", ["gpt", "sinkhorn_lm_base"])
def test_a_prompt_at_once_equals_the_parallel_form(name: str, mixer: str) -> None:
    model = shaken(small(name, mixer=mixer, mixer_options={}))
    tokens = torch.randint(13, (3, 16))
    logits, state = model.prefill(tokens[:, :9])
    found = [logits]
    for column in tokens[:, 9:].unbind(1):
        logits, state = model.step(column, state)
        found.append(logits)
    torch.testing.assert_close(torch.stack(found, 1), model(tokens)[:, 8:])


def test_token_statistics_stream_in_constant_memory() -> None:
    model = small(mixer="tssa")

    def size(state: Any) -> int:
        return sum(tensor.numel() for layer in state.layers for tensor in layer.values())

    state, sizes = model.init_state(2), []
    for _ in range(16):
        _, state = model.step(torch.zeros(2, dtype=torch.int64), state)
        sizes.append(size(state))
    assert len(set(sizes)) == 1


# Official weights.


def official_tost(layers: int, bias: bool, attention: str) -> dict[str, Tensor]:
    """Create random tensors with the keys of nanoGPT and ToST's released language code."""
    dim, heads, vocabulary, block = 12, 3, 13, 10
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (vocabulary, dim),
        "transformer.wpe.weight": (block, dim),
        "transformer.ln_f.weight": (dim,),
    }
    if bias:
        shapes["transformer.ln_f.bias"] = (dim,)
    for layer in range(layers):
        own: dict[str, tuple[int, ...]] = {"ln_1.weight": (dim,), "ln_2.weight": (dim,)}
        rows = dim if attention == "tssa" else 3 * dim
        own["attn.c_attn.weight"], own["attn.c_proj.weight"] = (rows, dim), (dim, dim)
        own["mlp.c_fc.weight"], own["mlp.c_proj.weight"] = (4 * dim, dim), (dim, 4 * dim)
        if bias:
            own |= {"ln_1.bias": (dim,), "ln_2.bias": (dim,), "mlp.c_fc.bias": (4 * dim,)}
            own |= {"attn.c_attn.bias": (rows,), "attn.c_proj.bias": (dim,)}
            own["mlp.c_proj.bias"] = (dim,)
        if attention == "tssa":
            own |= {"attn.temp": (heads, 1), "attn.denom_bias": (heads, block, 1)}
            own |= {"gamma1": (dim,), "gamma2": (dim,)}
        shapes |= {f"transformer.h.{layer}.{key}": shape for key, shape in own.items()}
    state = {key: 0.4 * torch.randn(shape) for key, shape in shapes.items()}
    state["lm_head.weight"] = state["transformer.wte.weight"]
    return state


def literal_logits(state: dict[str, Tensor], tokens: Tensor, attention: str) -> Tensor:
    """Compute SPEC 3.3 in loops, from the official keys."""
    heads = 3

    def linear(x: Tensor, key: str) -> Tensor:
        return F.linear(x, state[f"{key}.weight"], state.get(f"{key}.bias"))

    def norm(x: Tensor, key: str) -> Tensor:
        weight, bias = state[f"{key}.weight"], state.get(f"{key}.bias")
        return F.layer_norm(x, weight.shape, weight, bias, 1e-5)

    def tssa(x: Tensor, key: str) -> Tensor:
        w = linear(x, f"{key}.c_attn").unflatten(-1, (heads, -1))  # (B, T, H, d)
        q, out = w.square(), torch.zeros_like(w)
        energy, mass = torch.zeros_like(q[:, 0]), torch.zeros_like(q[:, 0])
        count = torch.zeros(len(x), heads, 1)
        for t in range(x.shape[1]):
            energy = energy + q[:, t]
            ratio = q[:, t] / energy.clamp(min=1e-12) + state[f"{key}.denom_bias"][:, t]
            pi = (state[f"{key}.temp"][:, 0] * ratio.sum(-1)).softmax(-1).unsqueeze(-1)
            mass, count = mass + pi * q[:, t], count + pi
            out[:, t] = -(w[:, t] * pi) / (1 + mass / (count + 1e-8))
        return linear(out.flatten(2), f"{key}.c_proj")

    def softmax(x: Tensor, key: str) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in linear(x, f"{key}.c_attn").chunk(3, -1)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return linear(y.transpose(1, 2).flatten(2), f"{key}.c_proj")

    mix = tssa if attention == "tssa" else softmax
    x = state["transformer.wte.weight"][tokens]
    x = x + state["transformer.wpe.weight"][: tokens.shape[1]]
    layer = 0
    while f"transformer.h.{layer}.ln_1.weight" in state:
        key = f"transformer.h.{layer}"
        gamma1, gamma2 = (state.get(f"{key}.gamma{i}", torch.ones(())) for i in (1, 2))
        x = x + gamma1 * mix(norm(x, f"{key}.ln_1"), f"{key}.attn")
        hidden = F.gelu(linear(norm(x, f"{key}.ln_2"), f"{key}.mlp.c_fc"))
        x = x + gamma2 * linear(hidden, f"{key}.mlp.c_proj")
        layer += 1
    return norm(x, "transformer.ln_f") @ state["lm_head.weight"].T


HOSTS = {"tssa": "tost_lm_base", "softmax": "gpt2_base"}


def host(attention: str, **changes: Any) -> GPT:
    model = rm.create_model(HOSTS[attention], **{**SMALL, "max_length": 10, **changes})
    assert isinstance(model, GPT)
    return model.eval()


@pytest.mark.parametrize("attention", HOSTS)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module._orig_mod."])
def test_official_weights_give_official_logits(attention: str, bias: bool, prefix: str) -> None:
    state = official_tost(2, bias, attention)
    tokens = torch.randint(13, (2, 9))
    expected = literal_logits(state, tokens, attention)
    given = {prefix + key: tensor for key, tensor in state.items()}
    model = rm.models.load_official(host(attention, bias=bias), given)
    torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=1e-5)


def test_official_attention_gives_the_golden_output(
    golden: Callable[[str], dict[str, np.ndarray]],
) -> None:
    vectors = golden("tssa_causal")
    state = official_tost(2, True, "tssa")
    for key, value in vectors.items():
        if key.startswith("p."):
            state[f"transformer.h.1.attn.{key[2:]}"] = torch.from_numpy(value)
    model = rm.models.load_official(host("tssa"), state)
    found = model.blocks[1].mixer(torch.from_numpy(vectors["x"]))
    torch.testing.assert_close(found, torch.from_numpy(vectors["y"]), atol=1e-5, rtol=1e-4)


BAD_OFFICIAL: dict[str, tuple[Callable[[dict[str, Tensor]], Any], dict[str, Any], str]] = {
    "missing": (lambda s: s.pop("transformer.h.0.gamma1"), {}, r"1 missing .*h\.0\.gamma1"),
    "deeper": (lambda s: None, {"num_layers": 1}, r"unexpected .*transformer\.h\.1"),
    "no layer scale": (lambda s: None, {"layer_scale": None}, "unexpected .*gamma1"),
    "length": (lambda s: None, {"max_length": 12}, r"\(10, 12\).*\(12, 12\)"),
    "untied": (
        lambda s: s.update({"lm_head.weight": s["lm_head.weight"] + 1}),
        {},
        "wte.weight.*lm_head.weight",
    ),
    "mixer": (lambda s: None, {"mixer": "sinkhorn"}, "tssa or softmax"),
    "own head": (lambda s: None, {"tie_embeddings": False}, "model:"),
}


@pytest.mark.parametrize(("change", "setting", "message"), BAD_OFFICIAL.values(), ids=BAD_OFFICIAL)
def test_official_weights_that_do_not_fit(
    change: Callable[[dict[str, Tensor]], Any], setting: dict[str, Any], message: str
) -> None:
    state = official_tost(2, True, "tssa")
    change(state)
    with pytest.raises(rm.InputError, match=message):
        rm.models.load_official(host("tssa", **setting), state)


def test_tied_head_may_be_omitted() -> None:
    state = official_tost(2, True, "tssa")
    tokens = torch.randint(13, (1, 5))
    expected = literal_logits(state, tokens, "tssa")
    del state["lm_head.weight"]
    found = rm.models.load_official(host("tssa"), state)(tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


# Errors.

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "mixer in both directions": ({"mixer": "fnet"}, "causal: .*False.*FNet.*got True"),
    "heads": ({"num_heads": 5}, r"num_heads: .*dim = 12.*got 5\b"),
    "vocabulary": ({"vocab_size": 0}, "vocab_size"),
    "length": ({"max_length": 0}, "max_length"),
    "positions": ({"positions": "rotary"}, "positions: .*got 'rotary'"),
    "activation": ({"activation": "gelo"}, "gelu.*got 'gelo'"),
    "bias": ({"bias": 1}, "bias: .*True.*False.*got 1"),
    "layer scale": ({"layer_scale": 0}, r"layer_scale: .*\b0\b"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.create_model("gpt", **{**SMALL, **change})


def test_too_many_tokens_and_wrong_shapes() -> None:
    model = small()
    with pytest.raises(rm.InputError, match=r"max_length = 16.*got 17\b"):
        model(torch.zeros(1, 17, dtype=torch.int64))
    with pytest.raises(rm.InputError, match=r"tokens: .*\(B, N\)"):
        model(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(rm.InputError, match=r"tokens: .*int64\b.*got torch.float32\b"):
        model(torch.zeros(1, 5))
    with pytest.raises(rm.InputError, match="tokens:"):
        model([1, 2])
    with pytest.raises(rm.InputError, match=r"tokens: .*\(B,\).*got \(1, 1\)"):
        model.step(torch.zeros(1, 1, dtype=torch.int64), model.init_state(1))


@pytest.mark.parametrize("mask", [torch.zeros(1, 4, dtype=torch.bool), torch.zeros(1, 5)])
def test_a_mask_that_does_not_fit(mask: torch.Tensor) -> None:
    with pytest.raises(rm.InputError, match=r"^key_padding_mask: expected"):
        small()(torch.zeros(1, 5, dtype=torch.int64), key_padding_mask=mask)


def test_a_full_stream_is_refused() -> None:
    model = small(max_length=2)
    state = model.init_state(1)
    for _ in range(2):
        _, state = model.step(torch.zeros(1, dtype=torch.int64), state)
    with pytest.raises(rm.InputError, match="max_length = 2"):
        model.step(torch.zeros(1, dtype=torch.int64), state)
    _, state = model.prefill(torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(rm.InputError, match="max_length = 2"):
        model.step(torch.zeros(1, dtype=torch.int64), state)
    with pytest.raises(rm.InputError, match="max_length = 2"):
        model.prefill(torch.zeros(1, 3, dtype=torch.int64))
