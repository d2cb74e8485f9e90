"""Attention without an adapter is reported, and other modules are not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_replace import Attention, C, H, stack
from torch import nn

import rifflemix as rm
from rifflemix.surgery.sites import _is_called_attention


class FlashMHA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Linear(C, 4 * C)


class Relative(nn.MultiheadAttention):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class OfLucidrains(nn.Module):
    """Uses names that many repositories share, x-transformers among them."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.attend = H, nn.Softmax(-1)
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(C, C) for _ in range(4))


OfLucidrains.__name__ = "Attention"


class GPSA(nn.Module):
    """Imitates ConViT: only the parent's attribute name identifies it as attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(C, 2 * C), nn.Linear(C, C)


class Convit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.attn_norm = GPSA(), nn.LayerNorm(C)
        self.attention = nn.Sequential(nn.Linear(C, C), nn.Tanh(), nn.Linear(C, 1))


class AttentionLayer(nn.Module):
    """Wraps attention and has its own weights; without weights it is no attention."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner, self.attn_drop = nn.LayerNorm(C), attention, nn.Dropout()


class LongcatMLA(GPSA):
    """Multi-head latent attention, named as in one transformers model."""


UNKNOWN = {
    "MLA": (lambda: nn.Sequential(LongcatMLA()), "0", "LongcatMLA"),
    "MHA": (lambda: nn.Sequential(FlashMHA()), "0", "FlashMHA"),
    "derived": (lambda: nn.Sequential(Relative(C, H)), "0", "Relative"),
    "like x-transformers": (lambda: nn.Sequential(OfLucidrains()), "0", "Attention"),
    "by what it is called": (Convit, "attn", "GPSA"),
    "inside": (lambda: nn.Sequential(AttentionLayer(FlashMHA())), "0.inner", "FlashMHA"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_attention_is_named(case: str) -> None:
    build, name, kind = UNKNOWN[case]
    with pytest.raises(rm.InputError, match=rf"got {name} \({kind}\)"):
        rm.replace_attention(build(), "tssa")
    model = nn.ModuleDict({"known": AttentionLayer(Attention()), "unknown": build()})
    report = rm.replace_attention(model, "tssa")
    assert report.replaced == ["known.inner"]
    ((skipped, reason),) = report.skipped
    assert skipped == f"unknown.{name}"
    assert re.search(rf"\b{kind}\b.*register_adapter", reason)


def test_mixers_are_not_reported_as_unknown_attention() -> None:
    report = rm.replace_attention(stack(2), "softmax", layers=[0])
    model = nn.ModuleList([stack(1), rm.create_mixer("softmax", C, num_heads=H)])
    assert [name for name, _ in report.skipped] == ["1.attn"]
    assert rm.replace_attention(model, "tssa").skipped == []


@pytest.mark.parametrize(("maps", "is_attention"), [(1, False), (2, True)])
def test_module_named_attention_needs_several_linear_layers(maps: int, is_attention: bool) -> None:
    module = nn.Module()
    for index in range(maps):
        module.add_module(str(index), nn.Linear(2, 2))
    assert _is_called_attention("blocks.0.attn", module) == is_attention
    assert not _is_called_attention("blocks.0.mlp", module)
