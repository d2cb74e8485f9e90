"""Swapped transformers in folders: rifflemix restores the outputs, transformers alone fails."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import build, inputs_of, outputs_of, transformers

import rifflemix as rm
from rifflemix.surgery import replace_attention

rm.register_hf()  # other tests import surgery before transformers
HERE = Path(__file__).parent
SAVED = [
    ("gpt2", "tssa", {}),
    ("bert", "performer", {}),
    ("vit", "csp", {"shift": list(range(16))}),
    ("whisper", "softmax", {}),
]


@pytest.mark.parametrize(("name", "mixer", "options"), SAVED, ids=[s[0] for s in SAVED])
def test_saved_model_is_loaded_with_its_mixers(
    tmp_path: Path, name: str, mixer: str, options: dict[str, Any]
) -> None:
    model, inputs = build(name), inputs_of(name)
    layers = [0] if name == "gpt2" else "all"
    replace_attention(model, mixer, mixer_options=options, layers=layers)
    expected = outputs_of(model, inputs)
    for folder in (tmp_path / "first", tmp_path / "second"):
        model.save_pretrained(folder)
        assert not hasattr(model.config, "quantization_config")
        model = type(model).from_pretrained(folder)
        assert torch.equal(outputs_of(model, inputs), expected)
    assert not getattr(model, "is_quantized", False)
    assert not hasattr(model, "hf_quantizer")
    assert model.to("cpu").double().dtype == torch.float64
    assert all(p.requires_grad and not p.is_meta for p in model.parameters())


def test_unpickled_model_saves_its_mixers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may have imported rifflemix.surgery before transformers."""
    model, inputs = build("gpt2"), inputs_of("gpt2")
    replace_attention(model, "tssa")
    content = pickle.dumps(model)
    base = transformers.PreTrainedModel
    monkeypatch.setattr(base, "save_pretrained", base.save_pretrained.plain)
    again = pickle.loads(content)
    again.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(outputs_of(loaded, inputs), outputs_of(model, inputs))


def saved(tmp_path: Path) -> tuple[Any, Path]:
    model = build("gpt2")
    replace_attention(model, "tssa")
    model.save_pretrained(tmp_path)
    return model, tmp_path


def test_auto_classes_load_the_model_and_its_body(tmp_path: Path) -> None:
    model, folder = saved(tmp_path)
    inputs = inputs_of("gpt2")
    auto = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(outputs_of(auto, inputs), outputs_of(model, inputs))
    body = transformers.AutoModel.from_pretrained(folder)
    assert torch.equal(outputs_of(body, inputs), outputs_of(model.transformer, inputs))
    body.save_pretrained(folder / "body")
    again = transformers.GPT2LMHeadModel.from_pretrained(folder / "body")
    assert torch.equal(outputs_of(again.transformer, inputs), outputs_of(body, inputs))


def test_the_config_of_a_swapped_model_makes_others(tmp_path: Path) -> None:
    """Check that saving another model does not treat the swap as quantization."""
    _, folder = saved(tmp_path / "first")
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    replace_attention(model, "linear", layers=[1])
    model.save_pretrained(tmp_path / "other")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "other")
    inputs = inputs_of("gpt2")
    assert torch.equal(outputs_of(again, inputs), outputs_of(model, inputs))
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(rm.InputError, match=r"model: .*quantization_config"):
        model.save_pretrained(tmp_path / "quantised")


def swapped(model: Any) -> Any:
    replace_attention(model, "tssa", max_length=24)
    return model


def text_decoder() -> Any:
    config = build("bert", is_decoder=True, add_cross_attention=True).config
    return transformers.BertLMHeadModel(config)


def around_an_encoder(tmp_path: Path) -> Any:
    encoder = swapped(build("vit"))
    return transformers.VisionEncoderDecoderModel(encoder=encoder, decoder=text_decoder())


def around_folders(tmp_path: Path) -> Any:
    for name, part in (("encoder", build("vit")), ("decoder", text_decoder())):
        swapped(part).save_pretrained(tmp_path / name)
    return transformers.VisionEncoderDecoderModel.from_encoder_decoder_pretrained(
        tmp_path / "encoder", tmp_path / "decoder"
    )


def by_a_part(tmp_path: Path) -> Any:
    model = build("gpt2")
    swapped(model.transformer.h)
    return model


def with_a_part_of_another(tmp_path: Path) -> Any:
    model = transformers.WhisperForConditionalGeneration(build("whisper").config)
    model.model.encoder = swapped(build("whisper").encoder)
    return model


WRAPPING = [around_an_encoder, around_folders, by_a_part, with_a_part_of_another]


@pytest.mark.parametrize("make", WRAPPING)
@pytest.mark.parametrize("given", [False, True])
def test_model_that_contains_a_swapped_model_is_loaded(
    make: Callable[[Path], Any], given: bool, tmp_path: Path
) -> None:
    model = make(tmp_path).eval()
    state = model.state_dict()
    model.save_pretrained(tmp_path / "whole", state_dict=state if given else None)
    again = type(model).from_pretrained(tmp_path / "whole").state_dict()
    assert again.keys() == state.keys()
    assert any(".mixer." in name for name in state)
    assert all(torch.equal(again[name], state[name]) for name in state)


BLOCKS = "encoder.layer.0.attention.self.*attention_type='original_full'"


def sparse_bigbird() -> Any:
    torch.manual_seed(0)
    return transformers.BigBirdModel(
        transformers.BigBirdConfig(
            vocab_size=37,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            sep_token_id=2,
            block_size=4,
            num_random_blocks=1,
        )
    ).eval()


def test_loading_with_block_attention_is_refused(tmp_path: Path) -> None:
    model, inputs = sparse_bigbird(), inputs_of("bert")
    with pytest.raises(rm.InputError, match="attention_type='original_full'"):
        replace_attention(model, "softmax")
    model.set_attention_type("original_full")
    replace_attention(model, "softmax")
    expected = outputs_of(model, inputs)
    model.save_pretrained(tmp_path)
    with pytest.raises(rm.InputError, match=BLOCKS):
        type(model).from_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attention_type="original_full")
    assert torch.equal(outputs_of(again, inputs), expected)
    rm.save_swapped(model, tmp_path)
    with pytest.raises(rm.InputError, match=BLOCKS):
        rm.load_swapped(tmp_path, sparse_bigbird())


PROGRAM = """
import sys
sys.path.insert(0, {here!r})
import tiny_transformers
import torch
from transformers import {cls}
{register}
model = {cls}.from_pretrained({folder!r})
inputs = tiny_transformers.inputs_of("gpt2")
print("sum", tiny_transformers.outputs_of(model, inputs).double().sum().item())
"""


def in_another_program(folder: Path, register: str, cls: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(here=str(HERE), folder=str(folder), register=register, cls=cls)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_loading_without_rifflemix_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = saved(tmp_path)
    for mapping in ("AUTO_QUANTIZER_MAPPING", "AUTO_QUANTIZATION_CONFIG_MAPPING"):
        monkeypatch.delitem(getattr(transformers.quantizers.auto, mapping), "rifflemix")
    for cls in (transformers.GPT2LMHeadModel, transformers.GPT2Model):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            cls.from_pretrained(folder)


@pytest.mark.slow
def test_other_program_needs_rifflemix_to_load(tmp_path: Path) -> None:
    model, folder = saved(tmp_path)
    expected = outputs_of(model, inputs_of("gpt2")).double().sum().item()
    register = "import rifflemix; rifflemix.register_hf()"
    with_us = in_another_program(folder, register, "GPT2LMHeadModel")
    assert with_us.returncode == 0, with_us.stderr
    assert float(with_us.stdout.split("sum")[1]) == pytest.approx(expected, rel=1e-6)
    without = in_another_program(folder, "", "GPT2LMHeadModel")
    assert without.returncode != 0
    assert "size mismatch" in without.stderr
    assert "Unknown quantization type, got rifflemix" in without.stderr
    assert "sum" not in without.stdout
