"""Random augmentations with Pillow: crops, flips, RandAugment and random erasing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rifflemix.lab.tasks.images.crops import random_rectangle
from rifflemix.lab.tasks.images.rand_augment import (
    Picture,
    rand_augment,
    rand_augment_increasing,
    to_levels,
    to_picture,
)

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
