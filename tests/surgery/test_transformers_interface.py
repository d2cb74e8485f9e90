"""Mixers as `attn_implementation` of transformers: values, masks, caches and errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_transformers import build, inputs_of, outputs_of, transformers
from torch import Tensor

import rifflemix as rm
from rifflemix.surgery.hub import attention as hub_attention

rm.register_hf()
OPERATORS = [
    name.removeprefix("rifflemix_")
    for name in transformers.AttentionInterface().valid_keys()
    if name.startswith("rifflemix_")
]
CAUSAL = [name for name in OPERATORS if rm.mixer_card(name).causal]


def with_mixer(host: str, mixer: str, **changed: Any) -> Any:
    return build(host, f"rifflemix_{mixer}", **changed)


def test_operators_are_the_mixers_without_weights() -> None:
    assert set(OPERATORS) >= {"softmax", "linear", "local", "butterfly", "cosformer"}
    assert not set(OPERATORS) & {"tssa", "csp", "performer", "sinkhorn", "linformer", "longformer"}
    masks = transformers.masking_utils.AttentionMaskInterface().valid_keys()
    assert {f"rifflemix_{name}" for name in OPERATORS} <= set(masks)


@pytest.mark.parametrize("host", ["bert", "gpt2"])
@pytest.mark.parametrize("mixer", OPERATORS)
def test_outputs_equal_the_swapped_model(host: str, mixer: str) -> None:
    """Check equal outputs: `replace_attention` copies all projections of these hosts."""
    if host == "gpt2" and mixer not in CAUSAL:
        return
    swapped, inputs = build(host), inputs_of(host)
    rm.replace_attention(swapped, mixer)
    found = outputs_of(with_mixer(host, mixer), inputs)
    torch.testing.assert_close(found, outputs_of(swapped, inputs), atol=1e-5, rtol=1e-4)
    assert (found - outputs_of(build(host), inputs)).abs().max() > 1e-2 or mixer == "softmax"


@pytest.mark.parametrize("host", ["bert", "gpt2", "llama", "qwen3"])
def test_softmax_equals_the_attention_of_the_model(host: str) -> None:
    inputs = inputs_of(host)
    found, expected = (outputs_of(m, inputs) for m in (with_mixer(host, "softmax"), build(host)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("host", "mixer"), [("bert", "linear"), ("bert", "local"), ("llama", "linear")]
)
def test_padding_does_not_change_valid_tokens(host: str, mixer: str) -> None:
    model, inputs = with_mixer(host, mixer), inputs_of(host)
    expected = outputs_of(model, inputs)
    mask = inputs["attention_mask"]
    other = torch.where(mask == 0, 36 - inputs["input_ids"], inputs["input_ids"])
    assert not torch.equal(other, inputs["input_ids"])
    torch.testing.assert_close(outputs_of(model, {**inputs, "input_ids": other}), expected)
    alone = outputs_of(model, {"input_ids": inputs["input_ids"][1:2, :7]})
    torch.testing.assert_close(expected[1:2, :7], alone, atol=1e-5, rtol=1e-4)


def left_padded() -> dict[str, Tensor]:
    inputs = inputs_of("llama", padding=False)
    mask = inputs["attention_mask"]
    mask[1, :4] = mask[2, :1] = 0
    return inputs


@pytest.mark.parametrize("host", ["llama", "gpt2"])
@pytest.mark.parametrize("mixer", CAUSAL)
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_equals_generation_without(
    host: str, mixer: str, beams: int
) -> None:
    model, inputs = with_mixer(host, mixer), left_padded()
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "num_beams": beams}
    expected = model.generate(**inputs, **options, use_cache=False)
    assert torch.equal(model.generate(**inputs, **options), expected)


@pytest.mark.parametrize("mixer", CAUSAL)
def test_no_output_depends_on_later_tokens(mixer: str) -> None:
    model = with_mixer("llama", mixer)
    ids = inputs_of("llama", padding=False)["input_ids"]
    whole = outputs_of(model, {"input_ids": ids})
    for first in (1, 6, 10):
        changed = ids.clone()
        changed[:, first:] = 36 - changed[:, first:]
        found = outputs_of(model, {"input_ids": changed})
        torch.testing.assert_close(found[:, :first], whole[:, :first])


def test_state_dict_is_not_changed() -> None:
    model, inputs = with_mixer("bert", "butterfly"), inputs_of("bert")
    before = list(model.state_dict())
    expected = outputs_of(model, inputs)
    assert list(model.state_dict()) == before
    assert torch.equal(outputs_of(copy.deepcopy(model), inputs), expected)
    model.set_attn_implementation("sdpa")
    assert torch.equal(outputs_of(model, inputs), outputs_of(build("bert"), inputs))


def test_no_random_number_is_drawn() -> None:
    model, inputs = with_mixer("bert", "linear"), inputs_of("bert")
    before = torch.get_rng_state()
    rm.register_hf()
    outputs_of(model, inputs)
    assert torch.equal(torch.get_rng_state(), before)


def test_training_drops_weights() -> None:
    model = with_mixer("bert", "softmax", attention_probs_dropout_prob=0.5)
    model.train()
    inputs = inputs_of("bert")
    a, b = (model(**inputs)[0] for _ in range(2))
    assert not torch.equal(a, b)
    a.sum().backward()
    assert model.encoder.layer[0].attention.self.query.weight.grad.abs().max() > 0
    model.eval()
    assert torch.equal(outputs_of(model, inputs), outputs_of(model, inputs))


IDS = torch.arange(3, 11)[None]
REFUSED: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], str]] = {
    "two-sided": ("llama", "butterfly", {}, {}, "got butterfly"),
    "packed": (
        "llama",
        "linear",
        {},
        {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]), "use_cache": False},
        "mask: .*packed",
    ),
    "packed by their ends": (
        "llama",
        "linear",
        {},
        {"cu_seq_lens_q": torch.tensor([0, 4, 8]), "use_cache": False},
        "cu_seq_lens_q: .*None",
    ),
    "window": ("mistral", "linear", {"sliding_window": 4}, {}, "mask: .*window"),
    "weights": ("bert", "linear", {}, {"output_attentions": True}, "output_attentions: .*got True"),
    "no padding alone": (
        "bert",
        "linear",
        {},
        {"attention_mask": torch.eye(8, dtype=torch.bool)[None, None]},
        "mask: .*padding",
    ),
    "empty": (
        "bert",
        "linear",
        {},
        {"attention_mask": torch.zeros(1, 8, dtype=torch.int64)},
        r"mask: .*\bsequence\b",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_lost_settings_are_refused(case: str) -> None:
    host, mixer, changed, inputs, says = REFUSED[case]
    model = with_mixer(host, mixer, **changed)
    with pytest.raises(rm.InputError, match=says) as caught:
        model(input_ids=IDS, **inputs)
    assert "\n" not in str(caught.value)


def test_other_sequences_and_fixed_caches_are_refused() -> None:
    whisper = build("whisper", "rifflemix_linear")
    with pytest.raises(rm.InputError, match="got WhisperAttention"):
        whisper(**inputs_of("whisper"))
    llama = with_mixer("llama", "linear")
    with pytest.raises(rm.InputError, match=r"past_key_values: .*got 10"):
        llama.generate(IDS, max_new_tokens=3, cache_implementation="static")


def _seq2seq(kind: str, **others: Any) -> Any:
    sizes = {
        f"{part}_{name}": size
        for part in ("encoder", "decoder")
        for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 24))
    }
    config = getattr(transformers, f"{kind}Config")(vocab_size=37, d_model=16, **sizes, **others)
    return getattr(transformers, f"{kind}Model")(config).eval()


def test_mask_of_another_sequence_is_refused() -> None:
    bart = _seq2seq("Bart", max_position_embeddings=24)
    bart.set_attn_implementation("rifflemix_linear")
    ids = torch.randint(3, 37, (2, 9))
    with pytest.raises(rm.InputError, match=r"attn_implementation: .*\b7\b.*replace_attention"):
        bart(ids, attention_mask=torch.ones_like(ids), decoder_input_ids=ids[:, :7])


def test_layers_with_different_settings_need_an_index() -> None:
    assert outputs_of(build("vit", "rifflemix_linear"), inputs_of("vit")).isfinite().all()
    with pytest.raises(rm.InputError, match=r"layer_idx.*got ViTAttention"):
        outputs_of(build("vit", "rifflemix_butterfly"), inputs_of("vit"))


@pytest.mark.parametrize("kind", ["Bloom", "CodeGen", "GPTNeoXJapanese", "MegatronBert"])
def test_custom_attention_is_refused(kind: str) -> None:
    """Check attention that would add the masks to its scores.

    Without padding there is no mask, so this attention would see later tokens.
    """
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "rotary_dim": 4}
    config = getattr(transformers, f"{kind}Config")(vocab_size=37, **sizes)
    model_class = getattr(transformers, f"{kind}Model")
    model = model_class._from_config(config, attn_implementation="rifflemix_linear").eval()
    with pytest.raises(rm.InputError, match=f"attn_implementation: .*{kind}Config"):
        model(torch.randint(3, 37, (2, 5)))


def test_custom_attention_in_one_part_is_refused() -> None:
    config = transformers.GitConfig(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        vision_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    )
    pegasus = _seq2seq("BigBirdPegasus", attention_type="original_full", max_position_embeddings=24)
    ids = torch.randint(3, 37, (2, 5))
    for model in (transformers.GitModel(config), pegasus):
        model.set_attn_implementation("rifflemix_linear")
        with pytest.raises(
            rm.InputError, match=r"attn_implementation: .*got .*Config.*replace_attention"
        ):
            model(ids, attention_mask=torch.ones_like(ids))


def test_attention_that_is_causal_only_by_its_mask_is_refused() -> None:
    """Check a mask that marks padding but does not hide later tokens."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Aimv2TextConfig(vocab_size=37, intermediate_size=32, **sizes)
    model = transformers.Aimv2TextModel._from_config(
        config, attn_implementation="rifflemix_linear"
    ).eval()
    tokens = torch.randint(3, 37, (2, 5))
    with pytest.raises(rm.InputError, match="Aimv2TextConfig"):
        model(tokens, attention_mask=torch.ones_like(tokens))


def test_text_with_a_bidirectional_prefix_is_refused() -> None:
    """Check PaliGemma: its attention is bidirectional, but its mask is causal."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": 37, "intermediate_size": 24, "head_dim": 8, "num_key_value_heads": 1}
    config = transformers.PaliGemmaConfig(
        text_config={"model_type": "gemma"} | text | sizes,
        vision_config={"image_size": 8, "patch_size": 4} | sizes,
    )
    model = transformers.PaliGemmaModel(config).eval()
    model.set_attn_implementation("rifflemix_linear")
    with pytest.raises(rm.InputError, match="GemmaConfig"):
        model(torch.randint(3, 36, (2, 5)))


@pytest.mark.parametrize("kind", sorted(hub_attention._REFUSED))
def test_attention_that_reads_its_mask_is_refused(kind: str) -> None:
    """Check attention that cannot use padding (B, K).

    It would read padding as scores, or would not select its keys.
    """
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    config = transformers.CONFIG_MAPPING[kind]()
    with pytest.raises(rm.InputError, match=r"attn_implementation: .*Config.*replace_attention"):
        hub_attention.padding_alone(2, 5, 5, config=config)


def test_doge_is_refused_before_it_reads_the_mask() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.DogeConfig(vocab_size=37, intermediate_size=32, **sizes)
    model = transformers.DogeModel._from_config(config, attn_implementation="rifflemix_linear")
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with pytest.raises(rm.InputError, match="DogeConfig"):
        model.eval()(torch.randint(3, 37, (2, 5)), attention_mask=mask)
