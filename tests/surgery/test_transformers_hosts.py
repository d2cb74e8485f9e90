"""Replaced attention of transformers: each host keeps its function or raises an error."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tiny_transformers import HEADS, MODELS, VOCABULARY, build, inputs_of, outputs_of, transformers
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask

import rifflemix as rm
from perturbed import perturb
from rifflemix.surgery import replace_attention, restore_attention
from rifflemix.surgery.hosts.transformers_masks import padding_of

EXACT = {"atol": 1e-5, "rtol": 1e-5}
WITH_ROTARY = ["llama", "qwen2", "qwen3", "gpt_neox", "modernbert"]
REFUSED = ["mistral", "deberta", "deberta_v2"]
WITHOUT_ROTARY = [name for name in MODELS if name not in WITH_ROTARY + REFUSED]
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 24,
}


OF_SAM = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "image_size": 28,
    "pretrain_image_size": 28,
    "window_size": 2,
    "global_attn_indexes": [0],
}


def with_buffer(pattern: Tensor) -> nn.Module:
    """Build an OPT with its own mask buffer in the attention."""
    config = transformers.OPTConfig(**SMALL, ffn_dim=24, word_embed_proj_dim=16)
    model = transformers.OPTModel(config)
    model.decoder.layers[0].self_attn.register_buffer("pattern", pattern)
    return model


def swap(name: str, mixer: str, implementation: str = "sdpa", **options: Any) -> Any:
    model = build(name, implementation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about lost rotary positions, tested below
        replace_attention(model, mixer, **options)
    return model


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", WITHOUT_ROTARY)
def test_softmax_with_copied_weights_equals_the_original(name: str, implementation: str) -> None:
    model, inputs = build(name, implementation), inputs_of(name)
    before = outputs_of(model, inputs)
    report = replace_attention(model, "softmax")
    assert len(report.replaced) == {"whisper": 4, "albert": 1}.get(name, 2)
    torch.testing.assert_close(outputs_of(model, inputs), before, **EXACT)
    restore_attention(model)
    assert torch.equal(outputs_of(model, inputs), before)


@pytest.mark.parametrize("name", WITH_ROTARY)
def test_softmax_equals_the_original_except_for_positions(name: str) -> None:
    """Check the weights with one position for all tokens, without rotary effects."""
    model, inputs = build(name), inputs_of(name)
    if name == "qwen3":
        for module in model.modules():
            if type(module).__name__ == "Qwen3Attention":
                module.q_norm = module.k_norm = nn.Identity()
    inputs["position_ids"] = torch.zeros_like(inputs["input_ids"])
    before = outputs_of(model, inputs)
    with pytest.warns(UserWarning, match="rotary"):
        replace_attention(model, "softmax")
    torch.testing.assert_close(outputs_of(model, inputs), before, **EXACT)


def test_lost_settings_are_reported_once() -> None:
    model = build("qwen3")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = replace_attention(model, "tssa")
    said = [str(warning.message) for warning in caught]
    assert len(said) == 2
    assert "rotary" in said[0]
    assert "norms" in said[1]
    assert set(said) <= set(report.notes)


@pytest.mark.parametrize("name", ["deberta", "deberta_v2"])
def test_disentangled_attention_is_refused(name: str) -> None:
    with pytest.raises(rm.InputError, match=r"self: .*position"):
        replace_attention(build(name, "eager"), "softmax")


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=37, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2
    )
    return transformers.T5Model(config)


REFUSED = {
    "relative bias": (_t5, "model:"),
    "window": (
        lambda: transformers.MistralModel(transformers.MistralConfig(**SMALL)),
        r"\b4096\b.*sliding_window=None",
    ),
    "three results": (
        lambda: transformers.LEDModel(
            transformers.LEDConfig(
                vocab_size=37,
                d_model=16,
                encoder_layers=1,
                decoder_layers=1,
                attention_window=4,
                encoder_attention_heads=2,
                decoder_attention_heads=2,
                encoder_ffn_dim=24,
                decoder_ffn_dim=24,
            )
        ),
        "longformer_self_attn .LEDEncoderSelfAttention",
    ),
    "learned scale": (
        lambda: transformers.TimesFmModel(
            transformers.TimesFmConfig(
                **{k: v for k, v in SMALL.items() if "v" not in k and "max" not in k}, head_dim=8
            )
        ),
        "model:",
    ),
    "other arguments": (
        lambda: transformers.SegformerModel(
            transformers.SegformerConfig(
                num_encoder_blocks=1, depths=[1], sr_ratios=[1], hidden_sizes=[16]
            )
        ),
        "model:",
    ),
    "images": (
        lambda: transformers.AutoModel.from_config(transformers.Sam3ViTConfig(**OF_SAM)),
        r"model: .*\(B, H, W, C\).*\(B, N, C\)",
    ),
    "a pattern of its own": (
        lambda: with_buffer(torch.ones(24, 24).tril(2)),
        "model:",
    ),
}


def test_attention_with_a_custom_forward_is_not_replaced() -> None:
    """Check a custom forward that resembles the library's forward."""

    class MyAttention(transformers.models.opt.modeling_opt.OPTAttention):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, **kwargs: Any) -> Any:
            attn_output, attn_weights = super().forward(hidden_states.flip(1), **kwargs)
            return attn_output, attn_weights

    model = with_buffer(torch.ones(1))
    model.decoder.layers[0].self_attn.__class__ = MyAttention
    with pytest.raises(rm.InputError, match=r"got decoder\.layers\.0\.self_attn \(MyAttention\)"):
        replace_attention(model, "softmax")
    model = with_buffer(torch.ones(1))
    model.decoder.layers[0].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(rm.InputError, match=r"got decoder.layers.0.self_attn"):
        replace_attention(model, "softmax")


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_unsupported_features_of_the_attention_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(rm.InputError, match=reason):
        replace_attention(make(), "softmax")


def image_gpt(**changed: Any) -> Any:
    """Build ImageGPT: its triangle buffer is the only sign of causality.

    Its masks show later tokens.
    """
    config = transformers.ImageGPTConfig(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=HEADS, n_positions=24, **changed
    )
    torch.manual_seed(2)
    return transformers.ImageGPTModel(config).eval()


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("by_layer", [True, False])
def test_scale_of_the_scores_is_folded_into_the_queries(scaled: bool, by_layer: bool) -> None:
    model = image_gpt(scale_attn_weights=scaled, scale_attn_by_inverse_layer_idx=by_layer)
    perturb(model, 0.2)
    ids = torch.randint(0, VOCABULARY, (2, 9))
    before = model(ids)[0]
    replace_attention(model, "softmax")
    torch.testing.assert_close(model(ids)[0], before, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("init", ["copy", "fresh"])
def test_causal_buffer_marks_the_attention_as_causal(init: str) -> None:
    model = image_gpt()
    ids = torch.randint(0, VOCABULARY, (2, 9))
    before = model(ids)[0]
    with pytest.raises(rm.InputError, match=r"mixer: .*causal.*got fnet"):
        replace_attention(model, "fnet")
    replace_attention(model, "softmax", init=init)
    found = model(ids)[0]
    if init == "copy":
        torch.testing.assert_close(found, before, **EXACT)
    ids[:, -1] = (ids[:, -1] + 1) % VOCABULARY
    torch.testing.assert_close(model(ids)[0][:, :-1], found[:, :-1])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("use_cache", [False, True])
def test_padding_with_a_causal_buffer(side: str, use_cache: bool) -> None:
    model, inputs = image_gpt(), {**inputs_of("gpt2"), "use_cache": use_cache}
    if side == "left":
        inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    before = outputs_of(model, inputs)
    replace_attention(model, "softmax")
    torch.testing.assert_close(outputs_of(model, inputs), before, **EXACT)


def test_similar_attention_classes_need_no_registration() -> None:
    """Check OPT, a user's subclass and CLIP.

    rifflemix does not list these classes.
    """

    class MyOPT(transformers.OPTForCausalLM):
        pass

    config = transformers.OPTConfig(**SMALL, ffn_dim=24, word_embed_proj_dim=16)
    torch.manual_seed(2)
    model, inputs = MyOPT(config).eval(), inputs_of("gpt2")
    before = outputs_of(model, inputs)
    assert replace_attention(model, "softmax").replaced == ["model.decoder.layers.0.self_attn"]
    torch.testing.assert_close(outputs_of(model, inputs), before, **EXACT)


@pytest.mark.parametrize(
    ("name", "mixer", "implementation"),
    [
        ("bert", "tssa", "sdpa"),
        ("bert", "linear", "eager"),
        ("distilbert", "linear", "sdpa"),
        ("albert", "linear", "sdpa"),
        ("gpt2", "tssa", "sdpa"),
        ("gpt2", "local", "eager"),
    ],
)
def test_padding_does_not_change_outputs(name: str, mixer: str, implementation: str) -> None:
    model, inputs = swap(name, mixer, implementation), inputs_of(name)
    padded = outputs_of(model, inputs)
    for row, length in enumerate((11, 7, 10)):
        alone = {key: value[row : row + 1, :length] for key, value in inputs.items()}
        expected = outputs_of(model, alone)
        torch.testing.assert_close(padded[row : row + 1, :length], expected, **EXACT)


@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_flex_attention(causal: bool) -> None:
    keep = torch.arange(9) >= torch.tensor([[0], [4]])

    def attends(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return keep[b, k] & ((q >= k) | (not causal))

    mask = create_block_mask(attends, 2, None, 9, 9, device="cpu")
    found = padding_of(mask, torch.zeros(2, 9, 4), causal=causal)
    assert found is not None
    assert torch.equal(found, ~keep)


def test_causal_models_do_not_depend_on_later_tokens() -> None:
    model = swap("gpt2", "tssa")
    ids = inputs_of("gpt2", padding=False)["input_ids"]
    changed = ids.clone()
    changed[:, 6:] = 3
    before, after = (outputs_of(model, {"input_ids": x}) for x in (ids, changed))
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


def test_bidirectional_mixer_is_refused_in_a_causal_model() -> None:
    with pytest.raises(rm.InputError, match=r"mixer: .*causal.*transformer\.h\.0\.attn, got fnet"):
        replace_attention(build("gpt2"), "fnet")


def test_encoder_that_is_causal_only_in_its_call() -> None:
    """Check CLIP's text encoder.

    Its attention is not marked as causal and has no mask without padding.
    """
    config = transformers.CLIPTextConfig(**SMALL, intermediate_size=24, eos_token_id=2)
    torch.manual_seed(2)
    model, ids = transformers.CLIPTextModel(config).eval(), torch.randint(3, VOCABULARY, (2, 7))
    before = outputs_of(model, {"input_ids": ids})
    replace_attention(model, "softmax", causal=True)
    torch.testing.assert_close(outputs_of(model, {"input_ids": ids}), before, **EXACT)
    restore_attention(model)
    replace_attention(model, "softmax")
    with pytest.raises(rm.InputError, match=r"mask: .*causal=True"):
        model(ids)


def test_pooling_attention_is_not_replaced() -> None:
    """Check SigLIP's image pooling: a learned query reads the tokens (no self-attention)."""
    config = transformers.SiglipVisionConfig(
        **{k: v for k, v in SMALL.items() if "v" not in k}, image_size=8, patch_size=4
    )
    torch.manual_seed(2)
    model, image = transformers.SiglipVisionModel(config).eval(), torch.randn(2, 3, 8, 8)
    before = model(image).pooler_output
    assert replace_attention(model, "softmax").replaced == ["encoder.layers.0.self_attn"]
    torch.testing.assert_close(model(image).pooler_output, before, **EXACT)
