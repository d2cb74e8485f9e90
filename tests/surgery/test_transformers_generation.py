"""Generation with swapped transformers: the same result with and without a cache."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tiny_transformers import VOCABULARY, build, transformers
from torch import Tensor

import rifflemix as rm
from rifflemix.surgery import replace_attention

STREAMING = [name for name in rm.list_mixers() if rm.mixer_card(name).streaming]
QUICK = ("softmax", "tssa", "local", "mega", "s5")
HOSTS = ("gpt2", "llama")
PAIRS = [
    *((host, mixer) for host in HOSTS for mixer in QUICK),
    *(  # one host for each other mixer, in turn
        pytest.param(HOSTS[turn % len(HOSTS)], mixer, marks=pytest.mark.slow)
        for turn, mixer in enumerate(name for name in STREAMING if name not in QUICK)
    ),
]
GENERATION_OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "three beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "sampled": {"do_sample": True, "top_k": 5},
}


def swap(host: str, mixer: str, **options: Any) -> Any:
    model = build(host)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about lost rotary positions
        replace_attention(model, mixer, **options)
    return model


def prompts() -> dict[str, Tensor]:
    """Return three prompts of 5, 3 and 1 tokens with left padding."""
    torch.manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (3, 5))
    mask = torch.ones_like(ids)
    mask[1, :2] = mask[2, :4] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def write(model: Any, inputs: dict[str, Tensor], **options: Any) -> Any:
    torch.manual_seed(9)
    return model.generate(
        **inputs,
        max_new_tokens=9,
        min_new_tokens=9,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )


@pytest.mark.parametrize(("host", "mixer"), PAIRS)
def test_cache_does_not_change_the_output(host: str, mixer: str) -> None:
    """Check prompts that cross blocks, chunks and windows of 3."""
    options = {"local": {"block_size": 3}, "mega_chunk": {"chunk_size": 3}, "spade": {"radius": 3}}
    model = swap(host, mixer, mixer_options=options.get(mixer))
    for way in GENERATION_OPTIONS.values():
        cached = write(model, prompts(), use_cache=True, **way)
        whole = write(model, prompts(), use_cache=False, **way)
        assert torch.equal(cached.sequences, whole.sequences)
        assert len(cached.logits) == 9
        for some, all_ in zip(cached.logits, whole.logits, strict=True):
            torch.testing.assert_close(some, all_, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("host", HOSTS)
def test_left_padding_does_not_change_the_output(host: str) -> None:
    model, inputs = swap(host, "tssa"), prompts()
    together = write(model, inputs, do_sample=False).sequences[:, 5:]
    for row, length in enumerate((5, 3, 1)):
        alone = {name: value[row : row + 1, -length:] for name, value in inputs.items()}
        assert torch.equal(
            write(model, alone, do_sample=False).sequences[0, length:], together[row]
        )


def test_partly_replaced_model_generates() -> None:
    for layers in ([0], [1]):
        model = swap("gpt2", "linear", layers=layers)
        for way in GENERATION_OPTIONS.values():
            cached, whole = (write(model, prompts(), use_cache=use, **way) for use in (True, False))
            assert torch.equal(cached.sequences, whole.sequences)


def test_cache_is_used_and_has_constant_size() -> None:
    model = swap("gpt2", "tssa")
    found = write(model, prompts(), do_sample=False).past_key_values
    assert found.get_seq_length() == 13  # the last token has not been read
    states = [layer.state for layer in found.layers]
    assert all(state["position"].tolist() == [13, 11, 9] for state in states)
    assert sum(part.numel() for part in states[0].values()) == 3 * (8 * 2 * 2 + 2 + 1)
    found.reset()
    assert found.get_seq_length() == 0


def test_conversation_continues_with_its_cache() -> None:
    """Check several new tokens after the first ones, from the same cache."""
    model = swap("llama", "linear")
    ids = torch.randint(3, VOCABULARY, (2, 9))
    with torch.no_grad():
        first = model(ids[:, :5], use_cache=True)
        second = model(ids[:, 5:], past_key_values=first.past_key_values, use_cache=True)
        whole = model(ids, use_cache=False)
    torch.testing.assert_close(second.logits, whole.logits[:, 5:], atol=1e-5, rtol=1e-5)
    chunked = write(
        model,
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        do_sample=False,
        prefill_chunk_size=4,
    )
    assert torch.equal(
        chunked.sequences,
        write(
            model,
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            do_sample=False,
            use_cache=False,
        ).sequences,
    )


def test_chunks_of_a_prompt_that_is_padded_on_the_left() -> None:
    """Check that the first chunk needs a token of every sequence.

    The error contains a hint.
    """
    model, inputs = swap("gpt2", "tssa"), prompts()
    with pytest.raises(rm.InputError, match=r"\b2\b.*prefill_chunk_size"):
        write(model, inputs, do_sample=False, prefill_chunk_size=3)
    two = {name: value[:2] for name, value in inputs.items()}
    chunked = write(model, two, do_sample=False, prefill_chunk_size=3).sequences
    assert torch.equal(chunked, write(model, two, do_sample=False, use_cache=False).sequences)


def test_mixer_without_streaming_needs_use_cache_false() -> None:
    model, inputs = swap("gpt2", "sinkhorn"), prompts()
    with torch.no_grad():
        assert model(**inputs).logits.isfinite().all()
    with pytest.raises(rm.InputError, match="use_cache=False"):
        write(model, inputs, do_sample=False)
    assert write(model, inputs, do_sample=False, use_cache=False).sequences.shape == (3, 14)


def test_caches_without_room_for_a_state_are_refused() -> None:
    model, inputs = swap("gpt2", "tssa"), prompts()
    with pytest.raises(rm.InputError, match=r"past_key_values: .*got StaticCache"):
        write(model, inputs, do_sample=False, cache_implementation="static")
    alone = {name: value[:1] for name, value in inputs.items()}
    with pytest.raises(rm.InputError, match=r"token mixer.*attention"):
        write(model, alone, do_sample=False, prompt_lookup_num_tokens=2)
    past = build("gpt2")(**inputs).past_key_values
    token = {"input_ids": torch.full((3, 1), 5)}
    with pytest.raises(rm.InputError, match=r"past_key_values: .*got keys"):
        model(**token, past_key_values=past)
    past = model(**inputs).past_key_values
    with pytest.raises(rm.InputError, match=r"past_key_values: .*restore_attention"):
        build("gpt2")(**token, past_key_values=past)


def test_cache_layer_shared_with_another_module_is_refused() -> None:
    """Check FalconH1: a state-space model shares the cache layer."""
    config = transformers.FalconH1Config(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        mamba_d_ssm=16,
        mamba_n_heads=2,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_chunk_size=8,
    )
    model = transformers.FalconH1ForCausalLM(config).eval()
    with pytest.warns(UserWarning, match="rotary"):
        replace_attention(model, "tssa")
    with pytest.raises(
        rm.InputError, match=r"got LinearAttentionAndFullAttentionLayer.*use_cache=False"
    ):
        write(model, prompts(), do_sample=False)
    assert write(model, prompts(), do_sample=False, use_cache=False).sequences.shape == (3, 14)


def test_a_mask_without_the_tokens_in_the_cache_is_refused() -> None:
    """Check MiniMax: it counts cached tokens in a layer without keys."""
    config = transformers.MiniMaxConfig(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        num_local_experts=2,
        head_dim=8,
    )
    model = transformers.MiniMaxForCausalLM(config).eval()
    with pytest.warns(UserWarning, match="rotary"):
        replace_attention(model, "linear")
    call = {"attention_mask": torch.tensor([[0, 1, 1, 1], [1] * 4]), "max_new_tokens": 3}
    ids = torch.randint(3, 37, (2, 4))
    with pytest.raises(rm.InputError, match=r"\b5\b.*\b1\b.*False"):
        model.generate(ids, **call)
    assert model.generate(ids, use_cache=False, **call).shape == (2, 7)


def test_padding_after_the_prompt_is_refused() -> None:
    model, inputs = swap("gpt2", "tssa"), prompts()
    past = model(**inputs).past_key_values
    mask = torch.cat((inputs["attention_mask"], torch.tensor([[1, 1], [0, 1], [1, 1]])), 1)
    with pytest.raises(rm.InputError, match=r"mask: .*padding"):
        model(torch.full((3, 2), 5), attention_mask=mask, past_key_values=past)


def another_hidden(mask: Tensor) -> Tensor:
    return mask.index_fill(1, torch.tensor([4]), 0)


def one_shown(mask: Tensor) -> Tensor:
    return torch.ones_like(mask)


def a_window(mask: Tensor) -> Tensor:
    """Show each query its last three keys (B, 1, 2, K).

    The mask ignores padding.
    """
    keys = mask.shape[1]
    band = torch.ones(keys, keys, dtype=torch.bool).tril().triu(-2)
    return band[-2:].expand(len(mask), 1, 2, keys)


def other_queries(mask: Tensor) -> Tensor:
    """Hide the last prompt token from the first new token.

    The mask is (B, 1, 2, K).
    """
    attend = (mask != 0)[:, None, None].repeat(1, 1, 2, 1)
    attend[..., 0, -1] = attend[..., 0, -3] = False
    return attend


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (another_hidden, "mask: .*cache.*use_cache=False"),
        (one_shown, "mask: .*cache.*use_cache=False"),
        (lambda mask: None, "mask: .*cache.*use_cache=False"),
        (a_window, "mask: .*query"),
        (other_queries, "mask: .*query"),
    ],
)
def test_masks_that_change_earlier_tokens_are_refused(changed: Any, says: str) -> None:
    model, inputs = swap("llama", "softmax"), prompts()
    past = model(**inputs).past_key_values
    mask = torch.cat((inputs["attention_mask"], torch.ones(3, 2, dtype=torch.int64)), 1)
    with pytest.raises(rm.InputError, match=says):
        model(torch.full((3, 2), 5), attention_mask=changed(mask), past_key_values=past)


def test_padded_conversation_continues_with_its_cache() -> None:
    model, inputs = swap("llama", "softmax"), prompts()
    mask = torch.cat((inputs["attention_mask"], torch.ones(3, 4, dtype=torch.int64)), 1)
    ids = torch.cat((inputs["input_ids"], torch.full((3, 4), 5)), 1)
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, use_cache=False).logits
        past = model(**inputs).past_key_values
        for end in (7, 9):
            part = ids[:, end - 2 : end]
            found = model(part, attention_mask=mask[:, :end], past_key_values=past).logits
            torch.testing.assert_close(found, whole[:, end - 2 : end], atol=1e-5, rtol=1e-5)


def test_generation_ends_at_max_length() -> None:
    model = swap("llama", "linear", max_length=7)
    with pytest.raises(rm.InputError, match="max_length = 7"):
        write(model, {name: value[:1] for name, value in prompts().items()}, do_sample=False)


def test_cache_samples_are_repeated_and_selected() -> None:
    model = swap("gpt2", "softmax")
    inputs = prompts()
    with torch.no_grad():
        past = model(**inputs).past_key_values
        past.batch_repeat_interleave(2)
        past.batch_select_indices(torch.tensor([0, 3, 5]))
        mask = torch.cat((inputs["attention_mask"], torch.ones(3, 1, dtype=torch.int64)), 1)
        token = torch.full((3, 1), 5)
        position = mask.sum(1, keepdim=True) - 1
        y = model(token, attention_mask=mask, position_ids=position, past_key_values=past).logits
        again = model(**inputs).past_key_values
        expected = model(
            token, attention_mask=mask, position_ids=position, past_key_values=again
        ).logits
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("mixer", ["softmax", "tssa"])
def test_analyses_trace_the_layers_that_fill_a_cache(mixer: str) -> None:
    model, inputs = swap("gpt2", mixer), prompts()
    (calls,) = rm.analysis.trace(model, [inputs])
    (uncached,) = rm.analysis.trace(model, [{**inputs, "use_cache": False}])
    assert [call.name for call in calls] == [call.name for call in uncached]
    for call, expected in zip(calls, uncached, strict=True):
        assert torch.equal(call.key_padding_mask, inputs["attention_mask"] == 0)
        torch.testing.assert_close(call.y, expected.y, rtol=1e-4, atol=1e-5)
