"""Embeddings wrapped by another module, like PEFT's adapters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm

ADAPTED = {
    "gpt": {"dim": 16, "num_heads": 2, "num_layers": 1, "vocab_size": 11, "max_length": 8},
    "seq2seq": {"dim": 16, "num_heads": 2, "vocab_size": 11, "max_length": 8},
}


class Adapted(nn.Module):
    """An embedding with an added vector per ID; `weight` returns the embedding's weight."""

    def __init__(self, base: nn.Embedding) -> None:
        super().__init__()
        self.base_layer = base
        self.added = nn.Parameter(torch.randn_like(base.weight))

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.base_layer(ids)
        return found + self.added[ids]


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_act_on_ids_and_on_tied_logits(name: str) -> None:
    torch.manual_seed(0)
    model = rm.create_model(name, **ADAPTED[name]).eval()
    ids = torch.randint(0, 11, (2, 5))
    inputs = (ids,) if name == "gpt" else (ids, ids)
    plain, base = model(*inputs), model.embed
    model.embed = Adapted(base)
    found = model(*inputs)
    with torch.no_grad():
        base.weight += model.embed.added
    model.embed = base
    torch.testing.assert_close(found, model(*inputs))
    assert not torch.allclose(found, plain)
    with pytest.raises(rm.InputError, match="10"):
        model(*(part + 11 for part in inputs))


def test_classifier_of_ids_supports_adapters() -> None:
    model = rm.create_model("encoder", dim=16, num_heads=2, vocab_size=11, num_classes=2).eval()
    model.embed = Adapted(model.embed)
    assert model(torch.randint(0, 11, (2, 5))).shape == (2, 2)


def test_generation_from_an_adapted_embedding() -> None:
    model = rm.create_model("gpt", **ADAPTED["gpt"]).eval()
    model.embed = Adapted(model.embed)
    assert model.generate(torch.zeros(1, 2, dtype=torch.long), 3).shape == (1, 5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # from torch
def test_a_quantised_embedding_gives_tied_logits() -> None:
    model = rm.create_model("gpt", **ADAPTED["gpt"]).eval()
    ids = torch.randint(0, 11, (2, 5))
    with torch.no_grad():
        expected = model(ids)
        kind = torch.ao.quantization.float_qparams_weight_only_qconfig
        model = torch.ao.quantization.quantize_dynamic(model, {nn.Embedding: kind})
        torch.testing.assert_close(model(ids), expected, atol=0.02, rtol=0.02)
