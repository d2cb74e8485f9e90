"""Third-party copies of timm's attention: replaced only if they compute the same function."""

from __future__ import annotations

import copy
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_classes import (
    Attention,
    C,
    Causal,
    Convolution,
    FixedBias,
    ForImages,
    H,
    HeadByHead,
    LearnedBias,
    N,
    OfImages,
    PreNorm,
    Random,
    RelativeTable,
    SequenceFirst,
    Temperature,
    Triangle,
    Unscaled,
    Windows,
    WithWeights,
    ZeroOutput,
)
from torch import Tensor, nn
from torch.nn import functional

import rifflemix as rm

CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


REFUSED: dict[type[Attention], str] = {
    WithWeights: "tuple",
    LearnedBias: "position_scores",
    FixedBias: r"\balibi\b",
    RelativeTable: "0: .*position",
    Convolution: r"\blepe\b",
    Temperature: r"\btemperature\b",
    HeadByHead: "softmax",
    SequenceFirst: "softmax",
    Unscaled: "softmax",
    Windows: "softmax",
    PreNorm: "softmax",
    Random: "softmax",
    ZeroOutput: "softmax",
    ForImages: "H, W",
    OfImages: "ValueError",
}


def model_of(kind: Callable[[], nn.Module], layers: int = 1) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList([kind() for _ in range(layers)]).eval()


@pytest.mark.parametrize("kind", REFUSED)
def test_attention_with_another_function_is_refused(kind: type[Attention]) -> None:
    model = model_of(kind)
    before = model[0]
    with pytest.raises(rm.InputError, match=REFUSED[kind]) as caught:
        rm.replace_attention(model, "softmax")
    assert "register_adapter" in str(caught.value) or kind is RelativeTable
    assert model[0] is before


@pytest.mark.parametrize("kind", [Attention, Causal, Triangle])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_attention_with_the_softmax_function_is_replaced(
    kind: type[Attention], dtype: torch.dtype
) -> None:
    model = model_of(kind).to(dtype)
    x = torch.randn(2, N, C, dtype=dtype)
    expected = model[0](x)
    rm.replace_attention(model, "softmax")
    close = CLOSE if dtype is not torch.bfloat16 else {"atol": 0.05, "rtol": 0.05}
    torch.testing.assert_close(model[0](x), expected, **close)
    assert model[0].mixer.causal == (kind is not Attention)


@pytest.mark.parametrize("kind", [Causal, Triangle])
def test_causal_copy_is_detected_as_causal(kind: type[Attention]) -> None:
    model = model_of(kind, 2)
    with pytest.raises(rm.InputError, match=r"mixer: .*causal.*got fnet"):
        rm.replace_attention(model, "fnet")
    with pytest.raises(rm.InputError, match=r"causal: .*True.*got False"):
        rm.replace_attention(model, "linear", causal=False)
    report = rm.replace_attention(model, "linear")
    assert report.length == (12 if kind is Triangle else 1024)
    x = torch.randn(2, N, C)
    changed = x.clone()
    changed[:, -1] += 1
    torch.testing.assert_close(model[0](x)[:, :-1], model[0](changed)[:, :-1])


class Timm1(Attention):
    """The current implementation in timm."""

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        y = functional.scaled_dot_product_attention(
            *self.heads(x), attn_mask=attn_mask, is_causal=is_causal
        )
        return self.proj(y.transpose(1, 2).flatten(2))


class Masked(Attention):
    """Interprets masks differently: True is padding, and boolean masks are never added."""

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, return_attention: bool = False
    ) -> Any:
        scores, v = self.scores(x)
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        return (self.out(scores, v), scores) if return_attention else self.out(scores, v)


def test_masks_with_the_meaning_of_timm_are_supported() -> None:
    model = model_of(Timm1)
    x = torch.randn(2, N, C)
    keep = torch.arange(N) < torch.tensor([[N], [6]])
    calls: list[dict[str, Any]] = [{"attn_mask": keep[:, None, None]}, {"is_causal": False}, {}]
    expected = [model[0](x, **call) for call in calls]
    rm.replace_attention(model, "softmax")
    for call, wanted in zip(calls, expected, strict=True):
        valid = keep if "attn_mask" in call else torch.ones_like(keep)
        torch.testing.assert_close(model[0](x, **call)[valid], wanted[valid], **CLOSE)
    with pytest.raises(rm.InputError, match="causal=True"):
        model[0](x, None, True)


@pytest.mark.parametrize("arguments", [(None, False), (None,), ()])
def test_arguments_that_keep_their_defaults(arguments: tuple[Any, ...]) -> None:
    model = model_of(Masked)
    x = torch.randn(2, N, C)
    expected = model[0](x, *arguments)
    rm.replace_attention(model, "softmax")
    torch.testing.assert_close(model[0](x, *arguments), expected, **CLOSE)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"attn_mask": torch.zeros(2, 1, 1, N, dtype=torch.bool)}, "attn_mask: expected None"),
        ({"return_attention": True}, "return_attention: expected False"),
    ],
)
def test_arguments_that_mean_something_else_are_refused(
    arguments: dict[str, Any], says: str
) -> None:
    model = model_of(Masked)
    rm.replace_attention(model, "softmax")
    with pytest.raises(rm.InputError, match=f"{says}.*register_adapter"):
        model[0](torch.randn(2, N, C), **arguments)


class Split(nn.Module):
    """Attention with separate Q/K/V projections under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        for name in ("q_proj", "k_proj", "v_proj", "proj"):
            setattr(self, name, nn.Linear(C, C))

    def forward(self, tokens: Tensor) -> Tensor:
        parts = (getattr(self, name)(tokens) for name in ("q_proj", "k_proj", "v_proj"))
        heads = (part.unflatten(-1, (H, -1)).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(*heads)
        return self.proj(y.transpose(1, 2).flatten(2))


class SplitAttention(Split):
    pass


def test_separate_projections_and_other_names_are_supported() -> None:
    model = model_of(SplitAttention)
    tokens = torch.randn(2, N, C)
    expected = model[0](tokens)
    rm.replace_attention(model, "softmax")
    torch.testing.assert_close(model[0](tokens=tokens), expected, **CLOSE)


class Normed(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(C // H), nn.LayerNorm(C // H)
        self.dropout = nn.Dropout(0.1)

    def heads(self, x: Tensor) -> Tensor:
        q, k, v = super().heads(x)
        return torch.stack((self.q_norm(q), self.k_norm(k), v))

    def out(self, scores: Tensor, v: Tensor) -> Tensor:
        return self.dropout(super().out(scores, v))


def test_lost_norms_and_dropouts_are_reported() -> None:
    notes = rm.replace_attention(model_of(Normed), "tssa").notes
    assert any("qk_norm" in note for note in notes)
    assert any("dropout" in note for note in notes)


def test_probe_does_not_change_the_model() -> None:
    model = model_of(Attention).train()
    host, calls = model[0], []
    host.register_forward_hook(lambda *_: calls.append(1))
    host.qkv.register_forward_pre_hook(lambda *_: calls.append(1))
    state = copy.deepcopy(host.state_dict())
    random = torch.random.get_rng_state()
    attributes = set(vars(host))
    rm.replace_attention(model, "tssa", dry_run=True)
    assert calls == []
    assert torch.equal(torch.random.get_rng_state(), random)
    assert set(vars(host)) == attributes
    assert all(module.training for module in host.modules())
    assert all(p.grad is None and p.requires_grad for p in host.parameters())
    assert all(torch.equal(value, state[name]) for name, value in host.state_dict().items())


def test_state_of_an_earlier_call_does_not_matter() -> None:
    class Remembering(Attention):
        def out(self, scores: Tensor, v: Tensor) -> Tensor:
            self.scores_of_before = scores
            return super().out(scores, v)

    model = model_of(Remembering)
    x = torch.randn(2, N, C)
    expected = model[0](x)
    before = model[0].scores_of_before
    host = model[0]
    rm.replace_attention(model, "softmax")
    torch.testing.assert_close(model[0](x), expected, **CLOSE)
    assert host.scores_of_before is before


def test_on_the_meta_device() -> None:
    with torch.device("meta"):
        model, causal, triangle = (model_of(kind) for kind in (Attention, Causal, Triangle))
    rm.replace_attention(model, "tssa")
    rm.replace_attention(causal, "linear")
    assert causal[0].mixer.causal
    with pytest.raises(rm.InputError, match=r"model: .*\bmeta\b"):
        rm.replace_attention(triangle, "linear")


def test_a_swapped_copy_is_pickled() -> None:
    model = model_of(Timm1)
    rm.replace_attention(model, "tssa")
    x = torch.randn(2, N, C)
    assert torch.equal(pickle.loads(pickle.dumps(model))[0](x), model[0](x))


def with_causal_forward(attention: Any) -> Any:
    """Patch the forward method of one module."""

    def forward(self: Any, x: Tensor, attn_mask: None = None, is_causal: bool = True) -> Tensor:
        return type(self).forward(self, x, attn_mask, is_causal=True)

    attention.forward = types.MethodType(forward, attention)
    return attention


def test_subclasses_of_timm_attention_are_checked_too() -> None:
    from torchvision_shim import declare_operators

    declare_operators()
    pytest.importorskip("timm", reason="timm is not installed")
    from timm.layers.attention import Attention as TimmAttention

    class OfLanguage(TimmAttention):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return TimmAttention.forward(self, x, is_causal=True)

    class Patched(TimmAttention):  # type: ignore[misc]
        """A class with a forward method assigned from outside."""

        __module__ = TimmAttention.__module__
        forward = OfLanguage.forward

    kinds = (OfLanguage, Patched, lambda *sizes: with_causal_forward(TimmAttention(*sizes)))
    for attention in (kind(C, H) for kind in kinds):
        model = nn.ModuleList([attention]).eval()
        x = torch.randn(2, N, C)
        expected = attention(x)
        rm.replace_attention(model, "softmax")
        assert model[0].mixer.causal
        torch.testing.assert_close(model[0](x), expected, **CLOSE)
