"""How training images are changed at random with Pillow: crops, mirror images, RandAugment."""

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
    """A random rectangle of an image, resized (bilinear), mirrored or not, and RandAugment of it.

    Args:
        levels: (channels, height, width) whole numbers from 0 to 255, floating-point; 1 or 3
            channels.
        generator: draws everything.

    Returns:
        Levels of the same shape.

    Source: the released fine-tuning of Yu et al. 2024, "White-Box Transformers via Sparse Rate
    Reduction", with two changes of strength 14.
    """
    image = _cropped(levels, generator, Image.Resampling.BILINEAR)
    return to_levels(rand_augment(image, generator))


def for_deit(levels: Tensor, generator: np.random.Generator, mean: Sequence[int]) -> Tensor:
    """As `for_fine_tuning`, but bicubic, with DeiT's RandAugment; `erase` belongs to it.

    Args:
        levels: (channels, height, width) whole numbers from 0 to 255, floating-point; 1 or 3
            channels.
        generator: draws everything.
        mean: level of each channel that fills what comes in from outside.

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
