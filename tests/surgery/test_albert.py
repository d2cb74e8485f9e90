"""ALBERT: one attention module that all layers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import build, inputs_of, outputs_of, transformers

import rifflemix as rm
from trained_models import unpacked

SHARED = "encoder.albert_layer_groups.0.albert_layers.0.attention"


def test_one_mixer_serves_all_layers() -> None:
    model = build("albert")
    report = rm.replace_attention(model, "tssa")
    assert report.replaced == [SHARED]
    calls = []
    mixer = model.get_submodule(SHARED).mixer
    mixer.register_forward_hook(lambda *_: calls.append(1))
    outputs_of(model, inputs_of("albert"))
    assert len(calls) == model.config.num_hidden_layers


def test_the_norm_stays_and_the_weights_are_saved(tmp_path: Path) -> None:
    model, inputs = build("albert"), inputs_of("albert")
    norm = model.get_submodule(SHARED).LayerNorm
    rm.replace_attention(model, "linear")
    assert model.get_submodule(SHARED).LayerNorm is norm
    rm.save_swapped(model, tmp_path)
    again = rm.load_swapped(tmp_path, build("albert"))
    assert torch.equal(outputs_of(again, inputs), outputs_of(model, inputs))
    rm.restore_attention(model)
    assert torch.equal(outputs_of(model, inputs), outputs_of(build("albert"), inputs))


@pytest.fixture(scope="module")
def reactions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the trained ALBERT of rxnmapper, a masked language model of chemical reactions."""
    folder = unpacked("rxnmapper", tmp_path_factory.mktemp("rxnmapper"))
    if folder is None:
        pytest.skip("trained models are not at hand (make trained-models)")
    config = transformers.AlbertConfig.from_pretrained(folder)
    model = transformers.AlbertForMaskedLM(config).eval()
    state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    wrong = model.load_state_dict(state, strict=False)
    assert not [name for name in wrong.missing_keys if "decoder" not in name]
    return model


def test_a_swap_to_softmax_is_exact_in_a_trained_albert(reactions: Any) -> None:
    torch.manual_seed(0)
    inputs = {"input_ids": torch.randint(20, 500, (2, 40))}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 30:] = 0
    before = outputs_of(reactions, inputs)
    rm.replace_attention(reactions, "softmax")
    torch.testing.assert_close(outputs_of(reactions, inputs), before, rtol=1e-4, atol=1e-3)
    rm.restore_attention(reactions)
    assert torch.equal(outputs_of(reactions, inputs), before)
