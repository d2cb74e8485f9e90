"""How training images are changed for DeiT and XCiT: crop, mirror, RandAugment, erasing.

Touvron et al. 2021, "Training data-efficient image transformers", table 9, as its release has it:
RandAugment of strength 9, which varies by 0.5, and of fifteen operations that change more with
more strength; two are drawn, and each is left out half of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from rifflemix.tasks.images.crops import random_rectangle

_CHANGES, _STRENGTH, _DEVIATION, _TOP = 2, 9.0, 0.5, 10.0
_ATTEMPTS = 10

Picture = Image.Image


class _Strength(NamedTuple):
    """How much, from 0 to 1, in which direction, and the color of what comes in from outside."""

    share: float
    sign: float
    fill: Any


def crop_and_change(levels: Tensor, generator: np.random.Generator, mean: Sequence[int]) -> Tensor:
    """A random rectangle of an image, resized (bicubic), mirrored half of the time, and changed.

    Args:
        levels: (channels, height, width) whole numbers from 0 to 255, floating-point; 1 or 3
            channels.
        generator: draws everything.
        mean: level of each channel that fills what comes in from outside.

    Returns:
        Levels of the same shape.
    """
    height, width = levels.shape[1:]
    top, left, high, wide = random_rectangle(height, width, generator)
    crop = levels[:, top : top + high, left : left + wide].byte().permute(1, 2, 0).numpy()
    image = Image.fromarray(np.ascontiguousarray(crop.squeeze(2) if len(levels) == 1 else crop))
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    if generator.integers(2):
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    fill = mean[0] if len(levels) == 1 else tuple(mean)
    for _ in range(_CHANGES):
        change = OPERATIONS[int(generator.integers(len(OPERATIONS)))]
        if generator.integers(2):
            strength = min(max(generator.normal(_STRENGTH, _DEVIATION), 0.0), _TOP) / _TOP
            image = change(image, _Strength(strength, generator.choice((-1.0, 1.0)), fill))
    pixels = np.array(image, dtype=np.float32).reshape(height, width, -1)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def erase(image: Tensor, generator: np.random.Generator) -> Tensor:
    """A quarter of the time, replace a rectangle of 2 to 33 % of the area by normal noise.

    Args:
        image: (channels, height, width), normalised.
        generator: draws everything.

    Source: Zhong et al. 2020, "Random Erasing Data Augmentation", algorithm 1, with noise.
    """
    if generator.random() >= 0.25:
        return image
    channels, height, width = image.shape
    for _ in range(_ATTEMPTS):
        area = height * width * generator.uniform(0.02, 1 / 3)
        ratio = math.exp(generator.uniform(math.log(0.3), -math.log(0.3)))
        high, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if high < height and wide < width:
            top = int(generator.integers(height - high + 1))
            left = int(generator.integers(width - wide + 1))
            noise = generator.standard_normal((channels, high, wide), np.float32)
            erased = image.clone()
            erased[:, top : top + high, left : left + wide] = torch.from_numpy(noise)
            return erased
    return image


def auto_contrast(image: Picture, strength: _Strength) -> Picture:
    """Each channel stretched to all levels."""
    return ImageOps.autocontrast(image)


def equalize(image: Picture, strength: _Strength) -> Picture:
    """Each channel's levels made equally frequent."""
    return ImageOps.equalize(image)


def invert(image: Picture, strength: _Strength) -> Picture:
    """The negative."""
    return ImageOps.invert(image)


def rotate(image: Picture, strength: _Strength) -> Picture:
    """By up to 30 degrees about the centre."""
    angle = strength.sign * 30.0 * strength.share
    return image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=strength.fill)


def posterize(image: Picture, strength: _Strength) -> Picture:
    """The highest bits kept, 4 and fewer; of none, which Pillow refuses, all is black."""
    bits = 4 - int(4 * strength.share)
    return ImageOps.posterize(image, bits) if bits else image.point(lambda level: 0)


def solarize(image: Picture, strength: _Strength) -> Picture:
    """Levels from a threshold on, which falls from 256 to 0, turned into their negatives."""
    return ImageOps.solarize(image, 256 - int(256 * strength.share))


def solarize_add(image: Picture, strength: _Strength) -> Picture:
    """Up to 110 added to levels below 128."""
    more = int(110 * strength.share)
    table = [level + more if level < 128 else level for level in range(256)]
    return image.point(table * len(image.getbands()))


def color(image: Picture, strength: _Strength) -> Picture:
    """Away from gray or towards it."""
    return ImageEnhance.Color(image).enhance(_factor(strength))


def contrast(image: Picture, strength: _Strength) -> Picture:
    """Away from the mean of the gray image or towards it."""
    return ImageEnhance.Contrast(image).enhance(_factor(strength))


def brightness(image: Picture, strength: _Strength) -> Picture:
    """Away from black or towards it."""
    return ImageEnhance.Brightness(image).enhance(_factor(strength))


def sharpness(image: Picture, strength: _Strength) -> Picture:
    """Away from a smoothed image or towards it."""
    return ImageEnhance.Sharpness(image).enhance(_factor(strength))


def shear_x(image: Picture, strength: _Strength) -> Picture:
    """Rows shifted by up to 0.3 of their position."""
    return _moved(image, strength, (1.0, strength.sign * 0.3 * strength.share, 0.0, 0.0, 1.0, 0.0))


def shear_y(image: Picture, strength: _Strength) -> Picture:
    """Columns shifted by up to 0.3 of their position."""
    return _moved(image, strength, (1.0, 0.0, 0.0, strength.sign * 0.3 * strength.share, 1.0, 0.0))


def translate_x(image: Picture, strength: _Strength) -> Picture:
    """Shifted sideways by up to 0.45 of the width."""
    shift = strength.sign * 0.45 * strength.share * image.width
    return _moved(image, strength, (1.0, 0.0, shift, 0.0, 1.0, 0.0))


def translate_y(image: Picture, strength: _Strength) -> Picture:
    """Shifted up or down by up to 0.45 of the height."""
    shift = strength.sign * 0.45 * strength.share * image.height
    return _moved(image, strength, (1.0, 0.0, 0.0, 0.0, 1.0, shift))


def _factor(strength: _Strength) -> float:
    return max(0.1, 1.0 + strength.sign * 0.9 * strength.share)


def _moved(image: Picture, strength: _Strength, to: tuple[float, ...]) -> Picture:
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        to,
        Image.Resampling.BICUBIC,
        fillcolor=strength.fill,
    )


Operation = Callable[[Picture, _Strength], Picture]

OPERATIONS: tuple[Operation, ...] = (
    auto_contrast,
    equalize,
    invert,
    rotate,
    posterize,
    solarize,
    solarize_add,
    color,
    contrast,
    brightness,
    sharpness,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)
