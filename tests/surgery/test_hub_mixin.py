"""Models that are saved and loaded by huggingface_hub's mixin."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm

hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")


class Net(nn.Module, hub.PyTorchModelHubMixin):  # type: ignore[misc]
    """An encoder with replaced attention if a mixer is named."""

    def __init__(self, mixer: str | None = None) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        if mixer is not None:
            rm.replace_attention(self, mixer)

    def forward(self, x: Tensor) -> Tensor:
        """Encode (B, N, 16) to (B, N, 16)."""
        return self.encoder(x)


def test_loading_without_the_mixers_raises_an_error(tmp_path: Path) -> None:
    model = Net()
    rm.replace_attention(model, "tssa")
    copy.deepcopy(model).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="encoder"):
        Net.from_pretrained(tmp_path)
    rm.restore_attention(model)
    model.save_pretrained(tmp_path)
    assert_same(Net.from_pretrained(tmp_path), model)


def test_model_that_contains_a_swapped_model_is_marked(tmp_path: Path) -> None:
    model = Net()
    rm.replace_attention(model.encoder.layers, "tssa")
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="encoder"):
        Net.from_pretrained(tmp_path)


@pytest.mark.parametrize("strict", [False, True])
def test_model_that_swaps_itself_is_loaded(strict: bool, tmp_path: Path) -> None:
    model = Net("tssa")
    model.save_pretrained(tmp_path)
    assert_same(Net.from_pretrained(tmp_path, strict=strict), model)


def assert_same(found: Any, expected: Any) -> None:
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        torch.testing.assert_close(found.eval()(x), expected.eval()(x))
