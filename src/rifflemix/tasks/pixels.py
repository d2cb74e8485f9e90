"""Images as token sequences: one token a pixel, or one vector a patch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rifflemix.errors import InputError
from rifflemix.tasks.base import Sample, Task, TaskCard
from rifflemix.tasks.files import Array, Arrays, read_npz_xz

PARTS = ("train", "test")
"""What image data sets come in; validation is carved from the first."""


@dataclass(frozen=True)
class PixelScale:
    """How pixel values become floats: (value / top - mean) / std, by channel."""

    top: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class PixelSplit:
    """Some of a stack of images, in a given order.

    Attributes:
        images: (M, height, width) or (M, height, width, channels) uint8, all images of the file.
        labels: (M,) uint8.
        rows: which of them belong to the split, in order.
        patch_size: 1 on gray images gives tokens; else vectors of patch_size**2 * channels
            floats, rows of the patch first, channels last.
        scale: how pixels of vectors are normalised.
    """

    images: Array
    labels: Array
    rows: NDArray[np.int64]
    patch_size: int
    scale: PixelScale

    def __len__(self) -> int:
        """Number of images."""
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """The image as (N,) int64 pixels or (N, F) float32 patches, rows first, and its label."""
        row = int(self.rows[index])
        image, label = self.images.values[row], int(self.labels.values[row])
        if _is_tokens(self.patch_size, self.images):
            return torch.from_numpy(image.reshape(-1).astype(np.int64)), label
        return torch.from_numpy(self._patches(image)), label

    def digest(self) -> bytes:
        """Hash of the split's pixels and labels, in order."""
        total = hashlib.blake2b(digest_size=16)
        for start in range(0, len(self.rows), 4096):
            rows = self.rows[start : start + 4096]
            total.update(self.images.values[rows].tobytes())
            total.update(self.labels.values[rows].tobytes())
        return total.digest()

    def _patches(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        height, width = image.shape[:2]
        size, channels = self.patch_size, len(self.scale.mean)
        mean = np.asarray(self.scale.mean, dtype=np.float32)
        std = np.asarray(self.scale.std, dtype=np.float32)
        grid = image.reshape(height // size, size, width // size, size, channels)
        patches = grid.transpose(0, 2, 1, 3, 4).astype(np.float32)
        floats = (patches / np.float32(self.scale.top) - mean) / std
        return floats.reshape(-1, size * size * channels).astype(np.float32, copy=False)


def pixel_task(
    card: TaskCard,
    options: Mapping[str, Any],
    splits: Mapping[str, tuple[Array, Array, NDArray[np.int64]]],
    *,
    scale: PixelScale,
    split_note: str,
    data_source: str,
) -> Task:
    """A ten-class task over images.

    Args:
        card: of the task.
        options: resolved options; "patch_size" is read here.
        splits: images, labels and rows of each split, as in `PixelSplit`.
        scale: how pixels of vectors are normalised, with one mean for each channel.
        split_note: where the validation split comes from.
        data_source: where the pixels come from.

    Raises:
        InputError: a split without images.
    """
    for name, (_, _, rows) in splits.items():
        if len(rows) == 0:
            raise InputError(f"task {card.name}: {data_source} has no images for the {name} split")
    patch_size = int(options["patch_size"])
    height, width = splits["train"][0].values.shape[1:3]
    tokens = _is_tokens(patch_size, splits["train"][0])
    return Task(
        name=card.name,
        options=dict(options),
        input_kind="tokens" if tokens else "vectors",
        vocab_size=scale.top + 1 if tokens else None,
        num_features=None if tokens else patch_size**2 * len(scale.mean),
        num_classes=10,
        max_length=(height // patch_size) * (width // patch_size),
        padding=False,
        split_note=split_note,
        data_source=data_source,
        splits={name: PixelSplit(*split, patch_size, scale) for name, split in splits.items()},
    )


def carved_task(
    card: TaskCard,
    options: Mapping[str, Any],
    arrays: Mapping[str, Array],
    scale: PixelScale,
    data_source: str,
) -> Task:
    """A task from `check_parts` arrays, validation carved from the end of the training part."""
    stack = (arrays["train_images"], arrays["train_labels"])
    held_out = (arrays["test_images"], arrays["test_labels"])
    rows = np.arange(len(stack[1].values), dtype=np.int64)
    first = len(rows) - len(rows) // 10
    return pixel_task(
        card,
        options,
        {
            "train": (*stack, rows[:first]),
            "validation": (*stack, rows[first:]),
            "test": (*held_out, np.arange(len(held_out[1].values), dtype=np.int64)),
        },
        scale=scale,
        split_note=(
            "validation is the last 10 % of the training images in file order (the Long Range "
            "Arena takes as many, from an order of its own)"
        ),
        data_source=data_source,
    )


def check_parts(
    name: str, parts: Mapping[str, tuple[object, object]], shape: tuple[int, ...]
) -> Arrays:
    """Arrays "train_images", "train_labels" and so on of parts that hold images and labels.

    Raises:
        InputError: images other than (M, *shape) uint8, labels other than (M,) from 0 to 9.
    """
    arrays: Arrays = {}
    for part, (images, labels) in parts.items():
        _check_images(f"{name}, {part}", images, labels, shape)
        arrays[f"{part}_images"] = np.ascontiguousarray(images)
        arrays[f"{part}_labels"] = np.asarray(labels, dtype=np.uint8)
    return arrays


def decode_npz_parts(path: Path, shape: tuple[int, ...]) -> Arrays:
    """`check_parts` of an .npz.xz archive of train_x, train_y, test_x and test_y."""
    content = read_npz_xz(path)
    parts = {part: (content.get(f"{part}_x"), content.get(f"{part}_y")) for part in PARTS}
    return check_parts(str(path), parts, shape)


def _check_images(name: str, images: object, labels: object, shape: tuple[int, ...]) -> None:
    if not isinstance(images, np.ndarray) or not isinstance(labels, np.ndarray):
        raise InputError(f"{name}: expected an array of images and one of labels, found none")
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        raise InputError(
            f"{name}: expected images of shape {shape} in uint8, got {images.shape[1:]} in "
            f"{images.dtype}"
        )
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"{name}: expected one integer label for each of {len(images)} images, got "
            f"{labels.dtype} of shape {labels.shape}"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) <= 9:
        raise InputError(f"{name}: expected labels 0 to 9, got {labels.min()} to {labels.max()}")


def _is_tokens(patch_size: int, images: Array) -> bool:
    return patch_size == 1 and images.values.ndim == 3
