"""Weights, settings and modes that a replaced attention passes on."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from timm_style_blocks import Attention, Block, C, H, N, names, stack
from torch import nn
from torch.nn.utils import prune

import rifflemix as rm
from rifflemix.surgery import SwappedAttention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_dtype_mode_and_settings_are_copied(dtype: torch.dtype, training: bool) -> None:
    model = stack().to(dtype).train(training)
    rm.replace_attention(model, "softmax")
    for block in model:
        mixer = block.attn.mixer
        assert {p.dtype for p in block.attn.parameters()} == {dtype}
        assert mixer.dropout == 0.1
        assert block.attn.proj_drop.p == 0.2
        assert {module.training for module in block.attn.modules()} == {training}
        assert mixer.num_heads == H
    model(torch.randn(2, N, C, dtype=dtype))


@pytest.mark.parametrize("mixer", rm.list_mixers())
def test_value_and_output_projections_are_copied_if_present(mixer: str) -> None:
    model = stack(1, qkv_bias=True)
    host = model[0].attn
    report = rm.replace_attention(model, mixer, max_length=N)
    own = dict(model[0].attn.mixer.named_parameters())
    for name, source in (
        ("qkv.weight", host.qkv.weight),
        ("attention.qkv.weight", host.qkv.weight),
        ("qk.weight", host.qkv.weight[:C]),
        ("value.weight", host.qkv.weight[2 * C :]),
        ("value.bias", host.qkv.bias[2 * C :]),
        ("in_proj.weight", host.qkv.weight[2 * C :]),
        ("proj.weight", host.proj.weight),
        ("out_proj.weight", host.proj.weight),
        ("proj.bias", host.proj.bias),
    ):
        if name in own and own[name].shape == source.shape:
            assert torch.equal(own[name], source), name
            assert f"0.attn.mixer.{name}" in report.copied
    model.eval()(torch.randn(2, N, C))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_softmax_with_copied_weights_equals_the_original(bias: bool) -> None:
    model = stack(qkv_bias=bias).eval()
    x = torch.randn(3, N, C)
    expected = model(x)
    rm.replace_attention(model, "softmax")
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)


MADE_BEFORE_EACH_CALL = {
    "pruned": lambda part: prune.l1_unstructured(part, "weight", 0.5),
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("case", MADE_BEFORE_EACH_CALL)
def test_parametrized_weights_are_copied_after_loading(case: str) -> None:
    trained, model = stack(1).eval(), nn.Sequential(Block(Attention())).eval()
    for host in (trained, model):
        MADE_BEFORE_EACH_CALL[case](host[0].attn.qkv)
    model.load_state_dict(trained.state_dict())
    rm.replace_attention(model, "softmax")
    x = torch.randn(3, N, C)
    torch.testing.assert_close(model(x), trained(x), atol=1e-5, rtol=1e-5)


def test_fresh_weights_use_the_initialization_of_the_mixer() -> None:
    model = stack(1)
    report = rm.replace_attention(model, "csp", init="fresh")
    assert report.copied == []
    assert model[0].attn.mixer.value.bias is None  # csp's default, not the host's


def test_options_of_the_caller_override_copied_settings() -> None:
    model = stack(1)
    rm.replace_attention(model, "csp", mixer_options={"bias": False, "num_groups": 3})
    assert model[0].attn.mixer.value.bias is None
    assert model[0].attn.mixer.groups.count == 3


def test_restored_modules_follow_dtype_and_mode() -> None:
    model = stack(1)
    original = model[0].attn
    state = {name: value.clone() for name, value in original.state_dict().items()}
    rm.replace_attention(model, "tssa")
    model.double().eval()
    rm.restore_attention(model)
    assert model[0].attn is original
    assert not original.training
    for name, value in original.state_dict().items():
        assert torch.equal(value, state[name].double())


def test_copy_is_restored_separately() -> None:
    model = stack(2).eval()
    x = torch.randn(1, N, C)
    expected = model(x)
    rm.replace_attention(model, "tssa")
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
    rm.restore_attention(twin)
    assert torch.equal(twin(x), expected)
    assert isinstance(model[0].attn, SwappedAttention)
    assert twin[0].attn is not model[0].attn.original


def test_state_dict_round_trip() -> None:
    model, other = stack(2).eval(), stack(2).eval()
    for one in (model, other):
        rm.replace_attention(one, "tssa", init="fresh")
    other.load_state_dict(model.state_dict())
    x = torch.randn(1, N, C)
    assert torch.equal(model(x), other(x))
    assert not [key for key in model.state_dict() if "qkv" in key]


def test_shared_attention_is_replaced_by_one_mixer() -> None:
    shared = Attention()
    model = nn.Sequential(Block(shared), Block(shared))
    report = rm.replace_attention(model, "tssa")
    assert report.replaced == names(0)
    assert model[0].attn is model[1].attn
    assert report.parameters_after == sum(p.numel() for p in model.parameters())
    rm.restore_attention(model)
    assert model[0].attn is shared is model[1].attn


def test_settings_that_are_not_copied_are_noted() -> None:
    model = stack(4)
    model[0].attn.register_forward_hook(lambda *_: None)
    model[0].attn.proj.register_forward_pre_hook(lambda *_: None)
    for i in (1, 2):
        model[i].attn.requires_grad_(False)
    model[3].attn.proj.weight = model[2].attn.proj.weight
    report = rm.replace_attention(model, "softmax", dry_run=True)
    hooked, frozen, tied = (note.split(": ") for note in report.notes)
    assert hooked[0] == "0.attn"
    assert "hooks" in hooked[1]
    assert re.match(r"1\.attn\b.*\b1\b", frozen[0])
    assert "frozen" in frozen[1]
    assert re.match(r"2\.attn\b.*\b1\b", tied[0])
    assert "share" in tied[1]
    alone = rm.replace_attention(model, "softmax", layers=[3])
    assert [note.partition(":")[0] for note in alone.notes] == ["3.attn"]
    assert alone.parameters_after == sum(p.numel() for p in model.parameters())
    rest = rm.replace_attention(model, "softmax")
    assert rest.parameters_after == sum(p.numel() for p in model.parameters())
