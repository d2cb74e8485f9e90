"""Training and test images of data sets in two parts, such as MNIST and CIFAR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Progress, Task
from rifflemix.lab.tasks.core.builder import Request
from rifflemix.lab.tasks.core.card import TaskCard
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, check_ids
from rifflemix.lab.tasks.data_io.safe_readers import read_npz
from rifflemix.lab.tasks.images.image_files import PixelScale
from rifflemix.lab.tasks.images.pixels import pixel_task

PARTS = ("train", "test")
"""Parts of an image data set. Validation samples come from "train"."""


def carved_task(
    card: TaskCard,
    request: Request,
    source: Source,
    arrays: Mapping[str, Array],
    scale: PixelScale,
    classes: Sequence[str],
) -> Task:
    """Create a task from arrays of `check_parts`.

    Validation is the last 10 % of the training part.
    """
    stack = (arrays["train_images"], arrays["train_labels"])
    held_out = (arrays["test_images"], arrays["test_labels"])
    for labels in (stack[1], held_out[1]):
        folder = labels.path.parent if labels.path else Path(source.description)
        check_ids(folder, "labels", labels.values, len(classes))
    rows = np.arange(len(stack[1].values), dtype=np.int64)
    first = len(rows) - len(rows) // 10
    return pixel_task(
        card,
        request.options,
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
        data_source=source.description,
        classes=classes,
    )


def check_parts(
    name: str,
    parts: Mapping[str, tuple[object, object]],
    shape: tuple[int, ...],
    num_classes: int = 10,
) -> Arrays:
    """Check the images and labels of all parts.

    Returns:
        Arrays named "train_images", "train_labels" and so on.

    Raises:
        InputError: images are not (M, *shape) uint8, or labels are not (M,) integers below
            num_classes.
    """
    arrays: Arrays = {}
    for part, (images, labels) in parts.items():
        _check_images(f"{name}, {part}", images, labels, shape, num_classes)
        arrays[f"{part}_images"] = np.ascontiguousarray(images)
        arrays[f"{part}_labels"] = np.asarray(labels, dtype=np.uint8)
    return arrays


def hub_parts(
    splits: Any, title: str, image: str, label: str, progress: Progress
) -> dict[str, tuple[NDArray[np.uint8], NDArray[Any]]]:
    """Decode images and labels of each part of a Hugging Face data set."""
    parts = {}
    for part in PARTS:
        rows = splits[part]
        progress(f"decoding {title} {part} images", 0, len(rows))
        images = np.stack([np.asarray(row[image], dtype=np.uint8) for row in rows])
        parts[part] = images, np.asarray(rows[label])
    return parts


def decode_npz_parts(path: Path, shape: tuple[int, ...]) -> Arrays:
    """Read and check an .npz.xz archive with train_x, train_y, test_x and test_y."""
    content = read_npz(path)
    parts = {part: (content.get(f"{part}_x"), content.get(f"{part}_y")) for part in PARTS}
    return check_parts(str(path), parts, shape)


def _check_images(
    name: str, images: object, labels: object, shape: tuple[int, ...], num_classes: int
) -> None:
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
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InputError(
            f"{name}: expected labels 0 to {num_classes - 1}, got {labels.min()} to {labels.max()}"
        )
