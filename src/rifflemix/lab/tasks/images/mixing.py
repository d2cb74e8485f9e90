"""Mixtures of images and of their labels: mixup and CutMix."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def mix_images(
    images: Tensor,
    labels: Tensor,
    generator: np.random.Generator,
    *,
    num_classes: int,
    mixup: float,
    cutmix: float,
) -> tuple[Tensor, Tensor]:
    """Mix each image of a batch with the one as far from the batch's other end.

    Args:
        images: (B, channels, height, width).
        labels: (B,) int64 below `num_classes`.
        generator: draws what all images of the batch share: which way, how much, which rectangle.
        num_classes: columns of the mixed labels.
        mixup: parameter of the Beta distribution of a weighted mean; 0 for rectangles alone.
        cutmix: that of the area of a rectangle of the other image; 0 for means alone.

    Returns:
        Images of the same shape, and (B, num_classes) float32 probabilities.

    Source: Zhang et al. 2018, "mixup", equation 1; Yun et al. 2019, "CutMix", equations 1 and 2,
    with the share of the rectangle that lies within the image.
    """
    cuts = cutmix > 0 and (mixup == 0 or bool(generator.integers(2)))
    kind = cutmix if cuts else mixup
    share = float(generator.beta(kind, kind))  # of the image itself
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
    """Rows and columns about a random pixel that leave `share` of an image, or more at its edge."""
    side = math.sqrt(1.0 - share)
    return _part(height, int(side * height), generator), _part(width, int(side * width), generator)


def _part(size: int, length: int, generator: np.random.Generator) -> slice:
    start = int(generator.integers(size)) - length // 2
    return slice(max(start, 0), min(start + length, size))
