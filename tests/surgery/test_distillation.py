"""Layer-wise distillation: new mixers learn the output of the replaced attention."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_transformers import build
from torch import Tensor, nn

import rifflemix as rm


def pair(batch_first: bool = True, **swap: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=batch_first)
    original = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for parameter in original.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = copy.deepcopy(original)
    rm.replace_attention(model, **{"mixer": "tssa", **swap})
    return model, original


def batches(number: int = 3) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(4, 9, 16) for _ in range(number)]


def test_softmax_has_zero_loss() -> None:
    model, original = pair(mixer="softmax")
    losses = rm.distil(model, original, batches())
    assert list(losses) == ["layers.0.self_attn", "layers.1.self_attn"]
    # Adam's step size does not depend on the gradient, so later losses are larger.
    assert all(len(values) == 3 and values[0] < 1e-9 for values in losses.values())


def test_zero_outputs_have_loss_one() -> None:
    model, original = pair()
    for layer in model.layers:
        for parameter in layer.self_attn.parameters():
            nn.init.zeros_(parameter)
    losses = rm.distil(model, original, batches(1))
    assert all(values == pytest.approx([1.0]) for values in losses.values())


@pytest.mark.parametrize("mixer", ["tssa", "linear"])
def test_the_error_of_a_swapped_model_falls(mixer: str) -> None:
    model, original = pair(mixer=mixer)
    data = batches(4)
    losses = rm.distil(model, original, data * 20, lr=3e-3)
    for values in losses.values():
        assert sum(values[-4:]) < 0.8 * sum(values[:4])
    original.eval()
    model.eval()
    untaught, _ = pair(mixer=mixer)
    x = data[0]
    wanted = original(x)
    assert (model(x) - wanted).norm() < (untaught.eval()(x) - wanted).norm()


def test_only_mixer_weights_change_and_modes_and_gradients_are_kept() -> None:
    model, original = pair()
    model.train()
    original.train()
    model.layers[0].linear1.eval()
    one = next(model.layers[0].self_attn.mixer.parameters())
    one.grad = torch.full_like(one, 7.0)
    before = copy.deepcopy(model.state_dict())
    expected = copy.deepcopy(original.state_dict())
    rm.distil(model, original, batches())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (".mixer." not in name), name
    assert all(torch.equal(v, expected[k]) for k, v in original.state_dict().items())
    assert one.grad.eq(7.0).all()
    parameters = {*model.parameters(), *original.parameters()} - {one}
    assert all(p.grad is None for p in parameters)
    off = [name for name, module in model.named_modules() if not module.training]
    assert off == ["layers.0.linear1"]
    assert all(module.training for module in original.modules())
    assert not any(module._forward_hooks for module in original.modules())


@pytest.mark.parametrize("length", [9, 4], ids=["9 tokens", "4 tokens for 4 samples"])
@pytest.mark.parametrize("layout", ["batch first", "batch second", "no batch"])
def test_padding_does_not_count(layout: str, length: int) -> None:
    x = batches(1)[0][:, :length]
    mask = torch.zeros(4, length, dtype=torch.bool)
    mask[1:, length - 2 :] = True

    def losses(filling: float) -> list[float]:
        model, original = pair(layout != "batch second")
        src, hidden = x.masked_fill(mask.unsqueeze(-1), filling), mask
        if layout == "no batch":
            src, hidden = src[1], mask[1]
        elif layout == "batch second":
            src = src.transpose(0, 1)
        batch = {"src": src, "src_key_padding_mask": hidden}
        found = rm.distil(model, original, [batch])
        return [value for values in found.values() for value in values]

    assert losses(0.0) == pytest.approx(losses(5.0), rel=1e-4)


def test_cache_under_another_name_is_found() -> None:
    """Check GPT-NeoX: it passes its cache as `layer_past`."""
    original = build("gpt_neox")
    model = copy.deepcopy(original)
    with pytest.warns(UserWarning, match="rotary"):
        rm.replace_attention(model, "softmax")
    before = set(vars(original))
    losses = rm.distil(model, original, [{"input_ids": torch.randint(3, 30, (2, 9))}])
    assert [len(values) for values in losses.values()] == [1, 1]
    assert set(vars(original)) == before


def test_default_torch_encoder_is_supported() -> None:
    original = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
    model = copy.deepcopy(original)
    rm.replace_attention(model, "softmax")
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[1:, 6:] = True
    batch = {"src": batches(1)[0], "src_key_padding_mask": mask}
    losses = rm.distil(model, original, [batch])
    assert all(values[0] < 1e-9 for values in losses.values())
    assert original.use_nested_tensor


def test_mixers_without_weights_to_change_are_measured() -> None:
    model, original = pair(mixer="fnet", layers=[0])
    rm.replace_attention(model, "tssa", layers=[1])
    losses = rm.distil(model, original, batches())
    assert [len(values) for values in losses.values()] == [3, 3]


def test_attention_that_layers_share_has_one_loss_a_batch() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    original = nn.Sequential(layer, layer)
    model = copy.deepcopy(original)
    rm.replace_attention(model, "tssa")
    losses = rm.distil(model, original, batches())
    assert {name: len(values) for name, values in losses.items()} == {"0.self_attn": 3}


@pytest.mark.parametrize("which", ["model", "original", "both", "a part", "in place"])
def test_compiled_models(which: str) -> None:
    model, original = pair()
    expected = rm.distil(*pair(), batches())
    if which in ("model", "both"):
        model = torch.compile(model, backend="eager")
    if which in ("original", "both"):
        original = torch.compile(original, backend="eager")
    if which == "a part":
        original.layers[1] = torch.compile(original.layers[1], backend="eager")
    if which == "in place":
        original.compile(backend="eager")
    with torch.no_grad():
        original(batches(1)[0])
    assert rm.distil(model, original, batches()) == expected
    if which == "a part":
        assert hasattr(original.layers[1], "_orig_mod")


def test_types_of_batches() -> None:
    x = batches(1)[0]
    results = []
    for batch in (x, (x,), [x], {"src": x}):
        model, original = pair()
        results.append(rm.distil(model, original, [batch]))
    assert all(result == results[0] for result in results)


def test_models_that_cannot_be_distilled_are_refused() -> None:
    model, original = pair()
    with pytest.raises(rm.InputError, match="replace_attention"):
        rm.distil(original, original, batches())
    with pytest.raises(rm.InputError, match=r"original: .*layers\.0\.self_attn.*got a Swapped"):
        rm.distil(model, copy.deepcopy(model), batches())
    with pytest.raises(rm.InputError, match=r"layers\.0\.self_attn"):
        rm.distil(model, nn.Linear(16, 16), batches())
    with pytest.raises(rm.InputError, match=r"batches: .*layers\.0\.self_attn"):
        rm.distil(model, original, [])
    with pytest.raises(rm.InputError, match=r"batches: .*empty"):
        rm.distil(model, original, [torch.ones(0, 3, 16)])
    with torch.inference_mode(), pytest.raises(rm.InputError, match="inference_mode"):
        rm.distil(model, original, batches())
    with pytest.raises(rm.InputError, match="lr"):
        rm.distil(model, original, batches(), lr=0.0)
    with pytest.raises(rm.InputError, match=r"float32\b"):
        rm.distil(model, original, [torch.full((1, 3, 16), float("nan"))])
    bare, original = pair(mixer="fnet")
    with pytest.raises(rm.InputError, match=r"model: .*grad"):
        rm.distil(bare, original, batches())
