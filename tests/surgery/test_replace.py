"""replace_attention: selection of layers, errors, reports and compiled models."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from timm_style_blocks import Attention, Block, C, H, N, names, stack
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.mixers import MixerCard, TokenMixer
from rifflemix.surgery import SwappedAttention

LAYERS = {
    "all": ("all", [0, 1, 2, 3]),
    "indices": ([0, 2], [0, 2]),
    "from the end": ((-1,), [3]),
    "tensor": (torch.tensor([1]), [1]),
    "index": (lambda i: i % 2 == 1, [1, 3]),
    "index and name": (lambda i, name: name.startswith(("0", "3")), [0, 3]),
}


@pytest.mark.parametrize("case", LAYERS)
def test_chosen_layers_are_replaced(case: str) -> None:
    layers, chosen = LAYERS[case]
    model = stack()
    report = rm.replace_attention(model, "tssa", layers=layers)
    assert report.replaced == names(*chosen)
    others = names(*(i for i in range(4) if i not in chosen))
    assert [(name, "layers" in reason) for name, reason in report.skipped] == [
        (name, True) for name in others
    ]
    for i, block in enumerate(model):
        assert isinstance(block.attn, SwappedAttention) == (i in chosen)
        if i in chosen:
            assert (block.attn.mixer.layer_index, block.attn.mixer.num_layers) == (i, 4)


def test_hybrid_stacks_in_two_calls() -> None:
    model = stack()
    rm.replace_attention(model, "tssa", layers=[0, 2])
    report = rm.replace_attention(model, "csp", layers=[1])
    kinds = [type(getattr(block.attn, "mixer", None)).__name__ for block in model]
    assert kinds == ["TSSA", "CSP", "TSSA", "NoneType"]
    assert "tssa" in report.skipped[0][1]
    with pytest.raises(rm.InputError, match="csp"):
        rm.replace_attention(model, "linear", layers=[1])
    assert rm.replace_attention(model, "linear").replaced == names(3)
    assert rm.restore_attention(model) == names(0, 1, 2, 3)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mixer": ({"mixer": "tsa"}, "tssa"),
    "no name": ({"mixer": nn.Linear(2, 2)}, "unknown mixer"),
    "option": ({"mixer_options": {"grups": 2}}, "grups"),
    "option of the host": ({"mixer_options": {"dropout": 0.5}}, "got 'dropout'"),
    "option without a name": ({"mixer_options": {1: 2}}, r"mixer_options: .*got 1\b"),
    "value": ({"mixer": "csp", "mixer_options": {"num_groups": 0}}, "num_groups"),
    "length": ({"mixer": "linformer"}, "max_length"),
    "init": ({"init": "copied"}, "copy.*got 'copied'"),
    "index": ({"layers": [4]}, r"layers: .*\b0\b.*got 4\b"),
    "layers": ({"layers": "some"}, "'all', indices"),
    "none chosen": ({"layers": lambda i: False}, "model:"),
    "causal": ({"mixer": "fnet", "causal": True}, "mixer:"),
    "causal kind": ({"causal": "yes"}, "causal"),
    "dry run": ({"dry_run": 1}, "dry_run"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_calls_do_not_change_the_model(case: str) -> None:
    arguments, says = REFUSED[case]
    model = stack()
    before = list(model.modules())
    with pytest.raises(rm.InputError, match=says):
        rm.replace_attention(model, **{"mixer": "tssa", **arguments})
    assert [id(a) for a in model.modules()] == [id(b) for b in before]


MODELS = {
    "no attention": (lambda: nn.Sequential(nn.Linear(2, 2)), "register_adapter"),
    "attention itself": (lambda: nn.MultiheadAttention(8, 2), "MultiheadAttention"),
    "no module": (lambda: "vit", "torch.nn.Module"),
    "quantised": (lambda: nn.Sequential(Block(integers(Attention()))), "quantised"),
}


def integers(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(torch.int8)
    return module


@pytest.mark.parametrize("case", MODELS)
def test_models_without_attention_are_refused(case: str) -> None:
    build, says = MODELS[case]
    with pytest.raises(rm.InputError, match=says):
        rm.replace_attention(build(), "tssa")


def test_options_are_a_dict() -> None:
    with pytest.raises(rm.InputError, match=r"mixer_options: .*got \['bias'\]"):
        rm.replace_attention(stack(), "tssa", mixer_options=["bias"])


def test_layer_callable_needs_index_and_name() -> None:
    with pytest.raises(rm.InputError, match=r"layers: .*\(index, name\) -> bool"):
        rm.replace_attention(stack(), "tssa", layers=lambda name: "0" in name)


def test_replacement_in_inference_mode_is_refused() -> None:
    model = stack()
    with torch.inference_mode():
        with pytest.raises(rm.InputError, match="inference_mode"):
            rm.replace_attention(model, "tssa")
        assert rm.replace_attention(model, "tssa", dry_run=True).replaced == names(0, 1, 2, 3)
    assert isinstance(model[0].attn, Attention)


@pytest.mark.parametrize("host", ["cpu", "meta"])
def test_the_default_device_does_not_matter(host: str) -> None:
    model = stack().to(host)
    with torch.device("meta"):
        rm.replace_attention(model, "tssa")
    assert {p.device.type for p in model.parameters()} == {host}


def test_a_model_wrapped_for_several_devices() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = stack()

    with pytest.raises(rm.InputError, match=r"model: .*DistributedDataParallel"):
        rm.replace_attention(DistributedDataParallel(), "tssa")


def test_failure_during_replacement_restores_the_model() -> None:
    class Stubborn(nn.Module):
        """Raises if its attention is replaced."""

        def __init__(self) -> None:
            super().__init__()
            self.add_module("attn", Attention())

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "attn" and isinstance(value, SwappedAttention):
                raise RuntimeError("no")
            super().__setattr__(name, value)

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(C, H, 8, batch_first=True), 1)
    model = nn.ModuleList([encoder, Block(Attention()), Stubborn()])
    before = [id(module) for module in model.modules()]
    with pytest.raises(RuntimeError, match="no"):
        rm.replace_attention(model, "tssa")
    assert [id(module) for module in model.modules()] == before
    assert encoder.use_nested_tensor


def test_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = stack(2)
    rm.replace_attention(model, "tssa")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert model(torch.empty(1, N, C, device="meta")).shape == (1, N, C)


def test_dry_run_does_not_change_the_model() -> None:
    model = stack()
    before = [id(module) for module in model.modules()]
    random = torch.random.get_rng_state()
    planned = rm.replace_attention(model, "tssa", dry_run=True)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert [id(module) for module in model.modules()] == before
    assert planned.dry_run
    made = rm.replace_attention(model, "tssa")
    made.dry_run = True
    assert planned == made


def test_report_lists_replaced_and_kept_layers() -> None:
    model = stack()
    report = rm.replace_attention(model, "tssa", layers=[0, 1, 2], max_length=64)
    assert report.parameters_after == sum(p.numel() for p in model.parameters())
    assert report.length == 64
    assert report.macs_before == 3 * (64 * 4 * C * C + 2 * 64 * 64 * C)
    assert report.macs_after == 3 * 64 * 2 * C * C
    assert report.no_weight_decay == [f"{i}.attn.mixer.temperature" for i in range(3)]
    assert re.search(r"tssa\b.*\b3\b.*3\.attn: .*->.*decay", str(report), re.DOTALL)
    assert set(report.no_weight_decay + report.copied) <= set(dict(model.named_parameters()))


def test_text_of_a_report() -> None:
    report = rm.SurgeryReport(
        "tssa",
        replaced=names(*range(10)),
        skipped=[(name, "not chosen") for name in names(10, 11)] + [("head", "cross")],
        notes=["dropout is gone"],
        copied=["0.attn.mixer.proj.weight"],
        no_weight_decay=["0.attn.mixer.temperature"],
        parameters_before=2000,
        parameters_after=1500,
        macs_before=4096,
        dry_run=True,
    )
    expected = [
        "tssa.* 10 .*",
        *[f"  {name}" for name in names(*range(6))],
        r"  \.\.\. 3 .*",
        "  9.attn",
        ".*: 3",
        "  10.attn, 11.attn: not chosen",
        "  head: cross",
        r".*: 2,000 -> 1,500 \(-500\)",
        "MACs.* 1,024 .*: 4,096 -> .*",
        ".*: 1 .*",
        ".*:",
        "  0.attn.mixer.temperature",
        ".*: dropout is gone",
    ]
    for line, pattern in zip(str(report).splitlines(), expected, strict=True):
        assert re.fullmatch(pattern, line)


def test_compiled_model_runs_the_new_mixers() -> None:
    model = stack(2).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(2, N, C)
    compiled(x)
    report = rm.replace_attention(compiled, "tssa")
    assert len(report.replaced) == 2
    torch.testing.assert_close(compiled(x), model(x))


def test_separately_compiled_attention_is_refused() -> None:
    model, x = stack(2).eval(), torch.randn(2, N, C)
    expected = model(x)
    compiled: Any = model[0]
    plain, compiled.attn = compiled.attn, torch.compile(compiled.attn, backend="eager")
    with pytest.raises(rm.InputError, match=r"\b0\.attn"):
        rm.replace_attention(model, "tssa")
    compiled.attn = plain
    rm.replace_attention(model, "tssa")
    compiled.attn = torch.compile(compiled.attn, backend="eager")
    rm.restore_attention(model)
    assert torch.equal(model(x), expected)


class Halves(TokenMixer):
    """A user's mixer without registration."""

    card = MixerCard("halves", "Halves", "", "", "O(N C)", 1.0, permutation_equivariant=True)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return x / 2


def test_user_defined_mixer_class() -> None:
    model = stack(1).eval()
    assert rm.replace_attention(model, Halves).mixer == "halves"
    x = torch.randn(1, N, C)
    assert torch.equal(model(x), x + model[0].norm(x) / 2)


def test_no_warning_if_nothing_is_lost() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rm.replace_attention(stack(), "tssa")


def test_gradients_flow_to_the_mixer_only() -> None:
    model = stack(1)
    original = model[0].attn
    rm.replace_attention(model, "tssa")
    model(torch.randn(2, N, C)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(p.grad is None for p in original.parameters())


def test_error_names_the_reason_of_a_chosen_layer() -> None:
    model = nn.ModuleList(
        [nn.MultiheadAttention(16, 2), nn.MultiheadAttention(16, 2, add_zero_attn=True)]
    )
    with pytest.raises(rm.InputError, match=r"model: .*; 1: .*keys"):
        rm.replace_attention(model, "tssa", layers=lambda i: i == 1)
