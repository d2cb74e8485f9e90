"""Random crops and flips of training images, Mixup and CutMix, without Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def crop_flip(
    images: Tensor, black: Sequence[float], draws: Sequence[np.random.Generator]
) -> Tensor:
    """Crop each padded image at random and flip it with probability 1/2.

    Args:
        images: (B, channels, height, width).
        black: value of a black pixel in each channel. It fills 4 pixels of padding per side.
        draws: one random generator per image.
    """
    height, width = images.shape[2:]
    padded = np.empty((*images.shape[:2], height + 8, width + 8), np.float32)
    padded[:] = np.asarray(black, np.float32)[:, None, None]
    padded[:, :, 4:-4, 4:-4] = images.numpy()
    changed = np.empty(images.shape, np.float32)
    for out, image, draw in zip(changed, padded, draws, strict=True):
        top, left, mirrored = (int(draw.integers(high)) for high in (9, 9, 2))
        crop = image[:, top : top + height, left : left + width]
        out[:] = crop[:, :, ::-1] if mirrored else crop
    return torch.from_numpy(changed)


def resized_crop_flip(image: Tensor, generator: np.random.Generator) -> Tensor:
    """Resize a random rectangle of an image and flip it with probability 1/2.

    Args:
        image: (channels, height, width).
        generator: random generator.
    """
    top, left, height, width = random_rectangle(image.shape[1], image.shape[2], generator)
    crop = image[:, top : top + height, left : left + width]
    resized = functional.interpolate(
        crop[None], size=image.shape[1:], mode="bilinear", align_corners=False, antialias=True
    )[0]
    return resized.flip(-1) if generator.integers(2) else resized


def random_rectangle(
    height: int, width: int, generator: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw a random rectangle of an image.

    Returns:
        Top, left, height and width. This is the whole image if ten attempts do not fit.
    """
    for _ in range(10):
        area = height * width * generator.uniform(0.08, 1.0)
        ratio = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            top = int(generator.integers(height - high + 1))
            return top, int(generator.integers(width - wide + 1)), high, wide
    return 0, 0, height, width


def mix_images(
    images: Tensor,
    labels: Tensor,
    generator: np.random.Generator,
    *,
    num_classes: int,
    mixup: float,
    cutmix: float,
) -> tuple[Tensor, Tensor]:
    """Mix each image with its counterpart in the reversed batch.

    If both `mixup` and `cutmix` are positive, each is used with probability 1/2.

    Args:
        images: (B, channels, height, width).
        labels: (B,) int64 below `num_classes`.
        generator: random generator. All images of the batch share the method, the mixing weight
            and the rectangle.
        num_classes: number of columns of the mixed labels.
        mixup: parameter of the Beta distribution of the mixing weight. Pass 0 to use CutMix only.
        cutmix: parameter of the Beta distribution of the area that an image keeps. A rectangle
            of the other image replaces the rest. Pass 0 to use mixup only.

    Returns:
        Images of the same shape, and (B, num_classes) float32 probabilities.

    Source: Zhang et al. 2018, "mixup", equation 1; Yun et al. 2019, "CutMix", equations 1 and 2.
    The label weights use only the part of the rectangle inside the image.
    """
    cuts = cutmix > 0 and (mixup == 0 or bool(generator.integers(2)))
    kind = cutmix if cuts else mixup
    share = float(generator.beta(kind, kind))  # weight of the image itself
    others, classes = images.flip(0), functional.one_hot(labels, num_classes).float()
    if cuts:
        rows, columns = _rectangle(images.shape[2], images.shape[3], share, generator)
        images = images.clone()
        images[:, :, rows, columns] = others[:, :, rows, columns]
        inside = (rows.stop - rows.start) * (columns.stop - columns.start)
        share = 1.0 - inside / (images.shape[2] * images.shape[3])
    else:
        images = torch.lerp(others, images, share)
    return images, torch.lerp(classes.flip(0), classes, share)


def _rectangle(
    height: int, width: int, share: float, generator: np.random.Generator
) -> tuple[slice, slice]:
    """Draw the rows and columns of a rectangle around a random pixel.

    The rest of the image is `share` of its area, or more if the rectangle crosses the edge.
    """
    side = math.sqrt(1.0 - share)
    return _part(height, int(side * height), generator), _part(width, int(side * width), generator)


def _part(size: int, length: int, generator: np.random.Generator) -> slice:
    start = int(generator.integers(size)) - length // 2
    return slice(max(start, 0), min(start + length, size))
