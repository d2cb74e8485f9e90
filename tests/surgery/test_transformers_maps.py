"""transformers attention with fused, renamed or scaled projections."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_transformers import HEADS, VOCABULARY, inputs_of, outputs_of, transformers
from torch import Tensor, nn

import rifflemix as rm
from perturbed import perturb
from rifflemix.surgery import replace_attention, restore_attention
from rifflemix.surgery.sites import find_sites

EXACT = {"atol": 2e-5, "rtol": 1e-5}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER = {**SIZES, "attention_dropout": 0.0}
IMAGES = {**SIZES, "image_size": 8, "patch_size": 4}
SHARED = {"num_attention_heads": 4, "num_key_value_heads": 2}
FULL = {"layer_types": ["full_attention"] * 2}


def model_of(kind: str, config: str | None = None, **settings: Any) -> Any:
    """Build a transformers model with random, nonzero weights."""
    torch.manual_seed(5)
    made = getattr(transformers, f"{config or kind}Config")(**settings)
    model = getattr(transformers, kind if config else f"{kind}Model")(made).eval()
    return perturb(model, 0.1)


def gpt_neo(**changed: Any) -> Any:
    sizes = {**SIZES, "num_layers": 2, "num_heads": HEADS, "attention_types": [[["global"], 2]]}
    del sizes["num_hidden_layers"], sizes["num_attention_heads"]
    return model_of("GPTNeo", **{**sizes, **changed})


def gpt_bigcode(**changed: Any) -> Any:
    names = {"n_embd": 16, "n_layer": 2, "n_head": HEADS, "n_positions": 24, "n_inner": 24}
    return model_of("GPTBigCode", vocab_size=VOCABULARY, **names, **changed)


def xglm() -> Any:
    names = {"d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": HEADS}
    return model_of("XGLM", vocab_size=VOCABULARY, max_position_embeddings=24, **names)


# Several heads with several channels each, so that different layouts of a fused projection differ.
HOSTS: dict[str, Callable[[], Any]] = {
    "esm": lambda: model_of("Esm", **SIZES, token_dropout=False),
    "esm, rotary": lambda: model_of("Esm", **SIZES, position_embedding_type="rotary"),
    "gpt_bigcode": gpt_bigcode,
    "gpt_bigcode, a key for each head": lambda: gpt_bigcode(multi_query=False),
    "gpt_neo": gpt_neo,
    "gpt_neox": lambda: model_of("GPTNeoX", **DECODER, attention_bias=False),
    "gptj": lambda: model_of(
        "GPTJ", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=HEADS, rotary_dim=4
    ),
    "phi": lambda: model_of("Phi", **DECODER),
    "phi, norms": lambda: model_of("Phi", **DECODER, qk_layernorm=True),
    "phi3": lambda: model_of("Phi3", **DECODER),
    "phi3, shared keys": lambda: model_of("Phi3", **{**DECODER, **SHARED}),
    "lfm2": lambda: model_of("Lfm2", **SIZES, num_key_value_heads=1, **FULL),
    "modernbert": lambda: model_of("ModernBert", **DECODER, **FULL),
    "modernbert_decoder": lambda: model_of("ModernBertDecoder", **DECODER, **FULL),
    "olmo": lambda: model_of("Olmo", **DECODER, clip_qkv=100.0),
    "xglm": xglm,
    "blip": lambda: model_of("Blip2VisionModel", "Blip2Vision", **IMAGES),
    "internvl": lambda: model_of("InternVLVisionModel", "InternVLVision", **IMAGES),
    "yolos": lambda: model_of("Yolos", **{**IMAGES, "image_size": [8, 8]}, num_detection_tokens=3),
    "videomae": lambda: model_of("VideoMAE", **IMAGES, num_frames=2),
}
CAUSAL = {
    *("gpt_bigcode", "gpt_bigcode, a key for each head", "gpt_neo", "gpt_neox", "gptj", "lfm2"),
    *("modernbert_decoder", "olmo", "phi", "phi, norms", "phi3", "phi3, shared keys", "xglm"),
}
NOTHING = {
    *("blip", "esm", "gpt_bigcode", "gpt_bigcode, a key for each head", "gpt_neo", "internvl"),
    *("videomae", "xglm", "yolos"),
}
MORE = {
    "lfm2": ("norms",),
    "olmo": ("clip_qkv",),
    "phi, norms": ("norms",),
}


def inputs_for(name: str, model: Any) -> dict[str, Tensor]:
    """Return a batch with one position for all tokens.

    Rotary positions have no effect then.
    """
    torch.manual_seed(6)
    if name == "videomae":
        return {"pixel_values": torch.randn(2, 2, 3, 8, 8)}
    if not hasattr(model.config, "vocab_size") or "image_size" in vars(model.config):
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    inputs = inputs_of("gpt2")
    return {**inputs, "position_ids": torch.zeros_like(inputs["input_ids"])}


def without_norms(model: nn.Module) -> None:
    for module in model.modules():
        for norm in ("q_layernorm", "k_layernorm"):
            if hasattr(module, norm):
                setattr(module, norm, nn.Identity())


@pytest.mark.filterwarnings(r"ignore:\w+Attention: ")
@pytest.mark.parametrize("name", HOSTS)
def test_softmax_with_copied_weights_equals_the_original(name: str) -> None:
    model = HOSTS[name]()
    without_norms(model)
    inputs = inputs_for(name, model)
    before = outputs_of(model, inputs)
    assert len(replace_attention(model, "softmax").replaced) == 2
    torch.testing.assert_close(outputs_of(model, inputs), before, **EXACT)
    restore_attention(model)
    assert torch.equal(outputs_of(model, inputs), before)


@pytest.mark.parametrize("name", HOSTS)
def test_causal_masking_is_detected(name: str) -> None:
    sites = find_sites(HOSTS[name]())
    assert {site.host.causal for site in sites} == {name in CAUSAL}


@pytest.mark.parametrize("name", HOSTS)
def test_lost_settings_cause_a_warning(name: str) -> None:
    warned = {warning for site in find_sites(HOSTS[name]()) for warning in site.host.warnings}
    expected = () if name in NOTHING else ("rotary", *MORE.get(name, ()))
    assert len(warned) == len(expected)
    for words in expected:
        assert any(words in warning for warning in warned)


GRANITE = {"layer_types": ["attention"] * 2, "mamba_n_heads": 4}


@pytest.mark.parametrize(
    ("kind", "changed", "turned"),
    [
        ("Cohere2", {}, []),
        ("Exaone4", {"sliding_window": 4}, []),
        ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}, [0, 1]),
        ("GraniteMoeHybrid", GRANITE, []),
        ("GraniteMoeHybrid", {**GRANITE, "position_embedding_type": "rope"}, [0, 1]),
    ],
)
def test_layers_without_rotary_positions_cause_no_warning(
    kind: str, changed: dict[str, Any], turned: list[int]
) -> None:
    changed = {"layer_types": ["sliding_attention", "full_attention"]} | changed
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = getattr(transformers, f"{kind}Config")(vocab_size=37, **sizes, **heads, **changed)
    sites = find_sites(getattr(transformers, f"{kind}Model")(config))
    warned = [i for i, site in enumerate(sites) if "rotary" in " ".join(site.host.warnings)]
    assert warned == turned


@pytest.mark.filterwarnings(r"ignore:\w+Attention: ")
@pytest.mark.parametrize("name", ["gpt_neox", "gpt_neo", "gpt_bigcode", "phi3", "xglm"])
def test_cache_under_any_name_stores_the_state(name: str) -> None:
    model = HOSTS[name]()
    replace_attention(model, "tssa")
    ids = inputs_of("gpt2", padding=False)["input_ids"]
    with torch.no_grad():
        whole = model(ids, use_cache=False)[0]
        first = model(ids[:, :8], use_cache=True)
        second = model(ids[:, 8:], past_key_values=first.past_key_values, use_cache=True)
    found = torch.cat([first[0], second[0]], 1)
    torch.testing.assert_close(found, whole, **EXACT)


def test_window_attention_is_refused_in_its_layers() -> None:
    """Check that layers with full attention in the same model are replaced."""
    mixed = gpt_neo(attention_types=[[["global", "local"], 1]], window_size=5)
    report = replace_attention(mixed, "tssa")
    assert report.replaced == ["h.0.attn.attention"]
    name, reason = report.skipped[0]
    assert name == "h.1.attn.attention"
    assert re.search(r"window.*\b5\b", reason)


def qwen2_moe(**changed: Any) -> Any:
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24}
    sizes = {**SIZES, **experts, "shared_expert_intermediate_size": 24, "num_key_value_heads": 1}
    return model_of("Qwen2Moe", **sizes, **changed)


@pytest.mark.filterwarnings(r"ignore:\w+Attention: ")
def test_layer_type_determines_the_window() -> None:
    """Check that window 0 means no window.

    Full attention ignores the window of the config.
    """
    model = qwen2_moe()
    assert model.config.sliding_window == 0
    assert len(replace_attention(model, "tssa").replaced) == 2
    kinds = ["full_attention", "sliding_attention"]
    mixed = qwen2_moe(use_sliding_window=True, sliding_window=8, layer_types=kinds)
    report = replace_attention(mixed, "tssa")
    assert report.replaced == ["layers.0.self_attn"]
    assert [name for name, _ in report.skipped] == ["layers.1.self_attn"]
    assert re.search(r"window.*\b8\b", report.skipped[0][1])


@pytest.mark.filterwarnings(r"ignore:\w+Attention: ")
def test_chunked_attention_is_refused() -> None:
    """Check Llama 4: three in four layers see a chunk.

    The masks of short texts do not show it.
    """
    more = {"intermediate_size_mlp": 24, "num_local_experts": 2, "num_key_value_heads": 1}
    kinds = ["chunked_attention", "full_attention"]
    config = transformers.Llama4TextConfig(
        **SIZES, **more, head_dim=8, attention_chunk_size=4, layer_types=kinds
    )
    report = replace_attention(transformers.Llama4TextModel(config), "tssa")
    assert report.replaced == ["layers.1.self_attn"]
    name, reason = report.skipped[0]
    assert name == "layers.0.self_attn"
    assert re.search(r"chunk.*\b4\b", reason)


def test_dropout_after_the_output_projection_is_kept() -> None:
    model = model_of("InternVLVisionModel", "InternVLVision", **IMAGES, projection_dropout=0.5)
    replace_attention(model, "identity")
    attention = model.encoder.layer[0].attention.train()
    y, _ = attention(torch.ones(20, 5, 16))
    assert set(y.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("kind", ["UMT5", "MPNet"])
def test_relative_biases_are_refused(kind: str) -> None:
    names = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    sizes = {"vocab_size": 37, **names} if kind == "UMT5" else SIZES
    with pytest.raises(rm.InputError, match=r"(?i)attention.*: .*position"):
        replace_attention(model_of(kind, **sizes), "softmax")


def test_attention_without_an_adapter_is_named() -> None:
    sizes = {k: v for k, v in SIZES.items() if k != "num_attention_heads"}
    model = model_of("Bloom", **sizes, n_head=2)
    found = r"got h\.0\.self_attention \(BloomAttention\)"
    with pytest.raises(rm.InputError, match=found):
        replace_attention(model, "softmax")
    with pytest.raises(rm.InputError, match="register_adapter"):
        replace_attention(nn.Sequential(nn.Linear(2, 2)), "softmax")


def test_warnings_contain_each_fact_once() -> None:
    model = HOSTS["olmo"]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replace_attention(model, "tssa")
    assert len(caught) == 2
