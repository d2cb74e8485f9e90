"""Random augmentations with Pillow: crops, flips, RandAugment and random erasing.

- `rand_augment`: the paper's version with fourteen operations, as in torchvision.
- `rand_augment_increasing`: DeiT's version with fifteen operations, as in timm. If an operation
  depends on the strength, a greater strength changes the image more.

Both use the same Pillow operations. They differ in the effect of a strength and in the
interpolation of moved images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from rifflemix.lab.tasks.images.crops import random_rectangle

Picture = Image.Image


def rand_augment(
    image: Picture, generator: np.random.Generator, *, changes: int = 2, strength: float = 14
) -> Picture:
    """Apply `changes` random operations to an image, drawn with replacement.

    Args:
        image: gray or color image.
        generator: random generator for the operations and their signs.
        changes: number of operations.
        strength: strength of all operations, from 0 to 30.

    Returns:
        An image of the same size. Pixels from outside the image are black.

    Source: Cubuk et al. 2020, "RandAugment", section 3 and its list of transformations.
    """
    moving = Moving(Image.Resampling.NEAREST, None)
    for _ in range(changes):
        name = _drawn(RAND_AUGMENT, generator)
        sign = 1.0 if generator.integers(2) else -1.0
        image = OPERATIONS[name](image, RAND_AUGMENT[name](strength / 30, sign), moving)
    return image


def rand_augment_increasing(
    image: Picture, generator: np.random.Generator, mean: Sequence[int]
) -> Picture:
    """Apply two random operations to an image, each with probability 1/2.

    Args:
        image: gray or color image.
        generator: random generator for the operations, their signs and their strengths. A
            strength has mean 9 (of 10) and standard deviation 0.5.
        mean: fill level of each channel for pixels from outside the image.

    Returns:
        An image of the same size.

    Source: Touvron et al. 2021, "Training data-efficient image transformers", table 9. The
    released code uses "rand-m9-mstd0.5-inc1" of timm.
    """
    moving = Moving(Image.Resampling.BICUBIC, mean[0] if len(mean) == 1 else tuple(mean))
    for _ in range(2):
        name = _drawn(INCREASING, generator)
        if generator.integers(2):
            share = min(max(generator.normal(9.0, 0.5), 0.0), 10.0) / 10.0
            sign = generator.choice((-1.0, 1.0))
            image = OPERATIONS[name](image, INCREASING[name](share, sign), moving)
    return image


class Moving(NamedTuple):
    """Interpolation of moved images, and the fill level of pixels from outside."""

    resampling: Image.Resampling
    fill: Any


def to_picture(levels: Tensor) -> Picture:
    """Convert levels to a gray or color Pillow image.

    Args:
        levels: (channels, height, width) integer values from 0 to 255.
    """
    pixels = levels.byte().permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(pixels.squeeze(2) if len(levels) == 1 else pixels))


def to_levels(image: Picture) -> Tensor:
    """Invert `to_picture`. The result is float32."""
    pixels = np.array(image, dtype=np.float32).reshape(image.height, image.width, -1)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _drawn(scale: Mapping[str, Amount], generator: np.random.Generator) -> str:
    return list(scale)[int(generator.integers(len(scale)))]


def _shifted(image: Picture, across: float, down: float, moving: Moving) -> Picture:
    """Shift an image by pixels. Nearest-neighbor sampling truncates to whole pixels."""
    if moving.resampling is Image.Resampling.NEAREST:
        across, down = int(across), int(down)
    return _moved(image, (1.0, 0.0, across, 0.0, 1.0, down), moving)


def _posterized(image: Picture, bits: float) -> Picture:
    """Keep the highest bits of each level.

    Zero bits give a black image, because Pillow does not support zero bits.
    """
    return ImageOps.posterize(image, int(bits)) if bits else image.point(lambda level: 0)


def _dark_raised(image: Picture, more: float) -> Picture:
    table = [level + int(more) if level < 128 else level for level in range(256)]
    return image.point(table * len(image.getbands()))


def _moved(image: Picture, to: tuple[float, ...], moving: Moving) -> Picture:
    affine = Image.Transform.AFFINE
    return image.transform(image.size, affine, to, moving.resampling, fillcolor=moving.fill)


Operation = Callable[[Picture, float, Moving], Picture]

OPERATIONS: dict[str, Operation] = {
    "identity": lambda image, _, __: image,
    "auto_contrast": lambda image, _, __: ImageOps.autocontrast(image),
    "equalize": lambda image, _, __: ImageOps.equalize(image),
    "invert": lambda image, _, __: ImageOps.invert(image),
    # Degrees around the center, counterclockwise.
    "rotate": lambda image, degrees, m: image.rotate(degrees, m.resampling, fillcolor=m.fill),
    # Number of bits to keep.
    "posterize": lambda image, bits, _: _posterized(image, bits),
    # Levels from this level on are inverted.
    "solarize": lambda image, level, _: ImageOps.solarize(image, int(level)),
    # Added to levels below 128.
    "solarize_add": lambda image, more, _: _dark_raised(image, more),
    # Factors: 0 gives a gray, flat, black or smooth image; 1 keeps the image.
    "color": lambda image, factor, _: ImageEnhance.Color(image).enhance(factor),
    "contrast": lambda image, factor, _: ImageEnhance.Contrast(image).enhance(factor),
    "brightness": lambda image, factor, _: ImageEnhance.Brightness(image).enhance(factor),
    "sharpness": lambda image, factor, _: ImageEnhance.Sharpness(image).enhance(factor),
    # Shift of a row or column per pixel of its position.
    "shear_x": lambda image, slope, m: _moved(image, (1.0, slope, 0.0, 0.0, 1.0, 0.0), m),
    "shear_y": lambda image, slope, m: _moved(image, (1.0, 0.0, 0.0, slope, 1.0, 0.0), m),
    # Shift as a share of the width or height.
    "translate_x": lambda image, part, m: _shifted(image, part * image.width, 0.0, m),
    "translate_y": lambda image, part, m: _shifted(image, 0.0, part * image.height, m),
}
"""Operations by name. Each changes an image by a given amount."""

Amount = Callable[[float, float], float]


def _nothing(share: float, sign: float) -> float:
    return 0.0


def _angle(share: float, sign: float) -> float:
    return sign * 30.0 * share


def _slope(share: float, sign: float) -> float:
    return sign * 0.3 * share


def _factor(share: float, sign: float) -> float:
    return max(0.1, 1.0 + sign * 0.9 * share)


def _part(share: float, sign: float) -> float:
    return sign * share * 150 / 331


RAND_AUGMENT: dict[str, Amount] = {
    "identity": _nothing,
    "auto_contrast": _nothing,
    "equalize": _nothing,
    "rotate": _angle,
    "solarize": lambda share, sign: math.ceil(255 - 255 * share - 1e-6),  # 1e-6: rounding errors
    "color": _factor,
    "posterize": lambda share, sign: 8 - round(4 * share),
    "contrast": _factor,
    "brightness": _factor,
    "sharpness": _factor,
    "shear_x": _slope,
    "shear_y": _slope,
    "translate_x": _part,
    "translate_y": _part,
}
"""Amount of each operation for a strength from 0 to 1 and a sign."""

INCREASING: dict[str, Amount] = {
    "auto_contrast": _nothing,
    "equalize": _nothing,
    "invert": _nothing,
    "rotate": _angle,
    "posterize": lambda share, sign: 4 - int(4 * share),
    "solarize": lambda share, sign: 256 - int(256 * share),
    "solarize_add": lambda share, sign: int(110 * share),
    "color": _factor,
    "contrast": _factor,
    "brightness": _factor,
    "sharpness": _factor,
    "shear_x": _slope,
    "shear_y": _slope,
    "translate_x": lambda share, sign: sign * 0.45 * share,
    "translate_y": lambda share, sign: sign * 0.45 * share,
}
"""Amounts for the operations of DeiT, in the form of `RAND_AUGMENT`."""


_ATTEMPTS = 10


def for_fine_tuning(levels: Tensor, generator: np.random.Generator) -> Tensor:
    """Apply a random crop, a random flip and RandAugment to an image.

    The crop is a random rectangle, resized with bilinear interpolation. RandAugment applies two
    operations of strength 14.

    Args:
        levels: (channels, height, width) integer values from 0 to 255 in a floating-point tensor,
            with 1 or 3 channels.
        generator: random generator.

    Returns:
        Levels of the same shape.

    Source: the released fine-tuning code of Yu et al. 2024, "White-Box Transformers via Sparse
    Rate Reduction".
    """
    image = _cropped(levels, generator, Image.Resampling.BILINEAR)
    return to_levels(rand_augment(image, generator))


def for_deit(levels: Tensor, generator: np.random.Generator, mean: Sequence[int]) -> Tensor:
    """Apply the random crop, random flip and RandAugment of DeiT.

    Unlike `for_fine_tuning`, this uses bicubic interpolation and `rand_augment_increasing`. DeiT
    also needs `erase`, as a separate step on the normalized image.

    Args:
        levels: (channels, height, width) integer values from 0 to 255 in a floating-point tensor,
            with 1 or 3 channels.
        generator: random generator.
        mean: fill level of each channel for pixels from outside the image.

    Returns:
        Levels of the same shape.

    Source: Touvron et al. 2021, "Training data-efficient image transformers", table 9.
    """
    image = _cropped(levels, generator, Image.Resampling.BICUBIC)
    return to_levels(rand_augment_increasing(image, generator, mean))


def _cropped(
    levels: Tensor, generator: np.random.Generator, resampling: Image.Resampling
) -> Picture:
    height, width = levels.shape[1:]
    top, left, high, wide = random_rectangle(height, width, generator)
    image = to_picture(levels[:, top : top + high, left : left + wide])
    image = image.resize((width, height), resampling)
    if generator.integers(2):
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


def erase(image: Tensor, generator: np.random.Generator) -> Tensor:
    """Replace a random rectangle by normal noise with probability 1/4.

    The rectangle covers 2 to 33 % of the area.

    Args:
        image: (channels, height, width), normalized.
        generator: random generator.

    Source: Zhong et al. 2020, "Random Erasing Data Augmentation", algorithm 1, with normal noise.
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
