"""torch.nn's attention and transformer layers as host models."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm

Way = Callable[[Tensor], Tensor]


def encoder(batch_first: bool = True, layers: int = 3, bias: bool = True) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=batch_first, bias=bias)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=batch_first and bias)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def padding(batch: int = 2, length: int = 9, valid: int = 6) -> Tensor:
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[1, valid:] = True
    return mask


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "batch second"])
def test_softmax_with_copied_weights_equals_the_original(batch_first: bool, bias: bool) -> None:
    model = encoder(batch_first, bias=bias)
    x = torch.randn(2, 9, 32) if batch_first else torch.randn(9, 2, 32)
    mask = padding()
    model.train()  # disables the fast path, since its outputs at padding differ
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if isinstance(layer, nn.MultiheadAttention):
            layer.dropout = 0.0
    expected = model(x, src_key_padding_mask=mask)
    report = rm.replace_attention(model, "softmax")
    found = model(x, src_key_padding_mask=mask)
    valid = ~mask if batch_first else ~mask.T
    torch.testing.assert_close(found[valid], expected[valid], atol=1e-5, rtol=1e-5)
    assert report.replaced == [f"layers.{i}.self_attn" for i in range(3)]
    assert report.parameters_before == report.parameters_after
    assert report.macs_before == report.macs_after is not None


def test_the_fast_path_does_not_run_the_replaced_weights() -> None:
    model = encoder().eval()
    rm.replace_attention(model, "tssa")
    x = torch.randn(2, 9, 32)
    with torch.no_grad():
        fast = model(x, src_key_padding_mask=padding())
    slow = model(x, src_key_padding_mask=padding())
    torch.testing.assert_close(fast[~padding()], slow[~padding()].detach())


def test_restoring_a_part_keeps_the_rest() -> None:
    model = encoder()
    rm.replace_attention(model, "tssa", layers=[0])
    assert rm.restore_attention(model.layers[0]) == ["self_attn"]
    assert not model.use_nested_tensor
    assert rm.restore_attention(model) == []
    assert model.use_nested_tensor


def test_restore_returns_the_original_modules() -> None:
    model = encoder().eval()
    before = [layer.self_attn for layer in model.layers]
    state = copy.deepcopy(model.state_dict())
    rm.replace_attention(model, "tssa")
    assert not model.use_nested_tensor
    model.train()
    assert rm.restore_attention(model) == [f"layers.{i}.self_attn" for i in range(3)]
    assert all(layer.self_attn is b for layer, b in zip(model.layers, before, strict=True))
    assert all(module.training for module in model.modules())
    assert model.use_nested_tensor
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert vars(model).keys() == vars(encoder()).keys()
    assert rm.restore_attention(model) == []


def test_attention_with_a_custom_forward_is_not_replaced() -> None:
    model = encoder()
    attention = model.layers[0].self_attn
    attention.forward = lambda query, *_, **__: (2 * query, None)
    report = rm.replace_attention(model, "softmax")
    assert report.replaced == ["layers.1.self_attn", "layers.2.self_attn"]
    assert report.skipped[0][0] == "layers.0.self_attn"
    attention._hf_hook = "accelerate's, which moves tensors"
    assert rm.replace_attention(model, "softmax", layers=[0]).replaced == ["layers.0.self_attn"]


class Adapted(nn.Module):
    """Imitates PEFT's LoRA: every call reads and changes the weights of the attention."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer


def test_unmerged_adapters_around_attention_are_refused() -> None:
    model = encoder()
    model.layers[1].self_attn = Adapted(model.layers[1].self_attn)
    report = rm.replace_attention(model, "softmax")
    assert report.replaced == ["layers.0.self_attn", "layers.2.self_attn"]
    name, reason = report.skipped[0]
    assert name == "layers.1.self_attn.base_layer"
    assert "weights" in reason


class Tokens(nn.Module):
    """Attention with three functions that compute queries, keys and values from the input."""

    def __init__(self, query: Way, key: Way, value: Way) -> None:
        super().__init__()
        self.ways = query, key, value
        self.attn = nn.MultiheadAttention(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(*(way(x) for way in self.ways), need_weights=False)[0]


def as_it_is(x: Tensor) -> Tensor:
    return x


def turned(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (as_it_is, Tensor.detach),
        (Tensor.detach, as_it_is),
        (turned, lambda x: turned(x.detach().requires_grad_())),
        (as_it_is, lambda x: x.view(torch.int32)),
        (as_it_is, turned),
    ],
)
def test_other_keys_are_refused_also_in_the_same_memory(query: Way, key: Way) -> None:
    model = nn.Sequential(Tokens(query, key, key))
    rm.replace_attention(model, "softmax")
    with pytest.raises(rm.InputError, match=r"value: .*query"):
        model(torch.randn(9, 9, 32, requires_grad=True))


def test_views_of_one_tensor_count_as_the_same_keys() -> None:
    model = nn.Sequential(Tokens(turned, turned, turned)).eval()
    x = torch.randn(2, 9, 32, requires_grad=True)
    expected = torch.autograd.grad(model(x).square().sum(), x)
    rm.replace_attention(model, "softmax")
    torch.testing.assert_close(torch.autograd.grad(model(x).square().sum(), x), expected)
    x = x.detach()
    for run in (
        lambda: torch.compile(model, backend="eager")(x),
        lambda: torch.export.export(model, (x,)),
        lambda: torch.func.vmap(model)(x.unsqueeze(0)),
    ):
        with pytest.raises(rm.InputError, match=r"x\.transpose\(0, 1\)"):
            run()


@pytest.mark.parametrize("name", ["class_token", "class_embedding"])
def test_class_token_with_a_sort_is_reported(name: str) -> None:
    """Check the names that torchvision and open_clip use."""
    model = nn.ModuleDict({"encoder": encoder()})
    assert rm.replace_attention(copy.deepcopy(model), "csp").notes == []
    model.register_parameter(name, nn.Parameter(torch.zeros(1, 1, 32)))
    (note,) = rm.replace_attention(copy.deepcopy(model), "csp").notes
    assert "global_pool='avg'" in note
    assert rm.replace_attention(model, "tssa").notes == []


class CrossAttention(nn.Module):
    """Attention to another sequence, in a separate module."""

    def __init__(self, name: str = "attn") -> None:
        super().__init__()
        self.add_module(name, nn.MultiheadAttention(16, 2))


def test_cross_attention_without_own_marks_is_detected() -> None:
    def reasons(**parts: nn.Module) -> dict[str, str]:
        model = nn.ModuleDict({"own": encoder(layers=1), **parts})
        return dict(rm.replace_attention(model, "tssa", dry_run=True).skipped)

    cross = reasons(second=CrossAttention(), cross_attn=nn.ModuleDict({"mha": attention()}))
    assert list(cross) == ["second.attn", "cross_attn.mha"]
    assert all(reason.startswith("cross-attention") for reason in cross.values())
    two = nn.ModuleDict({"a": attention(), "b": attention()})
    layer = nn.TransformerEncoderLayer(16, 2, 24)
    assert not reasons(cross_attn_layer=layer, cross_attention=two, last=CrossAttention("self"))


def test_wrapper_that_needs_attention_weights_is_refused() -> None:
    wrapper = type("MultiheadAttention", (CrossAttention,), {"__module__": "speechbrain.nnet"})
    with pytest.raises(rm.InputError, match=r"MultiheadAttention.*attention weights"):
        rm.replace_attention(nn.ModuleList([wrapper()]), "tssa")


def attention() -> nn.MultiheadAttention:
    return nn.MultiheadAttention(16, 2)


@pytest.mark.parametrize("name", ["cross_attn", "crossattention", "encoder_attn"])
def test_cross_attention_of_other_decoders_has_no_index(name: str) -> None:
    layer = nn.ModuleDict({part: nn.MultiheadAttention(32, 4) for part in ("self_attn", name)})
    model = nn.ModuleList([layer, copy.deepcopy(layer)])
    report = rm.replace_attention(model, "tssa", layers=[1])
    assert report.replaced == ["1.self_attn"]
    assert [skipped for skipped, reason in report.skipped if "cross-attention" in reason] == [
        f"0.{name}",
        f"1.{name}",
    ]


class ReadsWeights(nn.Module):
    """Imitates torchaudio's WavLM.

    The block adds a bias to the scores and uses only the weights of the attention.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.attention.in_proj_weight, self.attention.in_proj_bias)


class AlsoCalls(ReadsWeights):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.attention.in_proj_bias is not None:
            return nn.functional.linear(x, self.attention.in_proj_weight)
        return self.attend(x)

    def attend(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def test_attention_that_is_never_called_is_kept() -> None:
    with pytest.raises(rm.InputError, match="ReadsWeights"):
        rm.replace_attention(nn.Sequential(ReadsWeights()), "softmax")
    assert rm.replace_attention(nn.Sequential(AlsoCalls()), "softmax").replaced == ["0.attention"]


class TextWithClassToken(nn.Module):
    """Imitates open_clip: a class token after the padding, with the masks of its older weights."""

    def __init__(self, *, correct_cls_mask: bool) -> None:
        super().__init__()
        self.cls_emb = nn.Parameter(torch.randn(16))
        self.correct_cls_mask = correct_cls_mask
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)


def test_hidden_class_token_is_not_padding() -> None:
    with pytest.raises(rm.InputError, match=r"\(correct_cls_mask=False\)"):
        rm.replace_attention(nn.Sequential(TextWithClassToken(correct_cls_mask=False)), "tssa")
    model = nn.Sequential(TextWithClassToken(correct_cls_mask=True))
    assert rm.replace_attention(model, "tssa").replaced == ["0.attn"]
