"""Attention of x-transformers: values, masks, generation and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm

xt = pytest.importorskip("x_transformers", reason="x_transformers is not installed")
DIM, HEADS, LENGTH = 16, 4, 24


def build(kind: str = "Encoder", **options: Any) -> Any:
    torch.manual_seed(0)
    layers = getattr(xt, kind)(
        dim=DIM, depth=2, heads=HEADS, attn_dim_head=options.pop("dim_head", 4), **options
    )
    model = xt.TransformerWrapper(num_tokens=19, max_seq_len=LENGTH, attn_layers=layers).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


IDS = torch.randint(1, 19, (3, 11), generator=torch.Generator().manual_seed(1))
KEEP = torch.ones(3, 11, dtype=torch.bool)
KEEP[1, 7:] = KEEP[2, 9:] = False


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
@pytest.mark.parametrize(
    "options",
    [{}, {"attn_flash": True}, {"dim_head": 6}, {"attn_kv_heads": 2}, {"attn_one_kv_head": True}],
    ids=["plain", "flash", "wide", "two key heads", "one key head"],
)
def test_softmax_equals_the_original(kind: str, options: dict[str, Any]) -> None:
    model = build(kind, **options)
    expected = model(IDS, mask=KEEP)
    report = rm.replace_attention(model, "softmax")
    assert report.replaced == ["attn_layers.layers.0.1", "attn_layers.layers.2.1"]
    found = model(IDS, mask=KEEP)
    torch.testing.assert_close(found[KEEP], expected[KEEP], atol=1e-4, rtol=1e-4)
    assert rm.restore_attention(model) == report.replaced
    assert torch.equal(model(IDS, mask=KEEP), expected)


@pytest.mark.parametrize("mixer", ["tssa", "csp", "linear"])
def test_padding_does_not_change_valid_tokens(mixer: str) -> None:
    model = build()
    rm.replace_attention(model, mixer)
    other = torch.where(KEEP, IDS, 19 - IDS)
    torch.testing.assert_close(model(other, mask=KEEP)[KEEP], model(IDS, mask=KEEP)[KEEP])


def test_generation_equals_an_explicit_greedy_search() -> None:
    model = build("Decoder")
    wrapper = xt.AutoregressiveWrapper(model)
    rm.replace_attention(wrapper, "tssa")
    assert not model.can_cache_kv
    expected = IDS
    for _ in range(5):
        expected = torch.cat((expected, model(expected)[:, -1:].argmax(-1)), 1)
    assert torch.equal(wrapper.generate(IDS, 5, temperature=0.0), expected[:, 11:])
    rm.restore_attention(wrapper)
    assert model.can_cache_kv


def test_cross_attention_is_not_replaced() -> None:
    model = xt.XTransformer(
        dim=DIM,
        enc_num_tokens=19,
        enc_depth=1,
        enc_heads=2,
        enc_max_seq_len=LENGTH,
        dec_num_tokens=19,
        dec_depth=1,
        dec_heads=2,
        dec_max_seq_len=LENGTH,
    )
    report = rm.replace_attention(model, "linear")
    assert len(report.replaced) == 2
    assert [reason[:15] for _, reason in report.skipped] == ["cross-attention"]
    assert model(IDS, IDS, mask=KEEP).isfinite()


def test_rotary_positions_are_warned_of() -> None:
    model = build(dim_head=16, rotary_pos_emb=True)
    with pytest.warns(UserWarning, match="rotary"):
        rm.replace_attention(model, "tssa")
    assert model(IDS).isfinite().all()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "relative bias": ({"rel_pos_bias": True}, "rel_pos"),
    "ALiBi": ({"alibi_pos_bias": True}, "rel_pos"),
    "talking heads": ({"attn_pre_talking_heads": True}, "pre_softmax_talking_heads"),
    "memory": ({"attn_num_mem_kv": 3}, "num_mem_kv, mem_k, mem_v"),
    "norm": ({"attn_qk_norm": True}, "qk_norm"),
    "top k": ({"attn_sparse_topk": 2}, "sparse_topk"),
    "sigmoid": ({"attn_sigmoid": True}, "softmax"),
    "gates": ({"attn_gate_values": True}, "to_v_gate"),
    "on attention": ({"attn_on_attn": True}, "attn_on_attn"),
    "residual": ({"residual_attn": True}, "residual_attn"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_scores_are_refused_by_name(case: str) -> None:
    options, says = REFUSED[case]
    model = build(**options)
    before = [id(module) for module in model.modules()]
    with pytest.raises(rm.InputError, match=says) as caught:
        rm.replace_attention(model, "tssa")
    assert "\n" not in str(caught.value)
    assert [id(module) for module in model.modules()] == before


BAD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "another sequence": ({"context": torch.zeros(3, 5, DIM)}, "context: .*None"),
    "bias": ({"attn_bias": torch.zeros(11, 11)}, "attn_bias: expected None"),
    "window": ({"attn_mask": torch.ones(11, 11).tril(2).triu(-2).bool()}, "mask: .*window"),
    "heads": ({"attn_mask": torch.ones(4, 11, 11).tril().bool()}, "causal"),
    "causal": ({"causal": True}, "causal"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_calls_that_lose_something_are_refused(case: str) -> None:
    model = build()
    rm.replace_attention(model, "tssa")
    arguments, says = BAD_CALLS[case]
    x: Tensor = torch.randn(3, 11, DIM)
    with pytest.raises(rm.InputError, match=says):
        model.attn_layers.layers[0][1](x, **arguments)


def test_saved_model_is_loaded_with_its_mixers(tmp_path: Any) -> None:
    model = build()
    rm.replace_attention(model, "csp")
    rm.save_swapped(model, tmp_path)
    again = rm.load_swapped(tmp_path, build())
    assert torch.equal(again(IDS, mask=KEEP), model(IDS, mask=KEEP))
