"""Softmax attention of rifflemix's own models as a host."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision_shim import declare_operators

import rifflemix as rm

SMALL = {"dim": 16, "num_layers": 2, "num_heads": 2}
TOKENS = {**SMALL, "vocab_size": 12, "max_length": 20}
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "encoder": (TOKENS, (3, 9)),
    "encoder, class token, rotary": (
        {**TOKENS, "pool": "cls", "positions": "rope"}, (3, 9)
    ),
    "encoder, short convolutions": ({**TOKENS, "short_conv": 3}, (3, 9)),
    "gpt": (TOKENS, (3, 9)),
    "gpt, no bias": ({**TOKENS, "bias": False}, (3, 9)),
    "vit_mnist": ({**SMALL, "image_size": 8, "patch_size": 4, "head_dim": 4}, (3, 1, 8, 8)),
}  # fmt: skip


TEXTS = [f"{word} film {n}" for n in range(20) for word in ("great", "dull")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short training with softmax attention."""
    out = tmp_path_factory.mktemp("trained") / "run"
    task = rm.Task.from_arrays(TEXTS, ["good", "bad"] * 20)
    rm.compare(task, ["softmax"], out=out, max_steps=2, dim=16, threads=1)
    return out


def built(case: str, **changes: Any) -> tuple[nn.Module, Tensor]:
    """Return a model with softmax attention and one batch."""
    settings, shape = MODELS[case]
    torch.manual_seed(0)
    model = rm.create_model(case.partition(",")[0], mixer="softmax", **settings, **changes).eval()
    return model, torch.rand(shape) if len(shape) == 4 else torch.randint(12, shape)


@pytest.mark.parametrize("case", MODELS)
def test_softmax_with_copied_weights_changes_nothing(case: str) -> None:
    model, x = built(case)
    expected = model(x)
    options = {"rotary": True} if "rotary" in case else {}
    if options:
        with pytest.warns(UserWarning, match="rotary"):
            report = rm.replace_attention(model, "softmax", mixer_options=options)
    else:
        report = rm.replace_attention(model, "softmax")
    assert report.replaced == ["blocks.0.mixer", "blocks.1.mixer"]
    assert torch.equal(model(x), expected)
    rm.restore_attention(model)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("case", [case for case in MODELS if "rotary" not in case])
@pytest.mark.parametrize("mixer", ["tssa", "csp", "gated_deltanet"])
def test_other_mixers_train_and_load(case: str, mixer: str, tmp_path: Path) -> None:
    model, x = built(case)
    rm.replace_attention(model, mixer, layers=[1])
    model(x).square().sum().backward()
    assert all(p.grad is not None for p in model.blocks[1].mixer.mixer.parameters())
    rm.save_swapped(model, tmp_path)
    again = rm.load_swapped(tmp_path, built(case)[0]).eval()
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)


def test_padding_reaches_the_mixer() -> None:
    model, x = built("encoder")
    rm.replace_attention(model, "tssa")
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[1, 6:] = True
    y = model(x, key_padding_mask=padding)
    torch.testing.assert_close(y[1:2], model(x[1:2, :6]))


@pytest.mark.parametrize("mixer", ["linear", "csp"])
def test_generated_tokens_are_the_most_likely(mixer: str) -> None:
    model, x = built("gpt")
    rm.replace_attention(model, mixer)
    out = model.generate(x, 5, temperature=0.0)
    for n in range(x.shape[1], out.shape[1]):
        assert torch.equal(model(out[:, :n])[:, -1].argmax(-1), out[:, n])


def test_save_pretrained_names_the_function_for_swapped_models(tmp_path: Path) -> None:
    model, _ = built("encoder")
    rm.replace_attention(model, "tssa")
    with pytest.raises(rm.InputError, match="save_swapped"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_stack_of_mixers_is_refused() -> None:
    model, x = built("encoder")
    expected = model(x)
    with pytest.raises(rm.InputError, match=re.escape("layers=")):
        rm.replace_attention(model, "csp+softmax")
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("mixer", ["linear", "csp"])
def test_models_without_softmax_attention_are_refused(mixer: str) -> None:
    model = rm.create_model("encoder", **TOKENS, mixer=mixer)
    with pytest.raises(rm.InputError, match="rifflemix, got none"):
        rm.replace_attention(model, "tssa")


def test_a_trained_run_is_converted_and_predicts(trained: Path, tmp_path: Path) -> None:
    run = rm.load_run(trained)
    before = copy.deepcopy(run.model.state_dict())
    batches = [
        {name: torch.from_numpy(array) for name, array in run.encode(TEXTS[n : n + 8]).items()}
        for n in (0, 8)
    ]
    report = rm.convert(run.model, "linear", batches, steps=2)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    converted = dataclasses.replace(run, model=report.model)
    assert set(converted.predict(TEXTS[:3])) <= {"good", "bad"}
    converted.export_onnx(tmp_path / "films.onnx")
    assert (tmp_path / "films.onnx").is_file()


def test_converted_run_is_saved_for_transformers(trained: Path, tmp_path: Path) -> None:
    declare_operators()
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    run = rm.load_run(trained)
    rm.replace_attention(run.model, "tssa", layers=[1])
    run.save_pretrained(tmp_path / "saved")
    rm.register_hf()
    cls = transformers.AutoModelForSequenceClassification
    again = cls.from_pretrained(tmp_path / "saved")
    state = run.model.state_dict()
    loaded = again.model.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    assert again.config.id2label == {0: "bad", 1: "good"}
