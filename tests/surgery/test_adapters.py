"""User-defined adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.mixers import TokenMixer
from rifflemix.surgery import (
    Adapter,
    HostAttention,
    HostWeights,
    Projection,
    SwappedAttention,
    sites,
)

C = 16


@pytest.fixture(autouse=True)
def none_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "_registered", [])


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value, self.out = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"tokens": self.out(self.value(tokens).mean(1, keepdim=True).expand_as(tokens))}


class SwappedStrange(SwappedAttention):
    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"tokens": self.mixer(tokens)}


class StrangeAdapter(Adapter):
    name = "strange"

    def matches(self, module: nn.Module) -> bool:
        return type(module).__name__ == "Strange"

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        return HostAttention(C, 1, max_length=12, notes=("noted",), warnings=("careful",))

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        return SwappedStrange(mixer, module)

    def weights(self, module: nn.Module) -> HostWeights:
        value, out = (Projection(m.weight, m.bias) for m in (module.value, module.out))  # type: ignore[arg-type]
        return HostWeights(value, value, value, out)

    def macs(self, module: nn.Module, host: HostAttention, length: int) -> None:
        return None


def test_user_defined_adapter() -> None:
    model = nn.ModuleDict({"a": Strange(), "b": Strange()})
    with pytest.raises(rm.InputError, match="register_adapter"):
        rm.replace_attention(model, "tssa")
    rm.register_adapter(StrangeAdapter())
    with pytest.warns(UserWarning, match="careful") as caught:
        report = rm.replace_attention(model, "average")
    assert len(caught) == 1
    assert report.notes == ["careful", "noted"]
    assert report.macs_before is None
    assert "not known" in str(report)
    assert report.length == 12
    tokens = torch.randn(2, 12, C)
    assert model["a"](tokens)["tokens"].shape == tokens.shape


@pytest.mark.parametrize(
    "adapter", [StrangeAdapter, Adapter(), "timm"], ids=["class", "no name", "text"]
)
def test_invalid_adapters_are_refused(adapter: Any) -> None:
    with pytest.raises(rm.InputError, match="adapter"):
        rm.register_adapter(adapter)


class SwappedWithDropout(SwappedAttention):
    """Reuses the dropout of the attention that it replaced."""

    def forward(self, x: Tensor) -> Tensor:
        return self.original(self.mixer(x))


class DropoutAdapter(Adapter):
    name = "dropout"

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, nn.Dropout)

    def describe(self, module: nn.Module, parents: Sequence[nn.Module]) -> HostAttention:
        return HostAttention(C, 1)

    def wrap(self, module: nn.Module, mixer: TokenMixer) -> SwappedAttention:
        return SwappedWithDropout(mixer, module)


def test_parts_of_the_original_follow_the_mode() -> None:
    rm.register_adapter(DropoutAdapter())
    model = nn.Sequential(nn.Dropout(0.5))
    rm.replace_attention(model, "tssa")
    x = torch.randn(2, 9, C)
    model.eval()
    assert torch.equal(model(x), model[0].mixer(x))
    model.train()
    assert not torch.equal(model(x), model[0].mixer(x))


@pytest.mark.parametrize(
    ("method", "value", "says"),
    [
        ("wrap", lambda module, mixer: mixer, "SwappedAttention.*wrap.*got a TSSA"),
        ("describe", lambda module, parents: None, "HostAttention.*got None"),
        ("weights", lambda module: (None,) * 4, "HostWeights.*got a tuple"),
    ],
)
def test_adapters_that_return_something_else(
    method: str, value: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StrangeAdapter, method, staticmethod(value))
    rm.register_adapter(StrangeAdapter())
    with pytest.raises(rm.InputError, match=f"'strange'.*{says}"):
        rm.replace_attention(nn.Sequential(Strange()), "tssa")


def test_loading_without_the_adapter_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rm.register_adapter(DropoutAdapter())
    model = nn.Sequential(nn.Dropout())
    rm.replace_attention(model, "tssa")
    rm.save_swapped(model, tmp_path)
    monkeypatch.setattr(sites, "_registered", [])
    with pytest.raises(rm.InputError, match="'dropout'"):
        rm.load_swapped(tmp_path, nn.Sequential(nn.Dropout()))
    rm.register_adapter(DropoutAdapter())
    with pytest.raises(rm.InputError, match=r"model: .*Sequential.*16\b.*\b0\b"):
        rm.load_swapped(tmp_path, nn.Sequential(nn.Linear(2, 2)))
    rm.load_swapped(tmp_path, nn.Sequential(nn.Dropout()))
