"""RandAugment: its operations against Pillow's, and as a change of training images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from rifflemix.tasks.images import rand_augment as ra
from rifflemix.tasks.images.pixels import WholeImages

SHARE = 14 / 30


def picture(channels: int = 3, height: int = 21, width: int = 32) -> Tensor:
    smooth = torch.nn.functional.interpolate(
        torch.rand(1, channels, 5, 6), size=(height, width), mode="bilinear"
    )[0]
    return (40 + 180 * smooth).round()


def pillow(levels: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    pixels = levels.permute(1, 2, 0).numpy().astype(np.uint8)
    return torch.from_numpy(np.array(change(Image.fromarray(pixels)))).permute(2, 0, 1).float()


def affine(*numbers: float) -> Callable[[Image.Image], Image.Image]:
    return lambda im: im.transform(
        im.size, Image.Transform.AFFINE, numbers, Image.Resampling.NEAREST
    )


def enhanced(kind: Any, sign: float) -> Callable[[Image.Image], Image.Image]:
    return lambda im: kind(im).enhance(1 + sign * 0.9 * SHARE)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", [operation.__name__ for operation in ra.OPERATIONS])
def test_operations_are_pillows(name: str, sign: float) -> None:
    levels = picture()
    height, width = levels.shape[1:]
    right, down = (sign * SHARE * 150 / 331 * size for size in (width, height))
    theirs: dict[str, Callable[[Image.Image], Image.Image]] = {
        "identity": lambda im: im,
        "auto_contrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
        "rotate": lambda im: im.rotate(sign * 30 * SHARE, Image.Resampling.NEAREST),
        "solarize": lambda im: ImageOps.solarize(im, int(np.ceil(255 * (1 - SHARE)))),
        "color": enhanced(ImageEnhance.Color, sign),
        "posterize": lambda im: ImageOps.posterize(im, 8 - round(4 * SHARE)),
        "contrast": enhanced(ImageEnhance.Contrast, sign),
        "brightness": enhanced(ImageEnhance.Brightness, sign),
        "sharpness": enhanced(ImageEnhance.Sharpness, sign),
        "shear_x": affine(1, sign * 0.3 * SHARE, 0, 0, 1, 0),
        "shear_y": affine(1, 0, 0, sign * 0.3 * SHARE, 1, 0),
        "translate_x": affine(1, 0, round(right), 0, 1, 0),
        "translate_y": affine(1, 0, 0, 0, 1, round(down)),
    }
    ours = getattr(ra, name)(levels, SHARE, sign).clamp(0, 255).round()
    difference = (ours - pillow(levels, theirs[name])).abs()
    if name in ("rotate", "shear_x", "shear_y"):  # where a pixel lies halfway between two
        assert (difference > 0).float().mean() < 0.02
    else:  # Pillow cuts fractions off where this rounds
        assert difference.max() <= 1
    assert name == "identity" or not torch.equal(ours, levels)


def test_changes_are_drawn_with_their_signs() -> None:
    levels = picture()
    found = [ra.rand_augment(levels, np.random.default_rng(seed)) for seed in range(300)]
    assert all(image.shape == levels.shape for image in found)
    assert all(torch.equal(image, image.clamp(0, 255).round()) for image in found)
    once = {
        ra.rand_augment(levels, np.random.default_rng(seed), changes=1).numpy().tobytes()
        for seed in range(600)
    }
    # Five operations know no sign; the others differ with it.
    assert len(once) == 5 + 2 * 9


def test_no_strength_changes_little() -> None:
    levels = picture()
    for operation in ra.OPERATIONS:
        if operation not in (ra.auto_contrast, ra.equalize, ra.solarize):
            assert torch.equal(operation(levels, 0.0, 1.0), levels), operation.__name__


def test_gray_and_flat_images() -> None:
    flat = torch.full((1, 8, 8), 77.0)
    for operation in ra.OPERATIONS:
        for levels in (flat, picture(1)):
            assert operation(levels, SHARE, 1.0).isfinite().all()
    assert torch.equal(ra.equalize(flat, SHARE, 1.0), flat)
    assert torch.equal(ra.auto_contrast(flat, SHARE, 1.0), flat)


def test_training_images_keep_their_scale() -> None:
    """Normalised, changed as levels, and normalised again: black stays black."""
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])
    task = WholeImages(
        name="x", options={}, input_kind="images", vocab_size=None, num_features=None,
        num_classes=2, max_length=4, padding=False, split_note="", data_source="", splits={},
        image_shape=(3, 21, 32), augmentation="rand_augment",
        black=tuple((-mean / std).tolist()), white=tuple(((1 - mean) / std).tolist()),
    )  # fmt: skip
    levels = torch.stack([picture() for _ in range(40)])
    images = (levels / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    changed = task.augment({"inputs": images}, list(range(40)))["inputs"]
    assert torch.equal(changed, task.augment({"inputs": images}, list(range(40)))["inputs"])
    back = (changed * std.view(3, 1, 1) + mean.view(3, 1, 1)) * 255
    torch.testing.assert_close(back, back.round().clamp(0, 255), atol=1e-3, rtol=0)
    assert not torch.equal(changed, images)
