"""Recurrent mixers with the weights of the layers of transformers give the same outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rifflemix as rm
from document_scripts import load_script
from perturbed import perturb

load_script("tests/surgery/torchvision_shim.py").declare_operators()
pytest.importorskip("transformers", reason="needs transformers")

from transformers import Mamba2Config, Qwen3NextConfig  # noqa: E402
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import (  # noqa: E402
    Qwen3NextGatedDeltaNet,
)

DIM, HEADS = 32, 4


def moved(layer: Any) -> dict[str, torch.Tensor]:
    """Add noise to all parameters of a layer, and return them."""
    perturb(layer, 0.1)
    return layer.state_dict()


@pytest.mark.parametrize("length", [1, 21])
def test_mamba2_equals_transformers(length: int) -> None:
    torch.manual_seed(0)
    config = Mamba2Config(
        hidden_size=DIM, num_heads=HEADS, head_dim=16, state_size=8, n_groups=1, chunk_size=8
    )
    theirs = Mamba2Mixer(config, 0).eval()
    ours = rm.create_mixer("mamba2", DIM, num_heads=HEADS, state_dim=8, causal=True).eval()
    weights = moved(theirs)
    ours.load_state_dict({name.replace("out_proj", "proj"): w for name, w in weights.items()})
    x = torch.randn(2, length, DIM)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)


def test_mamba2_has_the_parameters_of_the_130m_model() -> None:
    config = Mamba2Config(hidden_size=768, num_heads=24, head_dim=64, state_size=128, n_groups=1)
    with torch.device("meta"):
        theirs = Mamba2Mixer(config, 0)
        ours = rm.create_mixer("mamba2", 768, num_heads=24, causal=True)
    counts = [sum(p.numel() for p in layer.parameters()) for layer in (ours, theirs)]
    assert counts[0] == counts[1] == 3_764_552


@pytest.mark.parametrize("expansion", [1, 2])
def test_gated_deltanet_equals_qwen3_next(expansion: int) -> None:
    torch.manual_seed(0)
    head = DIM // HEADS
    config = Qwen3NextConfig(
        hidden_size=DIM,
        linear_num_key_heads=HEADS,
        linear_num_value_heads=HEADS,
        linear_key_head_dim=head,
        linear_value_head_dim=expansion * head,
        num_hidden_layers=1,
    )
    theirs = Qwen3NextGatedDeltaNet(config, 0).eval()
    ours = rm.create_mixer(
        "gated_deltanet", DIM, num_heads=HEADS, value_expansion=expansion, causal=True
    ).eval()
    weights = moved(theirs)
    sizes = (head, head, expansion * head, expansion * head)
    *qkv, gate = weights["in_proj_qkvz.weight"].unflatten(0, (HEADS, -1)).split(sizes, 1)
    beta, decay = weights["in_proj_ba.weight"].unflatten(0, (HEADS, 2)).unbind(1)
    ours.load_state_dict(
        {
            "qkv.weight": torch.cat([part.flatten(0, 1) for part in qkv]),
            "conv.weight": weights["conv1d.weight"],
            "beta_and_decay.weight": torch.cat((beta, decay)),
            "gate.weight": gate.flatten(0, 1),
            "proj.weight": weights["out_proj.weight"],
            **{name: weights[name] for name in ("A_log", "dt_bias", "norm.weight")},
        }
    )
    x = torch.randn(2, 21, DIM)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)
