"""replace_attention and restore_attention: selection, errors, reports and copied weights."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import rifflemix as rm
from rifflemix.mixers import MixerCard, TokenMixer
from rifflemix.surgery import SwappedAttention

C, H, N = 16, 4, 9


class Attention(nn.Module):
    """A user's copy of timm's attention."""

    def __init__(self, dim: int = C, num_heads: int = H, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(0.1)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.2)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        out: Tensor = self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))
        return out


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(C)
        self.attn = attention

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.attn(self.norm(x))
        return out


def stack(layers: int = 4, **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(Attention(**options)) for _ in range(layers)])


def names(*indices: int) -> list[str]:
    return [f"{i}.attn" for i in indices]


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


def test_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = stack(2)
    rm.replace_attention(model, "tssa")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert model(torch.empty(1, N, C, device="meta")).shape == (1, N, C)


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


def test_dry_run_changes_nothing() -> None:
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


def test_a_copy_is_restored_by_itself() -> None:
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


def test_shared_attention_stays_shared() -> None:
    shared = Attention()
    model = nn.Sequential(Block(shared), Block(shared))
    report = rm.replace_attention(model, "tssa")
    assert report.replaced == names(0)
    assert model[0].attn is model[1].attn
    assert report.parameters_after == sum(p.numel() for p in model.parameters())
    rm.restore_attention(model)
    assert model[0].attn is shared is model[1].attn


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


def test_gradients_reach_the_mixer_and_not_the_replaced_attention() -> None:
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
