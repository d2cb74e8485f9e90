"""Compare RandAugment's operations and amounts with torchvision and timm."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from document_scripts import load_script
from rifflemix.lab.tasks.images import augmentations as ra

MEAN = (124, 116, 104)
# In the order of `rifflemix.lab.tasks.images.augmentations.INCREASING`.
TIMMS = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing",
    "SolarizeAdd", "ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing",
    "SharpnessIncreasing", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel",
)  # fmt: skip
STILL = ra.Moving(Image.Resampling.NEAREST, None)


def levels_of(channels: int = 3, height: int = 37, width: int = 45) -> Tensor:
    smooth = torch.nn.functional.interpolate(
        torch.rand(1, channels, 7, 8), size=(height, width), mode="bicubic"
    )[0]
    return (20 + 220 * smooth).round().clamp(0, 255)


def test_levels_and_pictures_convert_exactly() -> None:
    for channels in (1, 3):
        levels = levels_of(channels)
        assert ra.to_picture(levels).mode == ("L" if channels == 1 else "RGB")
        assert torch.equal(ra.to_levels(ra.to_picture(levels)), levels)
        assert torch.equal(ra.to_levels(ra.to_picture(levels[:, 3:9, 2:40])), levels[:, 3:9, 2:40])


@pytest.mark.parametrize("magnitude", [0.0, 3.3, 8.4, 9.0, 10.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_increasing_operations_are_timms(
    sign: float, magnitude: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_script("tests/surgery/torchvision_shim.py").declare_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timm = pytest.importorskip("timm.data.auto_augment")
    assert list(TIMMS) == timm._RAND_INCREASING_TRANSFORMS
    monkeypatch.setattr(random, "random", lambda: 0.4 if sign > 0 else 0.6)  # does it negate?
    moving = ra.Moving(Image.Resampling.BICUBIC, MEAN)
    for name, (ours, amount) in zip(TIMMS, ra.INCREASING.items(), strict=True):
        image, level = ra.to_picture(levels_of()), timm.LEVEL_TO_ARG[name]
        found = np.array(ra.OPERATIONS[ours](image, amount(magnitude / 10, sign), moving))
        arguments = level(magnitude, {}) if level else ()
        if name == "PosterizeIncreasing" and magnitude == 10.0:  # refused by Pillow
            assert not found.any()
            continue
        theirs = timm.NAME_TO_OP[name](
            image, *arguments, fillcolor=MEAN, resample=Image.Resampling.BICUBIC
        )
        assert np.array_equal(found, np.array(theirs)), name


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_strength_14_of_the_papers_scale(sign: float) -> None:
    share = 14 / 30
    amounts = {name: amount(share, sign) for name, amount in ra.RAND_AUGMENT.items()}
    # Cubuk et al. 2020 use the ranges of AutoAugment: 30 degrees, 4 bits, 0.3, 150 of 331 pixels.
    expected = {
        "rotate": sign * 14.0, "posterize": 6, "solarize": 136, "shear_x": sign * 0.14,
        "shear_y": sign * 0.14, "translate_x": sign * 70 / 331, "translate_y": sign * 70 / 331,
        "identity": 0, "auto_contrast": 0, "equalize": 0,
        **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), 1 + sign * 0.42),
    }  # fmt: skip
    assert amounts == pytest.approx(expected)


def test_images_move_by_whole_pixels() -> None:
    """Shift by a fraction of the width, as in the paper; new pixels are black."""
    levels = levels_of(height=20, width=40).clamp(min=1)
    for part, pixels in ((0.1, 4), (-0.1, -4), (0.11, 4), (0.14, 5), (-0.14, -5)):
        moved = ra.to_levels(ra.OPERATIONS["translate_x"](ra.to_picture(levels), part, STILL))
        expected = torch.roll(levels, -pixels, 2)
        expected[:, :, slice(-pixels, None) if pixels > 0 else slice(-pixels)] = 0
        assert torch.equal(moved, expected)


def test_changes_are_drawn_with_their_signs() -> None:
    image = ra.to_picture(levels_of())
    found = [ra.rand_augment(image, np.random.default_rng(seed)) for seed in range(300)]
    assert all(changed.size == image.size for changed in found)
    once = {
        ra.rand_augment(image, np.random.default_rng(seed), changes=1).tobytes()
        for seed in range(600)
    }
    # Five operations ignore the sign; the others differ with it.
    assert len(once) == 5 + 2 * 9


def test_strength_zero_does_not_change_images() -> None:
    image = ra.to_picture(levels_of())
    for name, amount in ra.RAND_AUGMENT.items():
        if name not in ("auto_contrast", "equalize", "solarize"):  # solarize maps 255 to 0
            assert ra.OPERATIONS[name](image, amount(0.0, 1.0), STILL) == image, name


@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_supports_gray_and_color(channels: int) -> None:
    flat = torch.full((channels, 8, 8), 77.0)
    fill = 100 if channels == 1 else MEAN
    for scale in (ra.RAND_AUGMENT, ra.INCREASING):
        for name, amount in scale.items():
            for image in (ra.to_picture(flat), ra.to_picture(levels_of(channels))):
                moving = ra.Moving(Image.Resampling.BICUBIC, fill)
                found = ra.OPERATIONS[name](image, amount(0.9, -1.0), moving)
                assert (found.mode, found.size) == (image.mode, image.size), name
    assert ImageOps.equalize(ra.to_picture(flat)) == ra.to_picture(flat)
