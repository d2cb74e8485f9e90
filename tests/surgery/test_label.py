"""Labels in the state of a swapped model: the mixer that the weights belong to."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import rifflemix as rm
from rifflemix.mixers.tssa import TSSA
from rifflemix.surgery import settings

PLACE = "layers.0.self_attn.mixer"
LABEL = "layers.0.self_attn.mixer_settings"
X = torch.randn(2, 9, 16)


def encoder(mixer: str = "softmax", num_heads: int = 2, **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, num_heads, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    rm.replace_attention(model, mixer, **arguments)
    return model.eval()


OTHERS: dict[str, dict[str, Any]] = {
    "linear": {"mixer": "linear"},
    "local": {"mixer": "local"},
    "other heads": {"num_heads": 4},
    "causal": {"causal": True},
    "an option": {"mixer_options": {"padded_queries": "mean"}},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("strict", [True, False])
def test_weights_of_another_mixer_are_refused(name: str, strict: bool) -> None:
    state, other = encoder().state_dict(), encoder(**OTHERS[name])
    with pytest.raises(rm.InputError, match=r"weights at layers.0.self_attn"):
        other.load_state_dict(state, strict=strict)


def test_settings_without_effect_are_not_compared() -> None:
    state = encoder(init="copy").state_dict()
    same = encoder(init="fresh", max_length=64, mixer_options={"out_bias": True})
    assert not same.load_state_dict(state).missing_keys


def test_an_option_of_a_later_version_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    state = encoder().state_dict()
    defaults = settings.default_options
    monkeypatch.setattr(settings, "default_options", lambda cls: {**defaults(cls), "added": 3})
    assert encoder().load_state_dict(state)


def test_labels_can_be_removed_on_purpose() -> None:
    state = {key: value for key, value in encoder().state_dict().items() if "settings" not in key}
    other = encoder("linear")
    assert len(other.load_state_dict(state, strict=False).missing_keys) == 2
    assert torch.equal(other.layers[0].self_attn.mixer.qkv.weight, state[f"{PLACE}.qkv.weight"])
    other(X)


def test_a_part_of_a_labelled_state_is_not_enough() -> None:
    model, state = encoder(), encoder().state_dict()
    part = {key: value for key, value in state.items() if key != f"{PLACE}.proj.bias"}
    model.load_state_dict(part, strict=False)
    with pytest.raises(rm.InputError, match=r"weights at layers.0.self_attn"):
        model(X)
    model.load_state_dict({f"{PLACE}.proj.bias": state[f"{PLACE}.proj.bias"]}, strict=False)
    model(X)


def test_unknown_weights_in_a_labelled_state_are_refused() -> None:
    state = {**encoder().state_dict(), f"{PLACE}.extra": torch.ones(1)}
    with pytest.raises(rm.InputError, match=r"weights at layers.0.self_attn"):
        encoder().load_state_dict(state, strict=False)


@pytest.mark.parametrize("damaged", [torch.rand(10), torch.full((10,), torch.inf), torch.ones(0)])
def test_a_damaged_label_is_refused(damaged: Tensor) -> None:
    state = {**encoder().state_dict(), LABEL: damaged}
    with pytest.raises(rm.InputError, match=r"weights at layers.0.self_attn"):
        encoder().load_state_dict(state, strict=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_labels_survive_other_dtypes(dtype: torch.dtype) -> None:
    state = encoder().to(dtype).state_dict()
    assert encoder().load_state_dict(state)


def averaged_by_torch(model: nn.Module) -> nn.Module:
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(50):
        average.update_parameters(model)
    return average.module


def averaged_by_hand(model: nn.Module) -> nn.Module:
    """Average every tensor of the state, as timm's ModelEmaV2 does."""
    average = copy.deepcopy(model)
    for _ in range(50):
        pairs = zip(average.state_dict().values(), model.state_dict().values(), strict=True)
        for old, new in pairs:
            old.copy_(0.999 * old + 0.001 * new)
    return average


@pytest.mark.parametrize("average", [averaged_by_torch, averaged_by_hand])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_labels_survive_averages(average: Any, dtype: torch.dtype) -> None:
    state = average(encoder().to(dtype)).state_dict()
    assert encoder().load_state_dict(state)


def test_user_defined_class_has_a_label() -> None:
    class Mine(TSSA):
        def __init__(self, dim: int, *, hook: Any = print, **settings: Any) -> None:
            super().__init__(dim, **settings)

    model = encoder(Mine)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert encoder(Mine).load_state_dict(torch.load(file, weights_only=True))
    with pytest.raises(rm.InputError, match="weights"):
        encoder("tssa").load_state_dict(model.state_dict())


def test_a_copy_loads_the_state() -> None:
    model, other = encoder(), copy.deepcopy(encoder())
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(X), model(X))


@pytest.mark.slow
def test_a_compiled_model_loads_the_state() -> None:
    model = encoder()
    state = {f"_orig_mod.{key}": value for key, value in model.state_dict().items()}
    compiled = torch.compile(encoder(), backend="eager", fullgraph=True)
    compiled.load_state_dict(state)
    assert torch.equal(compiled(X), model(X))
