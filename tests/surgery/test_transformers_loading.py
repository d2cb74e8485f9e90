"""Tests of loading: restored models, missing and other weights, damaged files, mixed libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_transformers_saving import saved
from tiny_transformers import build, inputs_of, outputs_of, transformers
from torch import nn

import rifflemix as rm
from rifflemix.surgery import SwappedAttention, replace_attention, restore_attention


def test_attention_without_weights_cannot_be_restored(tmp_path: Path) -> None:
    """Check a loaded model: it lacks the replaced attention's weights."""
    _, folder = saved(tmp_path)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    with pytest.raises(rm.InputError, match=r"model: transformer\.h\.0\.attn"):
        restore_attention(model)
    assert any(isinstance(module, SwappedAttention) for module in model.modules())


@pytest.mark.parametrize("in_parts", [False, True])
def test_restored_model_is_saved_like_the_original(in_parts: bool, tmp_path: Path) -> None:
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


def test_model_restored_in_parts_is_pushed_like_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build("gpt2")
    monkeypatch.setattr(type(model), "push_to_hub", lambda _, name, **o: f"{name} {o}")
    replace_attention(model, "tssa", layers=[1])
    restore_attention(model.transformer)
    assert model.push_to_hub("mine", private=True) == "mine {'private': True}"


def test_missing_weights_are_not_randomly_initialized(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.attn.mixer.in_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(rm.InputError, match=r"weights: .*mixer.in_proj.weight missing"):
        transformers.GPT2LMHeadModel.from_pretrained(folder)


def test_model_with_its_own_mixers_is_loaded(tmp_path: Path) -> None:
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


def test_mixer_parametrised_after_the_swap_is_refused(tmp_path: Path) -> None:
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


def test_names_follow_the_mapping_of_the_caller(tmp_path: Path) -> None:
    """Check that `key_mapping` also renames weights of mixers."""
    model, folder = saved(tmp_path)
    weights = load_file(folder / "model.safetensors")
    renamed = {f"old.{name}": value for name, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    again = type(model).from_pretrained(folder, key_mapping={r"^old\.": ""})
    state, found = model.state_dict(), again.state_dict()
    assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize("kind", ["state_dict", "bin"])
def test_weights_from_other_sources_are_checked_too(kind: str, tmp_path: Path) -> None:
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


def test_weights_of_another_mixer_are_not_randomly_initialized(tmp_path: Path) -> None:
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


def test_folders_of_save_swapped_contain_transformers_models_too(tmp_path: Path) -> None:
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
        return self.body(x)


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


def test_model_that_replaces_its_own_attention_is_loaded(tmp_path: Path) -> None:
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
