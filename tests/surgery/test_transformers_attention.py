"""Single attention classes of transformers: differences from softmax with four projections."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import torch
from tiny_transformers import transformers
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.surgery import replace_attention

SIZES = {
    "vocab_size": 37,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "layer_types": ["full_attention"],
}
GATED = {"Qwen3Next": "qwen3_next", "Qwen3_5": "qwen3_5", "Qwen3_5Moe": "qwen3_5_moe"}
SURGERY_WARNINGS = r"ignore:\w+: "


def class_of(name: str, folder: str) -> Any:
    """Return a class that transformers does not export."""
    return getattr(importlib.import_module(f"transformers.models.{folder}.modeling_{folder}"), name)


def host_of(kind: str, folder: str, config: str | None = None, **settings: Any) -> nn.ModuleList:
    """Build one attention with random weights, without query and key norms."""
    torch.manual_seed(5)
    made = getattr(transformers, f"{config or kind}Config")(**settings)
    made._attn_implementation = "sdpa"
    attention = class_of(f"{kind}Attention", folder)(made, 0).eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(0, 0.5)
    for norm in ("q_norm", "k_norm"):
        setattr(attention, norm, nn.Identity())
    return nn.ModuleList([attention])


def outputs_of(host: Any, x: Tensor) -> Tensor:
    """Run with all tokens at one position, so rotary positions cancel."""
    flat = (torch.ones(1, x.shape[1], host[0].head_dim), torch.zeros(1, x.shape[1], 1))
    with torch.no_grad():
        return host[0](x, position_embeddings=flat, attention_mask=None, is_causal=True)[0]


@pytest.mark.filterwarnings(SURGERY_WARNINGS)
@pytest.mark.parametrize("kind", GATED)
def test_gate_in_the_query_projection_is_not_a_head(kind: str) -> None:
    """Check an open gate: softmax with the other rows equals the host."""
    config = kind if kind == "Qwen3Next" else f"{kind}Text"
    host = host_of(kind, GATED[kind], config, **SIZES, attention_bias=True)
    query = host[0].q_proj
    with torch.no_grad():
        query.weight.unflatten(0, (4, 2, 8))[:, 1] = 0.0
        query.bias.unflatten(0, (4, 2, 8))[:, 1] = 100.0
    x = torch.randn(2, 9, 16)
    before = outputs_of(host, x)
    report = replace_attention(host, "softmax")
    assert re.match(f"{kind}Attention: .*gate", report.notes[-1])
    assert host[0].mixer.num_heads == 4
    torch.testing.assert_close(host[0](x)[0], before, atol=1e-5, rtol=1e-5)


def test_queries_of_another_width_are_refused() -> None:
    host = host_of("Qwen3", "qwen3", **SIZES)
    host[0].q_proj = nn.Linear(16, 40)
    with pytest.raises(rm.InputError, match=r"q_proj.*\b40\b.*\b4\b.*\b8\b"):
        replace_attention(host, "softmax")


@pytest.mark.filterwarnings(SURGERY_WARNINGS)
def test_key_multiplier_is_folded_into_the_key_projection() -> None:
    settings = {**SIZES, "key_multiplier": 0.25}
    del settings["layer_types"]
    host = host_of("FalconH1", "falcon_h1", **settings)
    x = torch.randn(2, 9, 16)
    before = outputs_of(host, x)
    replace_attention(host, "softmax")
    torch.testing.assert_close(host[0](x)[0], before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "word"), [("Informer", "ProbSparse"), ("Autoformer", "AutoCorrelation")]
)
def test_non_softmax_attention_is_noted(kind: str, word: str) -> None:
    config = getattr(transformers, f"{kind}Config")(
        prediction_length=4,
        context_length=30,
        lags_sequence=[1, 2],
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
    )
    report = replace_attention(getattr(transformers, f"{kind}Model")(config), "linear")
    assert report.replaced == ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn"]
    (note,) = report.notes
    assert f"({word})" in note


def mimo(**changed: Any) -> nn.ModuleList:
    return host_of("MiMoV2Flash", "mimo_v2_flash", **{**SIZES, "v_head_dim": 8, **changed})


@pytest.mark.filterwarnings(SURGERY_WARNINGS)
def test_value_multiplier_is_folded_into_the_value_projection() -> None:
    host, x = mimo(attention_value_scale=0.7), torch.randn(2, 9, 16)
    before = outputs_of(host, x)
    replace_attention(host, "softmax")
    torch.testing.assert_close(host[0](x)[0], before, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:MiMo")
@pytest.mark.parametrize(
    ("mixer", "copied"), [("softmax", ["proj"]), ("tssa", ["in_proj", "out_proj"])]
)
def test_only_values_of_another_width_are_copied(mixer: str, copied: list[str]) -> None:
    """Check that only values are copied, since mixer heads have one width."""
    host = mimo(head_dim=12, v_head_dim=4)
    values = host[0].v_proj.weight.unflatten(0, (2, 4)) * host[0].v_scale
    report = replace_attention(host, mixer, max_length=9)
    assert report.copied == [f"0.mixer.{name}.weight" for name in copied]
    (note,) = (note for note in report.notes if "values" in note)
    assert "queries" in note
    if mixer == "tssa":
        found = host[0].mixer.in_proj.weight.unflatten(0, (4, 4))
        assert torch.equal(found, values[[0, 0, 1, 1]])
    assert host[0](torch.randn(2, 9, 16))[0].shape == (2, 9, 16)


@pytest.mark.parametrize(("kind", "folder"), [("LwDetr", "lw_detr"), ("RfDetr", "rf_detr")])
def test_query_groups_of_detr_are_refused(kind: str, folder: str) -> None:
    settings = {"d_model": 16, "decoder_self_attention_heads": 2}
    host = host_of(kind, folder, **settings, group_detr=3)
    with pytest.raises(rm.InputError, match=r"\b3\b.*\(group_detr\)"):
        replace_attention(host, "tssa")
    alone = host_of(kind, folder, **settings, group_detr=1)
    with pytest.warns(UserWarning, match=r"Attention: .*\bpositions\b"):
        assert replace_attention(alone, "tssa").replaced == ["0"]


def test_added_positions_are_not_rotary() -> None:
    """Check DETR: softmax with its projections equals the host without positions."""
    config = transformers.DetrConfig(d_model=16, attention_dropout=0.0)
    torch.manual_seed(5)
    attention = class_of("DetrSelfAttention", "detr")(config, 16, 2).eval()
    host, x, positions = nn.ModuleList([attention]), torch.randn(2, 9, 16), torch.randn(2, 9, 16)
    before, with_positions = attention(x)[0], attention(x, position_embeddings=positions)[0]
    with pytest.warns(UserWarning, match=r"DetrSelfAttention: .*\bpositions\b") as caught:
        (note,) = replace_attention(host, "softmax").notes
    assert note == str(caught[0].message)
    assert "rotary" not in note
    torch.testing.assert_close(host[0](x, position_embeddings=positions)[0], before)
    assert not torch.allclose(before, with_positions)


@pytest.mark.filterwarnings(SURGERY_WARNINGS)
@pytest.mark.parametrize("kind", ["Starcoder2", "SeedOss"])
def test_dropout_after_the_output_projection_may_be_a_number(kind: str) -> None:
    folder = {"Starcoder2": "starcoder2", "SeedOss": "seed_oss"}[kind]
    host = host_of(kind, folder, **SIZES, attention_dropout=0.0, residual_dropout=0.5)
    replace_attention(host, "identity")
    x = torch.ones(1, 20, 16)
    assert torch.equal(host[0](x)[0], x)
    assert set(host.train()[0](x)[0].unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("kind", ["DPT", "VideoMAE", "Yolos"])
def test_dropout_of_weights_under_another_name_is_copied(kind: str) -> None:
    config = getattr(transformers, f"{kind}Config")(**SMALL, attention_probs_dropout_prob=0.5)
    attention = class_of(f"{kind}SelfAttention", kind.lower())(config)
    host = nn.ModuleList([attention])
    replace_attention(host, "softmax")
    assert host[0].settings.dropout == 0.5  # type: ignore[union-attr]


@pytest.mark.filterwarnings(SURGERY_WARNINGS)
@pytest.mark.parametrize("use_rope", [True, False])
def test_position_dependent_temperature_is_reported_as_lost(use_rope: bool) -> None:
    """Check Llama 4 (without rotary positions) and Ministral 3 (together with them)."""
    settings = {**SIZES, "no_rope_layers": [int(use_rope)], "use_qk_norm": False}
    llama = host_of("Llama4Text", "llama4", **settings)
    notes = replace_attention(llama, "softmax", dry_run=True).notes
    assert ["rotary" in note for note in notes] == [use_rope]
    ministral = host_of("Ministral3", "ministral3", **SIZES)
    notes = replace_attention(ministral, "softmax", dry_run=True).notes
    assert ["rotary" in note for note in notes] == [True, False]


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
QFORMER = {**SMALL, "vocab_size": 37, "encoder_hidden_size": 20}
IMAGE = {**SMALL, "image_size": 16, "patch_size": 4}
CROSS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "BLIP": ("BlipText", "BlipTextModel", QFORMER, "encoder.layer.0.crossattention.self"),
    "BLIP-2": (
        "Blip2QFormer",
        "Blip2QFormerModel",
        {**QFORMER, "encoder_hidden_size": 16},
        "encoder.layer.0.crossattention.attention",
    ),
    "other channels": (
        "InstructBlipQFormer",
        "InstructBlipQFormerModel",
        QFORMER,
        "encoder.layer.0.crossattention.attention",
    ),
    "GroupViT": (
        "GroupViTVision",
        "GroupViTVisionModel",
        {
            **IMAGE,
            "num_hidden_layers": 2,
            "depths": [1, 1],
            "num_group_tokens": [4, 0],
            "num_output_groups": [4, 0],
        },
        "encoder.stages.0.downsample.pre_assign_attn.attn",
    ),
}


@pytest.mark.parametrize("host", CROSS)
def test_cross_attention_is_detected_from_the_parent_module(host: str) -> None:
    """Check a cross-attention without index: only index 0, the self-attention, is replaced."""
    config, kind, settings, name = CROSS[host]
    made = getattr(transformers, f"{config}Config")(**settings)
    model = getattr(transformers, kind)(made)
    report = replace_attention(model, "softmax", layers=[0], max_length=64)
    reasons = {found.removeprefix("vision_model."): why for found, why in report.skipped}
    assert reasons[name].startswith("cross-attention")
    with pytest.raises(rm.InputError, match=rf"layers: .*\b{1 + (host == 'GroupViT')}\b.*5"):
        replace_attention(model, "softmax", layers=[5])


def test_cross_attention_named_x_is_detected() -> None:
    config = transformers.Kosmos2Config(
        text_config={
            "vocab_size": 37,
            "embed_dim": 16,
            "layers": 1,
            "ffn_dim": 24,
            "attention_heads": 2,
        },
        vision_config=IMAGE,
        latent_query_num=3,
    )
    report = replace_attention(transformers.Kosmos2Model(config), "linear", dry_run=True)
    reasons = dict(report.skipped)
    assert reasons["image_to_text_projection.x_attn"].startswith("cross-attention")


@pytest.mark.parametrize("kind", ["relative", "shared_relative"])
def test_bias_added_to_the_mask_by_the_parent_is_refused(kind: str) -> None:
    config = transformers.BeitConfig(**IMAGE, **{f"use_{kind}_position_bias": True})
    with pytest.raises(rm.InputError, match=r"attention: .*position"):
        replace_attention(transformers.BeitModel(config), "tssa")
    plain = transformers.BeitModel(transformers.BeitConfig(**IMAGE)).eval()
    assert replace_attention(plain, "tssa").replaced == ["layers.0.attention"]


def test_attention_that_is_causal_only_in_the_text_is_refused() -> None:
    config = transformers.GitConfig(vocab_size=37, **SMALL, vision_config=IMAGE)
    report = replace_attention(transformers.GitForCausalLM(config), "tssa")
    assert [name.rpartition(".")[2] for name in report.replaced] == ["self_attn"]  # image model
    (reason,) = dict(report.skipped).values()
    assert "image" in reason
    assert "text" in reason


def test_cross_modal_layers_attend_to_all_tokens() -> None:
    """Check BridgeTower: nothing reads the causal mark of its layers."""
    torch.manual_seed(0)
    small = {**SMALL, "hidden_size": 64}
    config = transformers.BridgeTowerConfig(
        **small,
        text_config={**small, "vocab_size": 37, "max_position_embeddings": 24},
        vision_config={"hidden_size": 64, "num_hidden_layers": 1, "image_size": 8, "patch_size": 4},
    )
    model = transformers.BridgeTowerModel(config).eval()
    call = {
        "input_ids": torch.randint(3, 37, (2, 6)),
        "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2]),
        "pixel_values": torch.randn(2, 3, 8, 8),
    }
    with torch.no_grad():
        before = model(**call)
        names = replace_attention(model, "softmax").replaced
        after = model(**call)
    assert "cross_modal_text_layers.0.attention.self" in names
    torch.testing.assert_close(after.text_features[:, :4], before.text_features[:, :4])
    torch.testing.assert_close(after.image_features, before.image_features)
