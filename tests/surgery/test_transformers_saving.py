"""Swapped transformers in folders: rifflemix restores the outputs, transformers alone fails."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_transformers import build, inputs_of, outputs_of, transformers
from torch import nn

import rifflemix as rm
from rifflemix.surgery import SwappedAttention, replace_attention, restore_attention

rm.register_hf()  # other tests import surgery before transformers
HERE = Path(__file__).parent
SAVED = [
    ("gpt2", "tssa", {}),
    ("bert", "performer", {}),
    ("vit", "csp", {"shift": list(range(16))}),
    ("whisper", "softmax", {}),
]


@pytest.mark.parametrize(("name", "mixer", "options"), SAVED, ids=[s[0] for s in SAVED])
def test_a_saved_model_comes_back(
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


def test_an_unpickled_model_saves_its_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_by_auto_classes_and_as_a_body(tmp_path: Path) -> None:
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


AROUND = [around_an_encoder, around_folders, by_a_part, with_a_part_of_another]


@pytest.mark.parametrize("make", AROUND)
@pytest.mark.parametrize("given", [False, True])
def test_a_model_around_replaced_attention_comes_back(
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


def test_a_host_that_attends_to_blocks_again_says_so(tmp_path: Path) -> None:
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


def test_without_us_loading_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = saved(tmp_path)
    for mapping in ("AUTO_QUANTIZER_MAPPING", "AUTO_QUANTIZATION_CONFIG_MAPPING"):
        monkeypatch.delitem(getattr(transformers.quantizers.auto, mapping), "rifflemix")
    for cls in (transformers.GPT2LMHeadModel, transformers.GPT2Model):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            cls.from_pretrained(folder)


@pytest.mark.slow
def test_another_program_needs_us(tmp_path: Path) -> None:
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


def test_what_is_gone_is_not_restored(tmp_path: Path) -> None:
    """Check a loaded model: it lacks the replaced attention's weights."""
    _, folder = saved(tmp_path)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    with pytest.raises(rm.InputError, match=r"model: transformer\.h\.0\.attn"):
        restore_attention(model)
    assert any(isinstance(module, SwappedAttention) for module in model.modules())


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_restored_model_is_saved_as_ever(in_parts: bool, tmp_path: Path) -> None:
    model, _ = saved(tmp_path / "swapped")
    for part in model.transformer.h if in_parts else [model]:
        assert restore_attention(part)
    model.save_pretrained(tmp_path / "plain")
    assert "quantization_config" not in json.loads((tmp_path / "plain/config.json").read_text())
    names = load_file(tmp_path / "plain/model.safetensors")
    assert "transformer.h.0.attn.c_attn.weight" in names
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "plain")
    inputs = inputs_of("gpt2")
    assert torch.equal(outputs_of(again, inputs), outputs_of(model, inputs))


def test_a_model_that_is_restored_in_parts_is_pushed_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build("gpt2")
    monkeypatch.setattr(type(model), "push_to_hub", lambda _, name, **o: f"{name} {o}")
    replace_attention(model, "tssa", layers=[1])
    restore_attention(model.transformer)
    assert model.push_to_hub("mine", private=True) == "mine {'private': True}"


def test_weights_that_are_missing_are_not_drawn(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.attn.mixer.in_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(rm.InputError, match=r"weights: .*mixer.in_proj.weight missing"):
        transformers.GPT2LMHeadModel.from_pretrained(folder)


def test_a_host_with_mixers_of_its_own_comes_back(tmp_path: Path) -> None:
    """Check Nemotron-H: it calls every part a mixer.

    Its experts are saved one by one.
    """
    config = transformers.NemotronHConfig(
        vocab_size=37,
        hidden_size=16,
        layers_block_type=["moe", "attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        n_routed_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=24,
    )
    model = transformers.NemotronHForCausalLM(config).eval()
    replace_attention(model, "linear")
    model.save_pretrained(tmp_path)
    again = transformers.NemotronHForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(3, 37, (2, 9))
    assert torch.equal(again(ids).logits, model(ids).logits)
    weights = load_file(tmp_path / "model.safetensors")
    del weights[next(name for name in weights if name.endswith(".mixer.mixer.qkv.weight"))]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(rm.InputError, match=r"weights: .*mixer.qkv.weight missing"):
        transformers.NemotronHForCausalLM.from_pretrained(tmp_path)


def test_a_mixer_that_was_parametrised_since_is_refused_at_once(tmp_path: Path) -> None:
    """Check the error when saving: the checkpoint could not be loaded."""
    model = build("gpt2")
    replace_attention(model, "tssa")
    out = model.transformer.h[0].attn.mixer.out_proj
    nn.utils.parametrizations.weight_norm(out)
    with pytest.raises(rm.InputError, match=r"transformer.h.0.attn"):
        model.save_pretrained(tmp_path / "swap")
    assert not (tmp_path / "swap").exists()
    nn.utils.parametrize.remove_parametrizations(out, "weight")
    model.save_pretrained(tmp_path / "swap")


@pytest.mark.parametrize("option", ["save_original_format", "distributed_checkpoint"])
def test_formats_that_could_not_be_loaded_are_refused(option: str, tmp_path: Path) -> None:
    model = build("vit")
    replace_attention(model, "mega")
    with pytest.raises(rm.InputError, match=option):
        model.save_pretrained(tmp_path / "model", **{option: True})
    assert not (tmp_path / "model").exists()


def test_names_are_mapped_as_the_caller_says(tmp_path: Path) -> None:
    """Check that `key_mapping` also renames weights of mixers."""
    model, folder = saved(tmp_path)
    weights = load_file(folder / "model.safetensors")
    renamed = {f"old.{name}": value for name, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    again = type(model).from_pretrained(folder, key_mapping={r"^old\.": ""})
    state, found = model.state_dict(), again.state_dict()
    assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize("kind", ["state_dict", "bin"])
def test_weights_from_elsewhere_are_checked_too(kind: str, tmp_path: Path) -> None:
    model, folder = saved(tmp_path)
    (folder / "model.safetensors").unlink()
    state = model.state_dict()
    config = transformers.AutoConfig.from_pretrained(folder)
    for name in (None, "transformer.h.1.attn.mixer.in_proj.weight"):
        part = {key: value for key, value in state.items() if key != name}
        torch.save(part, folder / "pytorch_model.bin")
        source = folder if kind == "bin" else None
        arguments = {"config": config, "state_dict": None if kind == "bin" else part}
        if name is None:
            found = type(model).from_pretrained(source, **arguments).state_dict()
            assert all(torch.equal(found[key], state[key]) for key in state)
            continue
        with pytest.raises(rm.InputError, match=r"weights: .*mixer.in_proj.weight missing"):
            type(model).from_pretrained(source, **arguments)


def test_weights_of_another_mixer_are_not_drawn(tmp_path: Path) -> None:
    """Check a checkpoint that has enough tensors, but under other names."""
    _, folder = saved(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for layer in config["quantization_config"]["swap"]["layers"].values():
        layer |= {"mixer": "average", "options": {}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(rm.InputError, match=r"weights: .* unexpected"):
        transformers.GPT2LMHeadModel.from_pretrained(folder)


def test_a_damaged_config_is_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["swap"]["layers"] = {"transformer.h.0.attn": {"mixer": 3}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(rm.InputError, match=r"swap.*got 3"):
        transformers.GPT2LMHeadModel.from_pretrained(folder)


def test_our_own_folders_hold_transformers_too(tmp_path: Path) -> None:
    model, inputs = build("bert"), inputs_of("bert")
    replace_attention(model, "tssa")
    rm.save_swapped(model, tmp_path)
    again = rm.load_swapped(tmp_path, transformers.BertModel(model.config).eval())
    assert torch.equal(outputs_of(again, inputs), outputs_of(model, inputs))


class EncoderConfig(transformers.PretrainedConfig):  # type: ignore[misc]
    model_type = "encoder_of_torch"
    mixer: str = "tssa"


class Encoder(transformers.PreTrainedModel):  # type: ignore[misc]
    """A transformers model that initializes torch.nn attention by name."""

    config_class = EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.TransformerEncoderLayer):
            transformers.initialization.normal_(module.self_attn.in_proj_weight)
            transformers.initialization.zeros_(module.self_attn.in_proj_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x)
        return found


def timm_wrapper(_: Any) -> Any:
    pytest.importorskip("timm", reason="needs timm")
    sizes = {"img_size": 8, "patch_size": 4, "depth": 2, "embed_dim": 16, "num_heads": 2}
    config = transformers.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224",
        model_args=sizes,
        pretrained_cfg={"input_size": (3, 8, 8)},
    )
    return transformers.TimmWrapperModel(config)


IN_TRANSFORMERS: dict[str, tuple[Any, torch.Tensor]] = {
    "torch.nn": (Encoder, torch.randn(2, 5, 16)),
    "timm": (timm_wrapper, torch.randn(2, 3, 8, 8)),
}


@pytest.mark.parametrize("name", IN_TRANSFORMERS)
def test_attention_of_other_libraries_in_a_model_of_transformers(name: str, tmp_path: Path) -> None:
    """Check that loading restores the swap instead of random original attention."""
    make, x = IN_TRANSFORMERS[name]
    model = make(EncoderConfig()).eval()
    replaced = replace_attention(model, "tssa").replaced
    assert len(replaced) == 2
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again(x)[0], model(x)[0])
    for part in replaced:
        module = again.get_submodule(part)
        assert isinstance(module, SwappedAttention)
        assert not hasattr(module, "in_proj_weight")
    restore_attention(model)
    model.save_pretrained(tmp_path / "before")
    assert torch.equal(type(model).from_pretrained(tmp_path / "before")(x)[0], model(x)[0])


class SwappedEncoder(Encoder):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        replace_attention(self, config.mixer)


class SwappedGPT2(transformers.GPT2Model):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        replace_attention(self, "tssa", layers=[1])


def test_a_model_that_replaces_its_own_attention_comes_back(tmp_path: Path) -> None:
    model, x = SwappedEncoder(EncoderConfig()).eval(), IN_TRANSFORMERS["torch.nn"][1]
    model.save_pretrained(tmp_path / "encoder")
    again = SwappedEncoder.from_pretrained(tmp_path / "encoder")
    assert torch.equal(again(x)[0], model(x)[0])
    gpt2, inputs = SwappedGPT2(build("gpt2").config).eval(), inputs_of("gpt2")
    gpt2.save_pretrained(tmp_path / "gpt2")
    again = SwappedGPT2.from_pretrained(tmp_path / "gpt2")
    assert torch.equal(outputs_of(again, inputs), outputs_of(gpt2, inputs))
    with pytest.raises(rm.InputError, match=r"model: .*got .*body\.layers\.0\.self_attn"):
        SwappedEncoder.from_pretrained(tmp_path / "encoder", mixer="linear")
