"""Wrong types of mixer settings, and NumPy numbers. The contract covers the rest."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.mixers import SinkhornCrossAttention
from rifflemix.mixers.registry import mixer_options

OWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "csp groups 2.5": ("csp", "num_groups", {"num_groups": 2.5}),
    "csp group size True": ("csp", "group_size", {"group_size": True}),
    "csp heads 2.0": ("csp", "heads", {"heads": 2.0}),
    "csp inner text": ("csp", "inner_dim", {"inner_dim": "8"}),
    "csp pad 1": ("csp", "pad", {"pad": 1}),
    "csp shift number": ("csp", "shift", {"shift": 5}),
    "csp shift floats": ("csp", "shift", {"shift": torch.zeros(8)}),
    "csp shift matrix": ("csp", "shift", {"shift": torch.zeros(8, 1, dtype=torch.int64)}),
    "csp shift too large": ("csp", "shift", {"shift": [2**63] * 8}),
    "csp shift too short": ("csp", "shift", {"shift": np.arange(7)}),
    "sliceformer reverse": ("sliceformer", "reverse", {"reverse": "x"}),
    "sliceformer heads": ("sliceformer", "heads", {"heads": None}),
    "tssa bias": ("tssa", "bias", {"bias": "no"}),
    "butterfly block 4.0": ("butterfly", "block_size", {"block_size": 4.0}),
    "butterfly order None": ("butterfly", "token_order", {"token_order": None}),
    "butterfly seed": (
        "butterfly",
        "token_order_seed",
        {"token_order": "random", "token_order_seed": 1.5},
    ),
    "token_parallel groups 2.0": ("token_parallel", "num_groups", {"num_groups": 2.0}),
    "token_parallel wout 1": ("token_parallel", "use_wout", {"use_wout": 1}),
    "sinkhorn block 4.0": ("sinkhorn", "block_size", {"block_size": 4.0}),
    "sinkhorn sortcut 1.0": ("sinkhorn", "sortcut", {"sortcut": 1.0}),
    "sinkhorn top_k text": ("sinkhorn", "top_k", {"top_k": "1"}),
    "sinkhorn iterations": ("sinkhorn", "num_iterations", {"num_iterations": 2.0}),
    "sinkhorn temperature": ("sinkhorn", "temperature", {"temperature": None}),
}
CROSS: dict[str, tuple[str, dict[str, Any]]] = {
    "dim text": ("dim", {"dim": "8"}),
    "heads 2.0": ("num_heads", {"num_heads": 2.0}),
    "max_length None": ("max_length", {"max_length": None}),
    "sortcut 1.5": ("sortcut", {"sortcut": 1.5}),
    "dropout None": ("dropout", {"dropout": None}),
}


@pytest.mark.parametrize(("mixer", "name", "options"), OWN.values(), ids=OWN)
def test_wrong_settings_of_a_mixer_are_named(
    mixer: str, name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(rm.InputError, match=f"^{name}: expected"):
        rm.create_mixer(mixer, 8, num_heads=2, max_length=16, **options)


@pytest.mark.parametrize(("name", "changed"), CROSS.values(), ids=CROSS)
def test_settings_of_cross_attention_are_named(name: str, changed: dict[str, Any]) -> None:
    with pytest.raises(rm.InputError, match=f"^{name}: expected"):
        SinkhornCrossAttention(**{"dim": 8, "max_length": 16, **changed})


@pytest.mark.parametrize("name", [None, 3, []], ids=repr)
def test_names_of_a_wrong_type_are_refused(name: Any) -> None:
    with pytest.raises(rm.InputError, match=rf"mixer {re.escape(repr(name))}"):
        rm.create_mixer(name, 8)
    with pytest.raises(rm.InputError, match=rf"model {re.escape(repr(name))}"):
        rm.create_model(name)


def test_batch_size_of_a_stream() -> None:
    mixer = rm.create_mixer("softmax", 8, causal=True)
    with pytest.raises(rm.InputError, match=r"^batch_size: .*got 1\.5"):
        mixer.init_state(1.5)
    assert mixer.init_state(np.int64(2))["keys"].shape[0] == 2


SMALL_OPTIONS: dict[str, dict[str, Any]] = {
    "csp": {
        "group_size": np.int64(1),
        "heads": np.int64(2),
        "inner_dim": np.int32(16),
    },
    "sliceformer": {"heads": np.int64(2), "inner_dim": np.int32(16)},
    "butterfly": {"block_size": np.int64(4)},
    "token_parallel": {"num_groups": np.int64(2)},
    "sinkhorn": {"block_size": np.int64(4), "top_k": np.int64(2), "temperature": np.float32(0.5)},
}


@pytest.mark.parametrize("mixer", rm.list_mixers())
def test_numbers_of_numpy(mixer: str) -> None:
    def build(kind: Any, real: Any) -> rm.TokenMixer:
        torch.manual_seed(3)
        numbers = {"num_heads": 4, "max_length": 16, "layer_index": 1, "num_layers": 2}
        options = {
            name: kind(value) if isinstance(value, np.integer) else real(value)
            for name, value in SMALL_OPTIONS.get(mixer, {}).items()
        }
        shared = {name: kind(value) for name, value in numbers.items()}
        return rm.create_mixer(mixer, kind(8), dropout=real(0.25), **shared, **options).eval()

    x = torch.randn(2, 7, 8)
    numpy = build(np.int64, np.float32)
    assert torch.equal(numpy(x), build(int, float)(x))
    for name in ("dim", "num_heads", "max_length", "layer_index", "num_layers"):
        assert type(getattr(numpy, name)) is int


@pytest.mark.parametrize(
    "shift",
    [torch.arange(8), np.arange(8, dtype=np.int16), list(np.arange(8)), range(8)],
    ids=["tensor", "array", "list of numpy", "range"],
)
def test_csp_accepts_any_sequence_of_integers(shift: Any) -> None:
    mixer = rm.create_mixer("csp", 8, shift=shift)
    assert mixer.shift == tuple(range(8))
    assert mixer.steps.tolist() == list(range(8))


@pytest.mark.parametrize("name", rm.list_mixers())
def test_every_option_accepts_its_default(name: str) -> None:
    options = mixer_options(name)
    assert "num_layers" not in options
    rm.create_mixer(name, 32, num_heads=4, max_length=64, **options)


@pytest.mark.parametrize(
    "name", [name for name in rm.list_mixers() if "inner_dim" in mixer_options(name)]
)
@pytest.mark.parametrize("inner", [16, 48])
def test_inner_width_changes_the_projections_only(name: str, inner: int) -> None:
    mixer = rm.create_mixer(name, 32, num_heads=4, max_length=64, inner_dim=inner)
    x, mask = torch.randn(2, 20, 32), torch.arange(20).expand(2, 20) > 15
    assert mixer(x, key_padding_mask=mask).shape == (2, 20, 32)
    widths = {tuple(p.shape) for p in mixer.parameters() if p.dim() == 2}
    assert any(inner in shape or 3 * inner in shape for shape in widths)


def test_a_wrong_dtype_is_refused_on_a_device_without_autocast() -> None:
    mixer = rm.create_mixer("csp", 8).to("meta")
    with pytest.raises(rm.InputError, match=r"x: .*torch\.float32, got torch\.bfloat16"):
        mixer(torch.zeros(1, 4, 8, dtype=torch.bfloat16, device="meta"))


@pytest.mark.parametrize("wide", ["tokens", "parameters"])
def test_float64_is_refused_under_autocast(wide: str) -> None:
    mixer, x = rm.create_mixer("csp", 8), torch.randn(1, 4, 8)
    mixer, x = (mixer, x.double()) if wide == "tokens" else (mixer.double(), x)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(rm.InputError, match=r"x: .*torch\.float(32|64), got torch\.float(64|32)"),
    ):
        mixer(x)


@pytest.mark.parametrize("dtype", ["float32", torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["softmax", "identity", "s4", "tssa"])
def test_a_state_is_of_a_floating_point_dtype(name: str, dtype: Any) -> None:
    mixer = rm.create_mixer(name, 8, num_heads=2, max_length=4, causal=True)
    with pytest.raises(rm.InputError, match=r"dtype: .*got "):
        mixer.init_state(2, dtype=dtype)


@pytest.mark.parametrize("name", ["softmax", "csp", "local", "mega", "s5"])
def test_a_state_of_wider_numbers_or_another_device_is_refused(name: str) -> None:
    mixer = rm.create_mixer(name, 8, num_heads=2, max_length=4, causal=True).eval()
    x_t = torch.randn(2, 8)
    start = r"state: .*init_state.*got '\w+'"
    with pytest.raises(rm.InputError, match=start + r".*\bmeta\b.*\bcpu\b"):
        mixer.step(x_t, mixer.init_state(2, device="meta"))
    _, state = mixer.step(x_t, mixer.init_state(2))
    wide = {n: p.double() if p.is_floating_point() else p for n, p in state.items()}
    with pytest.raises(rm.InputError, match=start + r" of torch.float64\b.*torch.float32\b"):
        mixer.step(x_t, wide)
    y_t, _ = mixer.double().step(x_t.double(), wide)
    assert y_t.dtype == torch.float64


@pytest.mark.parametrize("name", ["tssa", "linear", "cosformer"])
def test_a_negative_position_is_refused(name: str) -> None:
    mixer = rm.create_mixer(name, 8, num_heads=2, max_length=4, causal=True).eval()
    state = mixer.init_state(2)
    state["position"] = torch.tensor([0, -1])
    with pytest.raises(rm.InputError, match=r"state: .*\b0\b.*got -1\b"):
        mixer.step(torch.randn(2, 8), state)
