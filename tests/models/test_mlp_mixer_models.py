"""MLP-Mixers, dense, butterfly and patch-only: parameter counts, released weights, MACs, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.models.macs import multiply_accumulates
from rifflemix.models.vision.mlp_mixer import MLPMixer
from rifflemix.models.vision.patch_only import PatchOnlyMixer

Golden = Callable[[str], dict[str, np.ndarray]]

COUNTS = {
    "mlp_mixer_dense_e1": 351675,
    "mlp_mixer_butterfly_linear_e1": 140961,
    "mlp_mixer_butterfly_mlp_e1": 143551,
    "mlp_mixer_dense_e2": 615288,
    "mlp_mixer_butterfly_linear_e2": 193860,
    "mlp_mixer_butterfly_mlp_e2": 197745,
    "mlp_mixer_c1_l7": 896779,
    "mlp_mixer_c1_l10": 1228096,
    "mlp_mixer_c2_l7": 884408,
    "mlp_mixer_c2_l10": 1218257,
    "patch_only_cifar10_l7": 807082,
    "patch_only_cifar10_l10": 1137220,
    "patch_only_cifar100_l7": 1137922,
    "patch_only_cifar100_l10": 1468060,
}
# CIFAR-100: parameters and MACs in millions, as reported.
HUNDRED_CLASSES = {
    "mlp_mixer_c1_l7": (1.95, 75.7),
    "mlp_mixer_c1_l10": (2.28, 107.41),
    "mlp_mixer_c2_l7": (1.77, 61.36),
    "mlp_mixer_c2_l10": (2.10, 87.04),
}


def on_meta(name: str, **settings: Any) -> rm.models.Model:
    with torch.device("meta"):
        return rm.create_model(name, **settings)


@pytest.mark.parametrize(("name", "total"), COUNTS.items(), ids=COUNTS)
def test_parameter_counts_equal_the_paper(name: str, total: int) -> None:
    assert on_meta(name).num_parameters() == total


@pytest.mark.parametrize("name", COUNTS)
def test_multiply_accumulates(name: str) -> None:
    number, unit = rm.models.model_card(name).printed_macs.split(" ")
    image = torch.empty(1, 3, 32, 32, device="meta")
    macs = multiply_accumulates(on_meta(name), image)
    assert unit == "M"
    assert macs / 1e6 == pytest.approx(float(number), rel=1e-3)


@pytest.mark.parametrize("name", HUNDRED_CLASSES)
def test_sizes_for_a_hundred_classes(name: str) -> None:
    parameters, macs = HUNDRED_CLASSES[name]
    model = on_meta(name, num_classes=100)
    assert round(model.num_parameters() / 1e6, 2) == parameters
    image = torch.empty(1, 3, 32, 32, device="meta")
    assert multiply_accumulates(model, image) / 1e6 == pytest.approx(macs, rel=1e-3)


def test_counting_does_not_change_the_model() -> None:
    model = rm.create_model("mlp_mixer_dense_e1", num_layers=1)
    images = torch.randn(2, 3, 32, 32)
    once, twice = multiply_accumulates(model, images[:1]), multiply_accumulates(model, images)
    assert twice == 2 * once
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training
    with pytest.raises(rm.InputError):
        multiply_accumulates(model, images[:, :2])
    assert not any(module._forward_hooks for module in model.modules())


def check_golden(vectors: dict[str, np.ndarray], model: rm.models.Model) -> None:
    """Compare in float64: logits near 50 have errors up to 4e-5 in float32, also in the vectors."""
    weights = {
        key.removeprefix("p."): torch.from_numpy(array)
        for key, array in vectors.items()
        if key.startswith("p.")
    }
    rm.models.load_official(model.eval().double(), weights)
    logits = model(torch.from_numpy(vectors["x"]).double()).float()
    torch.testing.assert_close(logits, torch.from_numpy(vectors["y"]), atol=1e-5, rtol=1e-4)


def test_mlp_mixer_equals_the_golden_file(golden: Golden) -> None:
    settings = {"image_size": 8, "dim": 72, "num_layers": 2, "mlp_ratio": 2, "num_classes": 5}
    model = rm.create_model("mlp_mixer_dense_e2", **settings)
    check_golden(golden("mlp_mixer_tiny"), model)


def test_patch_only_equals_the_golden_file(golden: Golden) -> None:
    settings = {"image_size": 8, "patch_sizes": [2, 3], "num_layers": 2, "num_classes": 5}
    model = rm.create_model("patch_only_cifar10_l7", **settings, hidden_channels=3)
    check_golden(golden("patch_only_mixer_tiny"), model)


def as_released(model: MLPMixer, images: Tensor) -> Tensor:
    """Follow the order of the released code: unfold patches, tokens as matrix rows."""
    x = torch.nn.functional.unfold(images, model.patch_size, stride=model.patch_size).mT
    x = model.patch_embed.proj(x)
    for block in model.blocks:
        tokens = block.norm1(x).transpose(1, 2).reshape(-1, x.shape[1])
        x = x + block.token_mlp(tokens).view(len(x), x.shape[2], -1).transpose(1, 2)
        x = x + block.channel_mlp(block.norm2(x))
    return model.head(x.reshape(len(x), -1))


@pytest.mark.parametrize("mlp", ["dense", "butterfly_linear", "butterfly_mlp"])
def test_tokens_then_channels(mlp: str) -> None:
    model = MLPMixer(mlp=mlp, image_size=12, dim=16, num_layers=2).eval()
    images = torch.randn(3, 3, 12, 12)
    torch.testing.assert_close(model(images), as_released(model, images))


ACTIVATIONS = {"dense": "GELU", "butterfly_linear": "ELU", "butterfly_mlp": "GELU"}


@pytest.mark.parametrize(("mlp", "activation"), ACTIVATIONS.items(), ids=ACTIVATIONS)
def test_activations_equal_the_recorded_runs(mlp: str, activation: str) -> None:
    kinds = {type(m).__name__ for m in MLPMixer(mlp=mlp, num_layers=1).modules()}
    assert kinds & {"GELU", "ELU"} == {activation}


@pytest.mark.parametrize("mlp", ["dense", "butterfly_linear", "butterfly_mlp"])
def test_every_tensor_has_one_position_in_the_released_code(mlp: str) -> None:
    model = MLPMixer(mlp=mlp, image_size=12, dim=16, num_layers=2)
    own, layout = model.state_dict(), model.official_tensors()
    shapes = {
        key: entry.shape or tuple(entry.position(own[str(entry.name)]).shape)
        for key, entry in layout.items()
    }
    assert sum(np.prod(shape) for shape in shapes.values()) == model.num_parameters()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    rm.models.load_official(model, {key: torch.randn(shape) for key, shape in shapes.items()})
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


RELEASED_MLPS = {
    "butterfly_mlp_n16b4": ("butterfly_mlp", "mlp_patch"),
    "butterfly_linear_mlp_n16b4": ("butterfly_linear", "mlp_channel"),
}


@pytest.mark.parametrize("name", RELEASED_MLPS)
def test_released_mlps_are_loaded_into_the_right_modules(golden: Golden, name: str) -> None:
    """With 16 patches and 16 channels, the golden vectors fit both MLPs of a block."""
    vectors, (mlp, part) = golden(name), RELEASED_MLPS[name]
    model = MLPMixer(mlp=mlp, image_size=16, dim=16, num_layers=1)
    own, layout = model.state_dict(), model.official_tensors()
    with torch.no_grad():
        for key in (k.removeprefix("p.") for k in vectors if k.startswith("p.")):
            entry = layout[f"mixer_blocks.0.{part}.{key}"]
            position = entry.position(own[str(entry.name)])
            position.copy_(torch.from_numpy(vectors[f"p.{key}"]).reshape(position.shape))
    block = model.blocks[0]
    layer = block.token_mlp if part == "mlp_patch" else block.channel_mlp
    if mlp == "butterfly_linear":
        layer.act = torch.nn.GELU()  # the golden vectors use GELU, the class uses ELU
    y = layer(torch.from_numpy(vectors["x"]))
    torch.testing.assert_close(y, torch.from_numpy(vectors["y"]), atol=1e-5, rtol=1e-4)


def test_resizing_keeps_the_corners() -> None:
    model = rm.create_model("mlp_mixer_c1_l7", num_layers=1)
    images = torch.randn(2, 3, 32, 32)
    resized = model.resize(images)
    assert resized.shape == (2, 3, 36, 36)
    corners = (slice(None), slice(None), [0, 0, -1, -1], [0, -1, 0, -1])
    torch.testing.assert_close(resized[corners], images[corners])
    assert model(images).shape == (2, 10)


@pytest.mark.parametrize("hidden", [3, 4])
def test_patch_only_by_unfold_and_fold(hidden: int) -> None:
    settings = {"image_size": 8, "patch_sizes": [2, 3], "num_layers": 2}
    model = PatchOnlyMixer(**settings, hidden_channels=hidden).eval().double()
    assert isinstance(model.expand, torch.nn.Conv2d) == (hidden != 3)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    scaled = torch.nn.functional.interpolate(images, (6, 6), mode="bilinear", align_corners=True)
    x = model.expand(scaled)
    for layer in (layer for block in model.blocks for layer in block):
        p = layer.patch_size
        y = layer.norm(torch.nn.functional.unfold(x, p, stride=p).mT)
        y = layer.fc2(torch.nn.functional.gelu(layer.fc1(y))).mT
        x = x + torch.nn.functional.fold(y, (6, 6), p, stride=p)
    torch.testing.assert_close(model(images), model.head(x.reshape(2, -1)))


def test_patch_only_connects_the_whole_image() -> None:
    """With patch sizes 2 and 3, an output pixel of two blocks depends on all of a 6 x 6 image."""
    model = PatchOnlyMixer(image_size=6, patch_sizes=[2, 3], num_layers=2).double()
    x = torch.randn(1, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    y = x
    for block in model.blocks:
        y = block(y)
    (gradient,) = torch.autograd.grad(y[0, 0, 0, 0], x)
    assert (gradient.abs().amax(1) > 1e-12).all()


def test_patch_sizes_with_a_common_factor_warn() -> None:
    with pytest.warns(UserWarning, match=r"\bruns of 4\b"):
        PatchOnlyMixer(image_size=8, patch_sizes=[2, 4], num_layers=1)


BAD_MIXER: dict[str, tuple[dict[str, Any], str]] = {
    "patch": ({"patch_size": 5}, "patch_size: .*height = 32"),
    "resize": ({"resize": 30}, "patch_size: .*height = 30"),
    "resize pair": ({"resize": [30]}, "resize"),
    "mlp": ({"mlp": "sparse"}, "mlp: .*butterfly_linear.*butterfly_mlp.*got 'sparse'"),
    "dim": ({"mlp": "butterfly_mlp", "dim": 120}, r"dim: .*got 120\b"),
    "patches": (
        {"mlp": "butterfly_linear", "image_size": [32, 16]},
        r"got 32\b",
    ),
    "ratio": ({"mlp": "butterfly_linear", "mlp_ratio": 1.5}, r"mlp_ratio: .*got 1\.5"),
    "no ratio": ({"mlp_ratio": 0}, "mlp_ratio"),
    "layers": ({"num_layers": 0}, "num_layers"),
    "classes": ({"num_classes": 0}, "num_classes"),
}


@pytest.mark.parametrize(("change", "message"), BAD_MIXER.values(), ids=BAD_MIXER)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.create_model("mlp_mixer_dense_e1", **change)


BAD_PATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"patch_sizes": []}, r"patch_sizes: .*got \(\)"),
    "zero": ({"patch_sizes": [0, 5]}, "patch_sizes"),
    "text": ({"patch_sizes": "57"}, "patch_sizes"),
    "hidden": ({"hidden_channels": 0}, "hidden_channels"),
    "ratio": ({"mlp_ratio": 0.001}, "expansion"),
    "layers": ({"num_layers": 0}, "num_layers"),
    "classes": ({"num_classes": 0}, "num_classes"),
    "image": ({"image_size": [1, 2, 3]}, "image_size"),
}


@pytest.mark.parametrize(("change", "message"), BAD_PATCHES.values(), ids=BAD_PATCHES)
def test_bad_patch_only_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.create_model("patch_only_cifar10_l7", **change)


@pytest.mark.parametrize("name", ["mlp_mixer_c1_l7", "patch_only_cifar10_l7"])
def test_bad_images_are_refused(name: str) -> None:
    model = on_meta(name, num_layers=1)
    with pytest.raises(rm.InputError, match=r"\(B, 3, 32, 32\)"):
        model(torch.zeros(2, 3, 36, 36, device="meta"))
    mask = torch.zeros(2, 4, dtype=torch.bool)
    with pytest.raises(rm.InputError, match=r"images: .*got torch\.int64"):
        model(torch.zeros(1, 3, 32, 32, dtype=torch.int64))
    with pytest.raises(rm.InputError, match=r"key_padding_mask: .*None"):
        model(torch.zeros(2, 3, 32, 32, device="meta"), key_padding_mask=mask)
