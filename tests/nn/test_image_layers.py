"""Patches, positions, class attention, LayerScale and stochastic depth of the image models."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from rifflemix.models.vision.tost_layers import (
    ClassAttention,
    ClassAttentionBlock,
    FourierPositions,
)
from rifflemix.nn.embeddings import ConvPatchEmbedding, PatchEmbedding
from rifflemix.nn.layers import ClassToken, DropPath, LayerScale
from rifflemix.nn.positions import PositionEmbedding

Golden = Callable[[str], dict[str, np.ndarray]]


def test_patch_is_flattened_row_column_channel() -> None:
    layer = PatchEmbedding(2, 12, (2, 3))
    torch.nn.init.eye_(layer.proj.weight)
    torch.nn.init.zeros_(layer.proj.bias)
    images = torch.randn(2, 2, 4, 9)
    tokens = layer(images)
    assert tokens.shape == (2, 6, 12)
    for row in range(2):
        for column in range(3):
            patch = images[:, :, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            expected = patch.permute(0, 2, 3, 1).flatten(1)
            torch.testing.assert_close(tokens[:, 3 * row + column], expected)


@pytest.mark.parametrize(
    ("patch_size", "widths"),
    [(2, [24]), (4, [12, 24]), (8, [6, 12, 24]), (16, [3, 6, 12, 24])],
)
def test_convolutions_halve_the_image_down_to_patches(patch_size: int, widths: list[int]) -> None:
    layer = ConvPatchEmbedding(3, 24, patch_size)
    convolutions = [m for m in layer.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == widths
    assert all(c.bias is None and c.stride == (2, 2) for c in convolutions)
    assert isinstance(layer.proj[-1][1], torch.nn.BatchNorm2d)  # no GELU after the last convolution
    assert layer(torch.randn(2, 3, 32, 16)).shape == (2, 24, 32 // patch_size, 16 // patch_size)


@pytest.mark.parametrize("patch_size", [1, 3, 12])
def test_convolutional_patches_are_powers_of_two(patch_size: int) -> None:
    with pytest.raises(ValueError, match="patch_size:"):
        ConvPatchEmbedding(3, 24, patch_size)


def test_convolutional_patches_need_a_wide_enough_token() -> None:
    with pytest.raises(ValueError, match=r"dim: .*\b8\b.*got 7\b"):
        ConvPatchEmbedding(3, 7, 16)


def test_fourier_positions_equal_the_published_code(golden: Golden) -> None:
    arrays = golden("pos_fourier")
    layer = FourierPositions(16)
    load(layer, {"proj.weight": "token_projection.weight", "proj.bias": "token_projection.bias"})(
        arrays
    )
    torch.testing.assert_close(layer(3, 5), torch.from_numpy(arrays["y"]), atol=1e-5, rtol=1e-4)


def test_fourier_features_equal_an_explicit_loop() -> None:
    height, width, features = 3, 4, 6
    layer = FourierPositions(2 * features, features=features)
    torch.nn.init.zeros_(layer.proj.bias)
    with torch.no_grad():
        layer.proj.weight.copy_(torch.eye(2 * features)[:, :, None, None])
    found = layer(height, width)[0]
    for row in range(height):
        for column in range(width):
            expected = []
            for position, length in ((row, height), (column, width)):
                angle = (position + 1) / (length + 1e-6) * 2 * math.pi
                for k in range(features // 2):
                    slowed = angle / 10000 ** (2 * k / features)
                    expected += [math.sin(slowed), math.cos(slowed)]
            torch.testing.assert_close(found[:, row, column], torch.tensor(expected))


def test_fourier_features_come_in_pairs() -> None:
    with pytest.raises(ValueError, match=r"features: .*got 5\b"):
        FourierPositions(8, features=5)


CLASS_BLOCK_NAMES = {
    "scale1.scale": "gamma1",
    "scale2.scale": "gamma2",
    "attention.qkv.weight": "attn.qkv.weight",
    "attention.qkv.bias": "attn.qkv.bias",
    "attention.proj.weight": "attn.proj.weight",
    "attention.proj.bias": "attn.proj.bias",
}


def test_class_attention_block_equals_the_published_code(golden: Golden) -> None:
    arrays = golden("class_attention_block_tokensnorm0")
    block = ClassAttentionBlock(12, 3, 48, tokens_norm=False).eval()
    load(block, CLASS_BLOCK_NAMES)(arrays)
    found = block(torch.from_numpy(arrays["x"]))
    torch.testing.assert_close(found, torch.from_numpy(arrays["y"]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tokens_norm", [False, True])
def test_class_attention_block_step_by_step(tokens_norm: bool) -> None:
    """Both halves of the residual sum use the stream after the second norm."""
    block = ClassAttentionBlock(8, 2, 16, tokens_norm=tokens_norm, layer_scale=0.7).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    normed = block.norm1(x)
    stream = x + 0.7 * torch.cat((block.attention(normed), normed[:, 1:]), dim=1)
    first = block.norm2(stream[:, :1])
    rest = block.norm2(stream[:, 1:]) if tokens_norm else stream[:, 1:]
    expected = torch.cat((first + 0.7 * block.mlp(first), 2 * rest), dim=1)
    torch.testing.assert_close(block(x), expected)


def test_class_attention_is_attention_of_the_first_token() -> None:
    layer = ClassAttention(8, 2).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    q, k, v = (part.unflatten(-1, (2, 4)) for part in layer.qkv(x).chunk(3, dim=-1))
    weights = (torch.einsum("bhd,bnhd->bhn", q[:, 0], k) / 2).softmax(dim=-1)
    gathered = torch.einsum("bhn,bnhd->bhd", weights, v).flatten(1)
    torch.testing.assert_close(layer(x)[:, 0], layer.proj(gathered))


def test_class_token_is_prepended() -> None:
    layer = ClassToken(4, std=1.0)
    x = torch.randn(3, 2, 4)
    y = layer(x)
    assert torch.equal(y[:, 1:], x)
    assert torch.equal(y[:, 0], layer.token[0].expand(3, 4))
    assert layer.no_weight_decay() == {"token"}


@pytest.mark.parametrize("std", [0.02, 1.0])
def test_initial_standard_deviation(std: float) -> None:
    assert ClassToken(10_000, std=std).token.std().item() == pytest.approx(std, rel=0.05)
    table = PositionEmbedding(100, 100, std=std).table
    assert table.std().item() == pytest.approx(std, rel=0.05)


def test_layer_scale_has_the_given_initial_value() -> None:
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(LayerScale(4, 1e-5)(x), 1e-5 * x)
    with pytest.raises(ValueError, match="initial"):
        LayerScale(4, 0.0)


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    layer = DropPath(0.25)
    x = torch.ones(4000, 2, 3)
    y = layer.train()(x)
    assert torch.equal(y, y[:, :1, :1].expand_as(y))
    values = y[:, 0, 0]
    kept = values > 0
    torch.testing.assert_close(values[kept], torch.full_like(values[kept], 4 / 3))
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert layer.eval()(x) is x


def test_drop_path_refuses_probability_one() -> None:
    with pytest.raises(ValueError, match=r"p: .*\[0, 1\)"):
        DropPath(1.0)


def load(layer: torch.nn.Module, names: dict[str, str]) -> Callable[[dict[str, np.ndarray]], None]:
    """Return a function that fills `layer` from the golden `p.*`.

    `names` maps parameter names that differ.
    """

    def fill(arrays: dict[str, np.ndarray]) -> None:
        weights: dict[str, Tensor] = {
            name: torch.from_numpy(arrays[f"p.{names.get(name, name)}"])
            for name in layer.state_dict()
        }
        layer.load_state_dict(weights)

    return fill
