"""ToST, XCiT and the ISTA variants in one host model: counts, blocks, initialization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.models import ToST
from rifflemix.models.vision.tost_layers import ISTA
from rifflemix.nn.block import Block
from rifflemix.nn.layers import FeedForward

Golden = Callable[[str], dict[str, np.ndarray]]

SMALL: dict[str, Any] = {
    "dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "num_classes": 5,
    "image_size": 32,
}

COUNTS = {
    "tost_tiny_16": "5.769",
    "tost_small_16": "22.590",
    "tost_medium_16": "71.48",
    "xcit_small_16": "26.14",
    "xcit_medium_16": "84.09",
}


@pytest.mark.parametrize(("name", "millions"), COUNTS.items())
def test_counts_of_the_released_code(name: str, millions: str) -> None:
    with torch.device("meta"):
        found = rm.create_model(name).num_parameters() / 1e6
    assert f"{found:.{len(millions.partition('.')[2])}f}" == millions


@pytest.mark.parametrize(
    ("name", "dim", "layers", "heads", "eta"),
    [
        ("tost_tiny_16", 192, 12, 4, 1.0),
        ("tost_small_8", 384, 12, 8, 1.0),
        ("tost_medium_16", 512, 24, 8, 1e-5),
        ("tost_tiny_24_8", 192, 24, 4, 1e-5),
        ("tost_small_24_16", 384, 24, 8, 1e-5),
        ("tost_large_8", 768, 24, 16, 1e-5),
    ],
)
def test_registered_sizes_equal_the_paper(
    name: str, dim: int, layers: int, heads: int, eta: float
) -> None:
    settings = rm.models.model_settings(name)
    assert settings["patch_size"] == int(name.rpartition("_")[2])
    found = [settings[key] for key in ("dim", "num_layers", "num_heads", "layer_scale")]
    assert found == [dim, layers, heads, eta]


@pytest.mark.parametrize("size", ["tiny", "small", "medium"])
def test_drop_path_is_the_same_at_all_depths(size: str) -> None:
    model = rm.create_model(f"tost_{size}_16", **SMALL)
    expected = {"tiny": 0.0, "small": 0.05, "medium": 0.15}[size]
    assert [block.drop_path.p for block in model.blocks] == [expected, expected]


BLOCK_NAMES = {
    "mixer.in_proj.weight": "attn.qkv.weight",
    "mixer.in_proj.bias": "attn.qkv.bias",
    "mixer.out_proj.weight": "attn.to_out.0.weight",
    "mixer.out_proj.bias": "attn.to_out.0.bias",
    "mixer.temperature": "attn.temp",
    "scale1.scale": "gamma1",
    "scale2.scale": "gamma2",
}


def test_block_and_its_gradients_equal_the_published_code(golden: Golden) -> None:
    arrays = golden("tost_block")
    block = Block(
        rm.create_mixer("tssa", 12, num_heads=3),
        FeedForward(12, 48),
        12,
        norm_eps=1e-6,
        layer_scale=1.0,
    )
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            values = torch.from_numpy(arrays[f"p.{BLOCK_NAMES.get(name, name)}"])
            parameter.copy_(values.reshape(parameter.shape))
    x = torch.from_numpy(arrays["x"]).requires_grad_()
    y = block(x)
    torch.testing.assert_close(y, torch.from_numpy(arrays["y"]), atol=1e-5, rtol=1e-4)
    (y * torch.from_numpy(arrays["ct"])).sum().backward()
    torch.testing.assert_close(x.grad, torch.from_numpy(arrays["gx"]), atol=1e-5, rtol=1e-4)
    for name, parameter in block.named_parameters():
        expected = torch.from_numpy(arrays[f"gp.{BLOCK_NAMES.get(name, name)}"])
        torch.testing.assert_close(
            parameter.grad, expected.reshape(parameter.shape), atol=1e-5, rtol=1e-4
        )


def test_forward_equals_an_explicit_implementation() -> None:
    model = rm.create_model("tost_tiny_16", **SMALL).eval()
    images = torch.randn(2, 3, 32, 32)
    tokens = model.patch_embed(images) + model.positions(2, 2)
    x = tokens.flatten(2).transpose(1, 2)
    for block in model.blocks:
        x = x + block.scale1.scale * block.mixer(block.norm1(x))
        x = x + block.scale2.scale * block.mlp(block.norm2(x))
    x = torch.cat((model.cls_token.token.expand(2, -1, -1), x), dim=1)
    for block in model.class_blocks:
        assert block.tokens_norm
        x = block(x)
    torch.testing.assert_close(model(images), model.head(model.norm(x)[:, 0]))


def test_initialisation_follows_the_released_code() -> None:
    model = rm.create_model("tost_tiny_16", num_layers=2)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.05), name
            assert not module.bias.any(), name
        if isinstance(module, torch.nn.LayerNorm):
            assert module.eps == 1e-6
            assert module.weight.eq(1).all()
            assert not module.bias.any()
    assert model.cls_token.token.std().item() == pytest.approx(0.02, rel=0.2)
    assert model.blocks[0].mixer.temperature.eq(1).all()
    convolution = model.patch_embed.proj[0][0]
    bound = (3 * 9) ** -0.5  # PyTorch's default: uniform within 1 / sqrt(fan in)
    assert 0.9 * bound < convolution.weight.abs().max().item() <= bound


@pytest.mark.parametrize(("layers", "eta"), [("tost_tiny_16", 1.0), ("tost_tiny_24_16", 1e-5)])
def test_layer_scale_starts_at_eta(layers: str, eta: float) -> None:
    model = rm.create_model(layers, **SMALL)
    scales = [p for name, p in model.named_parameters() if name.endswith(".scale")]
    assert len(scales) == 8
    assert all(torch.equal(scale, torch.full_like(scale, eta)) for scale in scales)


def test_parameters_without_weight_decay() -> None:
    model = rm.create_model("tost_tiny_16", **SMALL)
    names = {"cls_token.token", "blocks.0.mixer.temperature", "blocks.1.mixer.temperature"}
    assert model.no_weight_decay() == names


def test_ista_variant_replaces_the_branch_by_a_step() -> None:
    model = rm.create_model("tost_ista_tiny_16", **SMALL).eval()
    block = model.blocks[0]
    assert isinstance(block.mlp, ISTA)
    x = torch.randn(2, 4, 24)
    mixed = x + block.scale1.scale * block.mixer(block.norm1(x))
    torch.testing.assert_close(block(x), block.mlp(block.norm2(mixed)))
    assert isinstance(model.class_blocks[0].mlp, FeedForward)
    crate = rm.create_model("crate_tiny_16", **SMALL)
    assert {type(b.mixer).__name__ for b in crate.blocks} == {"Crate"}


@pytest.mark.parametrize("mixer", rm.list_mixers())
def test_every_mixer_can_be_used(mixer: str) -> None:
    model = rm.create_model("tost_tiny_16", mixer=mixer, patch_size=8, **SMALL)
    model(torch.randn(3, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_drop_path_acts_in_training_only() -> None:
    model = rm.create_model("tost_tiny_16", drop_path=0.5, **SMALL)
    images = torch.randn(4, 3, 32, 32)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


def test_norms_convert_to_synchronised_ones() -> None:
    model = rm.create_model("tost_tiny_16", **SMALL)
    keys = list(model.state_dict())
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert any(isinstance(m, torch.nn.SyncBatchNorm) for m in converted.modules())
    assert isinstance(converted, ToST)
    assert list(converted.state_dict()) == keys


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "patch": ({"patch_size": 12}, "patch_size: .*height = 32"),
    "not halved": ({"patch_size": 1}, r"patch_size: .*\b2\b.*got 1\b"),
    "narrow": ({"dim": 6}, r"dim: .*\b8\b.*got 6\b"),
    "heads": ({"num_heads": 5}, r"num_heads: .*dim = 24.*got 5\b"),
    "mixer": ({"mixer": "tsas"}, "'tsas'.*tssa"),
    "feed-forward": ({"feed_forward": "istb"}, "feed_forward: .*got 'istb'"),
    "layer scale": ({"layer_scale": 0.0}, r"layer_scale: .*\b0\b"),
    "drop path": ({"drop_path": 1.0}, r"drop_path: .*got 1\.0"),
    "tokens norm": ({"tokens_norm": 1}, "tokens_norm: .*True.*False.*got 1"),
    "class layers": ({"num_class_layers": 0}, "num_class_layers"),
    "classes": ({"num_classes": 0}, "num_classes"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.create_model("tost_tiny_16", **{**SMALL, **change})


def test_bad_images_are_refused() -> None:
    model = rm.create_model("tost_tiny_16", **SMALL)
    with pytest.raises(rm.InputError, match=r"\(B, 3, 32, 32\).*got \(2, 3, 32, 48\)"):
        model(torch.randn(2, 3, 32, 48))
