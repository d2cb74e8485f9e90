"""Image tasks over pixel tokens, patch vectors or whole images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError, bad_argument, check_choice, require_packages
from rifflemix.lab.tasks.core.base import Batch, Sample, Task, is_hit
from rifflemix.lab.tasks.core.card import Shapes, TaskCard
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.images.crops import crop_flip, mix_images, resized_crop_flip
from rifflemix.lab.tasks.images.image_files import PixelInputs, PixelScale

LAYOUTS = ("sequence", "image")
AUGMENTATIONS = ("none", "crop_flip", "resized_crop_flip", "rand_augment", "deit")
_BY_PILLOW = ("rand_augment", "deit")
STATISTICS = ("data", "per_image", "imagenet")
_TOP = 5


IMAGENET_SCALE = PixelScale(top=255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""The usual mean and standard deviation of ImageNet's training images."""


def scale_of(
    options: Mapping[str, Any], data: PixelScale, per_image: PixelScale | None
) -> PixelScale:
    """Return the scale that the option "statistics" selects.

    Args:
        options: resolved options.
        data: scale with the mean and standard deviation of all pixels.
        per_image: scale with the average standard deviation within an image. Pass None for gray
            images, because they support only "data".

    Raises:
        InputError: the name is unknown, or is not "data" for gray images.
    """
    name = options["statistics"]
    check_choice("statistics", name, STATISTICS)
    if name == "data":
        return data
    if per_image is None:
        raise bad_argument("statistics", "data with color gray", name)
    return IMAGENET_SCALE if name == "imagenet" else per_image


class ImageStack(Protocol):
    """Indexable uint8 images of one size: (height, width) or (height, width, channels)."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        ...

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]: ...

    def content(self, rows: NDArray[np.int64], /) -> Iterator[bytes]:
        """Yield the bytes of each image in `rows`, or their hash."""
        ...


@dataclass(frozen=True, eq=False)
class PixelSplit:
    """Images of one split, selected from a stack of images.

    Attributes:
        images: (M, height, width) or (M, height, width, channels) uint8, all images of the file.
        labels: (M,) unsigned integers.
        rows: indices of the images in the split, in order.
        inputs: conversion of the images.
    """

    images: ImageStack
    labels: Array
    rows: NDArray[np.int64]
    inputs: PixelInputs

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return an image, in one of the forms of `PixelInputs.convert`, and its label."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return several samples at once. The data loader of torch uses this fast path."""
        rows = [int(self.rows[index]) for index in indices]
        inputs = self.inputs.convert(np.stack([self.images[row] for row in rows]))
        labels = [int(self.labels.values[row]) for row in rows]
        return list(zip(inputs.unbind(), labels, strict=True))

    def digest(self) -> bytes:
        total = hashlib.blake2b(digest_size=16)
        for start in range(0, len(self.rows), 4096):
            rows = self.rows[start : start + 4096]
            for content in self.images.content(rows):
                total.update(content)
            total.update(self.labels.values[rows].tobytes())
        return total.digest()


Draws = Sequence[np.random.Generator]
Change = Callable[[Tensor, np.random.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class WholeImages(Task):
    """A task over whole images (B, channels, height, width).

    Attributes:
        image_shape: channels, height and width of an image.
        augmentation: random change of the training images. For "rand_augment" and "deit", see
            `rifflemix.lab.tasks.images.augmentations`.

            - "none": no change.
            - "crop_flip": a random crop of the image with 4 black pixels of padding per side,
              mirrored with probability 1/2.
            - "resized_crop_flip": a random rectangle of 8 to 100 % of the area, with an aspect
              ratio of 3/4 to 4/3. The rectangle is resized to the full image and mirrored with
              probability 1/2.
            - "rand_augment": "resized_crop_flip" and two RandAugment operations.
            - "deit": the augmentation of DeiT.
        black, white: value of a black and of a white pixel in each channel.
    """

    image_shape: tuple[int, int, int] = (1, 1, 1)
    augmentation: str = "none"
    black: tuple[float, ...] = (0.0,)
    white: tuple[float, ...] = (1.0,)

    observe = Task.observe  # same outputs as `Task`

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Add "top5_accuracy" to the metrics if there are more than five classes."""
        found = super().metrics(outputs, batch)
        if self.num_classes > _TOP:
            labels = batch["labels"]
            hits = is_hit(outputs.topk(_TOP, dim=1).indices, labels).sum()
            found["top5_accuracy"] = (float(hits.item()), len(labels))
        return found

    @property
    def metric_directions(self) -> dict[str, bool]:
        top = {"top5_accuracy": True} if self.num_classes > _TOP else {}
        return super().metric_directions | top

    def augment(self, batch: Batch, seeds: Sequence[int]) -> Batch:
        """Apply the augmentation to each training image with its own seed."""
        if self.augmentation == "none":
            return batch
        images, draws = batch["inputs"], [np.random.default_rng(seed) for seed in seeds]
        if self.augmentation == "resized_crop_flip":
            return {**batch, "inputs": _each(resized_crop_flip, images, draws)}
        if self.augmentation == "crop_flip":
            return {**batch, "inputs": crop_flip(images, self.black, draws)}
        by_pillow = _with_pillow(self.augmentation)
        if self.augmentation == "rand_augment":
            return {**batch, "inputs": self._as_levels(by_pillow.for_fine_tuning, images, draws)}
        mean = [round(-b / (w - b) * 255) for b, w in zip(self.black, self.white, strict=True)]
        changed = self._as_levels(partial(by_pillow.for_deit, mean=mean), images, draws)
        return {**batch, "inputs": _each(by_pillow.erase, changed, draws)}

    def _as_levels(self, change: Change, images: Tensor, draws: Draws) -> Tensor:
        """Apply `change` to images in integer levels from 0 to 255."""
        black, white = (images.new_tensor(v).view(-1, 1, 1) for v in (self.black, self.white))
        levels = ((images - black) * (255.0 / (white - black))).round().clamp(0, 255)
        return _each(change, levels, draws) * ((white - black) / 255.0) + black

    def mix(self, batch: Batch, seed: int, *, mixup: float, cutmix: float) -> Batch:
        """Mix images. Labels become (B, num_classes) float32 probabilities."""
        images, labels = mix_images(
            batch["inputs"],
            batch["labels"],
            np.random.default_rng(seed),
            num_classes=self.num_classes,
            mixup=mixup,
            cutmix=cutmix,
        )
        return {**batch, "inputs": images, "labels": labels}


def _each(change: Change, images: Tensor, draws: Draws) -> Tensor:
    return torch.stack(list(map(change, images, draws)))


def pixel_task(
    card: TaskCard,
    options: Mapping[str, Any],
    splits: Mapping[str, tuple[ImageStack, Array, NDArray[np.int64]]],
    *,
    scale: PixelScale,
    split_note: str,
    data_source: str,
    classes: Sequence[str],
) -> Task:
    """Create a task over images.

    Args:
        card: description of the task.
        options: resolved options. The function reads "patch_size", "layout", "augment" and
            "crop_share".
        splits: images, labels and rows of each split, as in `PixelSplit`.
        scale: normalization of patch vectors and whole images, with one mean per channel.
        split_note: origin of the validation split.
        data_source: origin of the pixels.
        classes: names of the classes. Label k is classes[k].

    Raises:
        InputError: a split has no images, or options contradict each other.
    """
    for name, (_, _, rows) in splits.items():
        if len(rows) == 0:
            raise InputError(f"task {card.name}: {data_source} has no images for the {name} split")
    side = splits["train"][0].row_shape[0]
    shapes = pixel_shapes(
        options,
        classes=len(classes),
        channels=len(scale.mean),
        side=side,
        levels=scale.top + 1,
    )
    inputs = PixelInputs(
        height=side,
        width=side,
        scale=scale,
        patch_size=None if shapes.image_shape else int(options["patch_size"]),
        as_tokens=shapes.input_kind == "tokens",
        largest=scale.top,
        crop_share=float(options.get("crop_share", 1.0)),
    )
    fields: dict[str, Any] = {
        "name": card.name,
        "options": dict(options),
        "split_note": split_note,
        "data_source": data_source,
        "splits": {name: PixelSplit(*split, inputs) for name, split in splits.items()},
        "inputs": inputs,
        "classes": tuple(classes),
        **shapes.for_task(),
    }
    if shapes.image_shape is not None:
        return WholeImages(
            **fields,
            image_shape=shapes.image_shape,
            augmentation=str(options["augment"]),
            black=tuple(-mean / std for mean, std in zip(scale.mean, scale.std, strict=True)),
            white=tuple((1 - mean) / std for mean, std in zip(scale.mean, scale.std, strict=True)),
        )
    if options.get("augment", "none") != "none":
        raise bad_argument("augment", "none with layout 'sequence'", repr(options["augment"]))
    return Task(**fields)


def pixel_shapes(
    options: Mapping[str, Any],
    *,
    classes: int,
    channels: int,
    side: int,
    levels: int = 256,
    patch_size: int = 1,
) -> Shapes:
    """Return the shapes of square images.

    Args:
        options: resolved options. The function reads "size", "color", "layout" and "patch_size".
        classes: number of classes.
        channels: number of channels of color images.
        side: height and width of the images if there is no option "size".
        levels: number of levels of a pixel.
        patch_size: patch size of the layout "sequence" if the option is None.
    """
    side = options.get("size", side)
    channels = 1 if options.get("color") == "gray" else channels
    if options.get("layout", "sequence") == "image":
        if options["patch_size"] not in (1, None):
            raise bad_argument(
                "patch_size",
                "1 with layout 'image'",
                options["patch_size"],
                "models cut the patches",
            )
        return Shapes(
            input_kind="images",
            num_classes=classes,
            max_length=side**2,
            image_shape=(channels, side, side),
        )
    patch = int(options["patch_size"] or patch_size)
    is_tokens = channels == patch == 1
    return Shapes(
        input_kind="tokens" if is_tokens else "vectors",
        num_classes=classes,
        max_length=(side // patch) ** 2,
        vocab_size=levels if is_tokens else None,
        num_features=None if is_tokens else channels * patch**2,
    )


def _with_pillow(augmentation: str) -> ModuleType:
    """Import the augmentations that need Pillow.

    Raises:
        InputError: Pillow is not installed.
    """
    require_packages(f"augment {augmentation!r}", "images", "PIL")
    from rifflemix.lab.tasks.images import augmentations

    return augmentations


def check_layout(options: Mapping[str, Any]) -> None:
    """Raise if `pixel_task` does not support the options "layout" and "augment"."""
    check_choice("layout", options["layout"], LAYOUTS)
    check_choice("augment", options["augment"], AUGMENTATIONS)
    if options["augment"] in _BY_PILLOW:
        _with_pillow(options["augment"])
