"""Host models with their own initialization do not reinitialize networks inside mixers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rifflemix as rm

SIZES: dict[str, Any] = {"dim": 32, "num_layers": 2, "num_heads": 2}
HOSTS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2's": ("gpt", {"vocab_size": 9, "max_length": 64}),
    "Glorot's": ("lra_image", {"max_length": 64}),
    "ToST's": ("tost_tiny_16", {"image_size": 128}),
    "BERT's": ("encoder", {"vocab_size": 9, "init": "bert", "max_length": 64}),
}


@pytest.mark.parametrize(("host", "settings"), HOSTS.values(), ids=list(HOSTS))
def test_kernel_networks_keep_their_initialization(host: str, settings: dict[str, Any]) -> None:
    mixer = rm.create_model(host, mixer="long_conv", **SIZES, **settings).blocks[0].mixer
    for linear in mixer.kernel.linears:
        assert torch.equal(linear.bias, torch.ones_like(linear.bias))
    seen: list[torch.Tensor] = []
    mixer.pointwise.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    mixer(torch.randn(8, 64, 32))
    assert seen[0].std().item() > 0.02  # convolution of noise with standard deviation 1


LEVELS: dict[str, Any] = {"vocab_size": 256, "level_scale": [0.5, 0.25], "dim": 512}


@pytest.mark.parametrize("host", ["mega_lra_image", "encoder"])
def test_pixels_are_embedded_as_in_mega(host: str) -> None:
    """`RealNumberEmbedding` of the released code: normal with standard deviations 1 and 0.1."""
    embed = rm.create_model(host, **LEVELS, num_layers=1).embed.proj
    assert embed.weight.std().item() == pytest.approx(1.0, rel=0.2)
    assert embed.bias.std().item() == pytest.approx(0.1, rel=0.2)


def test_pixels_are_embedded_by_a_linear_layer_in_s4() -> None:
    embed = rm.create_model("s4_lra_image", **LEVELS, num_layers=1).embed.proj
    assert 0.9 < embed.weight.abs().max().item() <= 1.0
    assert 0.9 < embed.bias.abs().max().item() <= 1.0
