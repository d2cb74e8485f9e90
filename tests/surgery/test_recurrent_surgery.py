"""Gated DeltaNet in place of a Llama's attention: copied projections and a constant cache."""

from __future__ import annotations

import warnings

import torch
from tiny_transformers import VOCABULARY, build

import rifflemix as rm


def test_gated_deltanet_copies_a_llama_and_generates_with_a_constant_cache() -> None:
    model = build("llama")
    attention = model.model.layers[0].self_attn
    heads = model.config.num_attention_heads
    repeats = heads // model.config.num_key_value_heads
    expected = [attention.q_proj.weight.clone()]
    for part in (attention.k_proj, attention.v_proj):  # each serves `repeats` heads
        per_head = part.weight.unflatten(0, (heads // repeats, -1))
        expected.append(per_head.repeat_interleave(repeats, 0).flatten(0, 1))
    output = attention.o_proj.weight.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about lost rotary positions
        rm.replace_attention(model, "gated_deltanet", init="copy")
    mixer = next(part for part in model.modules() if isinstance(part, rm.TokenMixer))
    assert torch.equal(mixer.qkv.weight, torch.cat(expected))
    assert torch.equal(mixer.proj.weight, output)
    ids = torch.randint(3, VOCABULARY, (2, 5))
    sizes = []
    for count in (2, 12):
        found = model.generate(
            ids, max_new_tokens=count, min_new_tokens=count, return_dict_in_generate=True
        )
        layers = found.past_key_values.layers
        sizes.append([part.shape for layer in layers for part in layer.state.values()])
    assert sizes[0] == sizes[1]
