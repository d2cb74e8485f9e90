"""The TSSA mixer against vectors from the paper's code, and checks outside the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.mixers.tssa import TSSA
from rifflemix.ops import causal_token_statistics, variational_compression_rate

Golden = Callable[[str], dict[str, np.ndarray]]
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-4}

VISION = {
    "temperature": "temp",
    "in_proj.weight": "qkv.weight",
    "in_proj.bias": "qkv.bias",
    "out_proj.weight": "to_out.0.weight",
    "out_proj.bias": "to_out.0.bias",
}
CAUSAL = {
    "temperature": "temp",
    "denominator_bias": "denom_bias",
    "in_proj.weight": "c_attn.weight",
    "in_proj.bias": "c_attn.bias",
    "out_proj.weight": "c_proj.weight",
    "out_proj.bias": "c_proj.bias",
}


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {key: torch.from_numpy(value) for key, value in arrays.items()}


def load(mixer: TSSA, vectors: dict[str, Tensor], names: dict[str, str], prefix: str = "") -> None:
    """Load the reference code's (H, 1) and (H, L, 1) without the last axis."""
    state = mixer.state_dict()
    assert set(state) == set(names)
    mixer.load_state_dict(
        {
            ours: vectors[f"p.{prefix}{theirs}"].view_as(state[ours])
            for ours, theirs in names.items()
        }
    )


def check_gradients(
    mixer: TSSA, vectors: dict[str, Tensor], names: dict[str, str], prefix: str = ""
) -> None:
    for ours, parameter in mixer.named_parameters():
        expected = vectors[f"gp.{prefix}{names[ours]}"].view_as(parameter)
        torch.testing.assert_close(parameter.grad, expected, **CLOSE)


def test_bidirectional_variant_matches_the_reference_code(golden: Golden) -> None:
    vectors = tensors(golden("tssa_vision"))
    mixer = TSSA(12, num_heads=3).eval()
    load(mixer, vectors, VISION)
    x = vectors["x"].requires_grad_()
    y = mixer(x)
    torch.testing.assert_close(y, vectors["y"], **CLOSE)
    torch.testing.assert_close(mixer.membership(x), vectors["Pi"], **CLOSE)
    (y * vectors["ct"]).sum().backward()
    torch.testing.assert_close(x.grad, vectors["gx"], **CLOSE)
    check_gradients(mixer, vectors, VISION)


def test_causal_variant_matches_the_reference_code(golden: Golden) -> None:
    vectors = tensors(golden("tssa_causal"))
    mixer = TSSA(12, num_heads=3, max_length=10, causal=True).eval()
    load(mixer, vectors, CAUSAL)
    x = vectors["x"].requires_grad_()
    y = mixer(x)
    torch.testing.assert_close(y, vectors["y"], **CLOSE)
    (y * vectors["ct"]).sum().backward()
    torch.testing.assert_close(x.grad, vectors["gx"], **CLOSE)
    check_gradients(mixer, vectors, CAUSAL)


def test_stream_matches_the_reference_code(golden: Golden) -> None:
    vectors = tensors(golden("tssa_causal"))
    mixer = TSSA(12, num_heads=3, max_length=10, causal=True).eval()
    load(mixer, vectors, CAUSAL)
    state = mixer.init_state(2)
    for position, token in enumerate(vectors["x"].unbind(1)):
        y_t, state = mixer.step(token, state)
        torch.testing.assert_close(y_t, vectors["y"][:, position], **CLOSE)


def test_block_matches_the_reference_code(golden: Golden) -> None:
    """Check a pre-norm block with LayerScale and the mixer."""
    vectors = tensors(golden("tost_block"))
    mixer = TSSA(12, num_heads=3).eval()
    load(mixer, vectors, VISION, prefix="attn.")
    p = {key[2:]: value for key, value in vectors.items() if key.startswith("p.")}
    x = vectors["x"].requires_grad_()
    normed = F.layer_norm(x, (12,), p["norm1.weight"], p["norm1.bias"], eps=1e-6)
    middle = x + p["gamma1"] * mixer(normed)
    normed = F.layer_norm(middle, (12,), p["norm2.weight"], p["norm2.bias"], eps=1e-6)
    hidden = F.gelu(F.linear(normed, p["mlp.fc1.weight"], p["mlp.fc1.bias"]))
    y = middle + p["gamma2"] * F.linear(hidden, p["mlp.fc2.weight"], p["mlp.fc2.bias"])
    torch.testing.assert_close(y, vectors["y"], **CLOSE)
    (y * vectors["ct"]).sum().backward()
    torch.testing.assert_close(x.grad, vectors["gx"], **CLOSE)
    check_gradients(mixer, vectors, VISION, prefix="attn.")


def test_with_tied_bases_a_layer_is_a_gradient_step_on_the_rate() -> None:
    """Check out_proj = in_proj transposed, both orthogonal: equation (11) before its relaxation."""
    mixer = TSSA(12, num_heads=4, bias=False, out_bias=False).double()
    torch.nn.init.orthogonal_(mixer.in_proj.weight)
    mixer.out_proj.weight.data.copy_(mixer.in_proj.weight.T)
    x = torch.randn(2, 20, 12, dtype=torch.float64, requires_grad=True)
    membership = mixer.membership(x).detach()
    rate = variational_compression_rate(mixer.project(x), membership)
    (gradient,) = torch.autograd.grad(rate.sum(), x)
    y = mixer(x)
    torch.testing.assert_close(y, -20 * gradient, atol=1e-9, rtol=1e-7)
    assert (variational_compression_rate(mixer.project(x + y), membership) < rate).all()


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 2 * (8 * 8 + 8) + 2),
        ({"bias": False}, 2 * 8 * 8 + 8 + 2),
        ({"bias": False, "out_bias": False}, 2 * 8 * 8 + 2),
        ({"causal": True, "max_length": 5}, 2 * (8 * 8 + 8) + 2 + 2 * 5),
        ({"causal": True, "denominator_bias": False}, 2 * (8 * 8 + 8) + 2),
    ],
    ids=["default", "no bias", "no biases", "causal", "causal without positions"],
)
def test_options_determine_the_parameters(options: dict[str, Any], count: int) -> None:
    mixer = TSSA(8, num_heads=2, **options)
    assert sum(p.numel() for p in mixer.parameters()) == count
    assert (mixer.temperature == 1).all()
    if mixer.denominator_bias is not None:
        assert (mixer.denominator_bias == 0).all()


def test_weight_decay_applies_to_weights_only() -> None:
    assert TSSA(8).no_weight_decay() == {"temperature"}
    causal = TSSA(8, causal=True, max_length=4)
    assert causal.no_weight_decay() == {"temperature", "denominator_bias"}
    assert causal.no_weight_decay() <= {name for name, _ in causal.named_parameters()}


@pytest.mark.parametrize("causal", [False, True], ids=["vision", "causal"])
def test_dropout_acts_on_the_gate_in_training_only(causal: bool) -> None:
    mixer = TSSA(16, num_heads=2, max_length=9, causal=causal, dropout=0.5).double()
    torch.nn.init.eye_(mixer.out_proj.weight)
    torch.nn.init.zeros_(mixer.out_proj.bias)
    x = torch.randn(3, 9, 16, dtype=torch.float64)
    plain = mixer.eval()(x)
    assert torch.equal(mixer(x), plain)
    ratio = mixer.train()(x) / plain
    dropped = ratio.abs() < 1e-12
    assert (dropped | ((ratio - 2).abs() < 1e-9)).all()
    assert dropped.any()
    same_for_all_tokens = bool((dropped == dropped[:, :1]).all())
    assert same_for_all_tokens != causal


@pytest.mark.parametrize("causal", [False, True], ids=["vision", "causal"])
def test_membership_is_a_distribution_over_heads(causal: bool) -> None:
    mixer = TSSA(12, num_heads=3, max_length=6, causal=causal).double()
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    mask = torch.tensor([[False, True, False, False, True, True], [True] * 6])
    x[mask] = torch.nan
    pi = mixer.membership(x, key_padding_mask=mask)
    assert pi.shape == (2, 3, 6)
    torch.testing.assert_close(pi.sum(1), (~mask).double())
    pi.square().sum().backward()
    assert torch.isfinite(mixer.in_proj.weight.grad).all()


def test_the_ablation_is_not_the_default() -> None:
    mixer = TSSA(12, num_heads=3)
    ablation = TSSA(12, num_heads=3, normalize=False)
    ablation.load_state_dict(mixer.state_dict())
    x = torch.randn(1, 8, 12)
    w = mixer.project(x)
    expected = torch.softmax(w.square().sum(-1), 1)
    torch.testing.assert_close(ablation.membership(x), expected)
    assert not torch.allclose(mixer(x), ablation(x))


@pytest.mark.parametrize("padding", ["leading", "trailing", "scattered"])
def test_causal_bias_counts_valid_tokens_only(padding: str) -> None:
    mixer = TSSA(8, num_heads=2, max_length=9, causal=True).double()
    torch.nn.init.normal_(mixer.denominator_bias)
    mask = torch.zeros(1, 9, dtype=torch.bool)
    mask[0, {"leading": [0, 1, 2], "trailing": [6, 7, 8], "scattered": [1, 4, 5]}[padding]] = True
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    y = mixer(x, key_padding_mask=mask)
    torch.testing.assert_close(y[:, ~mask[0]], mixer(x[:, ~mask[0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_stream_keeps_float64_sums_of_constant_size(dtype: torch.dtype) -> None:
    mixer = TSSA(8, num_heads=2, max_length=30, causal=True).to(dtype)
    state = mixer.init_state(3)
    sizes = {name: field.shape for name, field in state.items()}
    x = torch.randn(3, 30, 8, dtype=dtype)
    outputs = []
    for token in x.unbind(1):
        before = {name: field.clone() for name, field in state.items()}
        y_t, after = mixer.step(token, state)
        assert all(torch.equal(state[name], before[name]) for name in state)
        state = after
        outputs.append(y_t)
    assert {name: field.shape for name, field in state.items()} == sizes
    assert state["energy"].dtype == torch.float64
    assert state["position"].tolist() == [30, 30, 30]
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(torch.stack(outputs, 1), mixer(x), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_stream_ends_at_max_length(biased: bool) -> None:
    mixer = TSSA(8, max_length=3, causal=True, denominator_bias=biased)
    state = mixer.init_state(1)
    for _ in range(3):
        _, state = mixer.step(torch.randn(1, 8), state)
    with pytest.raises(ValueError, match=r"x_t: .*max_length = 3.*\b4\b"):
        mixer.step(torch.randn(1, 8), state)


def test_stream_without_max_length_has_no_end() -> None:
    mixer = TSSA(8, causal=True, denominator_bias=False).double()
    x = torch.randn(1, 100, 8, dtype=torch.float64)
    state = mixer.init_state(1)
    for position, token in enumerate(x.unbind(1)):
        y_t, state = mixer.step(token, state)
        torch.testing.assert_close(y_t, mixer(x[:, : position + 1])[:, -1])


def test_prompt_then_steps() -> None:
    """Check that the operator's state after a prompt is a stream state."""
    mixer = TSSA(8, num_heads=2, max_length=12, causal=True).double()
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    _, prompt = causal_token_statistics(
        mixer.project(x[:, :7]), mixer.temperature, mixer.denominator_bias, return_state=True
    )
    y_t, _ = mixer.step(x[:, 7], prompt._asdict())
    torch.testing.assert_close(y_t, mixer(x)[:, 7])


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"max_length: .*denominator_bias"):
        TSSA(8, causal=True)
    with pytest.raises(ValueError, match=r"normalize: .*True.*got False"):
        TSSA(8, causal=True, max_length=4, normalize=False)


def test_bad_states_are_named() -> None:
    mixer = TSSA(8, num_heads=2, max_length=4, causal=True)
    state = mixer.init_state(2)
    token = torch.randn(2, 8)
    with pytest.raises(ValueError, match=r"state: .*init_state.*'energy'"):
        mixer.step(token, {"keys": token})
    with pytest.raises(ValueError, match=r"got 'energy'.*\(2, 2, 4\).*\b3\b"):
        mixer.step(torch.randn(3, 8), state)
    with pytest.raises(ValueError, match=r"^initial_state.energy: "):
        mixer.step(token, {**state, "energy": state["energy"].bfloat16()})
