"""Image tasks over pixel tokens, patch vectors or whole images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.lab.tasks.core.base import Batch, Progress, Sample, Task, TaskCard, is_hit
from rifflemix.lab.tasks.data_io.bounded import read_npz
from rifflemix.lab.tasks.data_io.files import Array, Arrays, check_ids
from rifflemix.lab.tasks.images.crops import crop_flip, resized_crop_flip
from rifflemix.lab.tasks.images.mixing import mix_images

LAYOUTS = ("sequence", "image")
AUGMENTATIONS = ("none", "crop_flip", "resized_crop_flip", "rand_augment", "deit")
_BY_PILLOW = ("rand_augment", "deit")
STATISTICS = ("data", "per_image", "imagenet")
_TOP = 5
PARTS = ("train", "test")
"""Parts of an image data set. Validation samples come from "train"."""


@dataclass(frozen=True)
class PixelScale:
    """Normalization of pixel values: (value / top - mean) / std, per channel."""

    top: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


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
        patch_size: side of a patch. Size 1 on gray images gives tokens. All other sizes give
            vectors of patch_size**2 * channels floats, rows of the patch first and channels last.
            None gives whole images.
        scale: normalization of patch vectors and whole images.
    """

    images: ImageStack
    labels: Array
    rows: NDArray[np.int64]
    patch_size: int | None
    scale: PixelScale

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return an image and its label.

        The image has one of three forms: (N,) int64 pixels, (N, F) float32 patches, or a whole
        image of shape (channels, height, width) in float32. Pixels and patches are in row order.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return several samples at once. The data loader of torch uses this fast path."""
        rows = [int(self.rows[index]) for index in indices]
        inputs = self._inputs(np.stack([self.images[row] for row in rows]))
        labels = [int(self.labels.values[row]) for row in rows]
        return list(zip(inputs.unbind(), labels, strict=True))

    def _inputs(self, images: NDArray[np.uint8]) -> Tensor:
        if self.patch_size is not None and _is_tokens(self.patch_size, self.images):
            return torch.from_numpy(images.reshape(len(images), -1).astype(np.int64))
        planes = self._planes(images.reshape(*images.shape[:3], len(self.scale.mean)))
        if self.patch_size is None:
            return torch.from_numpy(planes)
        return torch.from_numpy(cut_patches(planes.transpose(0, 2, 3, 1), self.patch_size))

    def digest(self) -> bytes:
        total = hashlib.blake2b(digest_size=16)
        for start in range(0, len(self.rows), 4096):
            rows = self.rows[start : start + 4096]
            for content in self.images.content(rows):
                total.update(content)
            total.update(self.labels.values[rows].tobytes())
        return total.digest()

    def _planes(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Normalize (B, height, width, channels) pixels to (B, channels, height, width)."""
        mean, std = np.asarray([self.scale.mean, self.scale.std], np.float32)[:, :, None, None]
        planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32)
        planes /= np.float32(self.scale.top)
        planes -= mean
        planes /= std
        return planes


def cut_patches(images: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Cut images into square patches, in row order.

    Args:
        images: (..., height, width, channels). Height and width are multiples of `size`.
        size: side of a patch.

    Returns:
        Patches (..., N, size**2 * channels).
    """
    *several, height, width, channels = images.shape
    grid = images.reshape(*several, height // size, size, width // size, size, channels)
    return grid.swapaxes(-3, -4).reshape(*several, -1, size * size * channels)


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

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, tuple[float, int]]:
        """Add "top5_accuracy" to the metrics if there are more than five classes."""
        found = super().metrics(outputs, batch)
        if self.num_classes > _TOP:
            labels = batch["labels"]
            hits = is_hit(outputs.topk(_TOP, dim=1).indices, labels).sum()
            found["top5_accuracy"] = (float(hits.item()), len(labels))
        return found

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
    num_classes: int = 10,
) -> Task:
    """Create a task over images.

    Args:
        card: description of the task.
        options: resolved options. The function reads "patch_size", "layout" and "augment".
        splits: images, labels and rows of each split, as in `PixelSplit`.
        scale: normalization of patch vectors and whole images, with one mean per channel.
        split_note: origin of the validation split.
        data_source: origin of the pixels.
        num_classes: number of classes. Labels are 0 to num_classes - 1.

    Raises:
        InputError: a split has no images, or options contradict each other.
    """
    for name, (_, _, rows) in splits.items():
        if len(rows) == 0:
            raise InputError(f"task {card.name}: {data_source} has no images for the {name} split")
    if options.get("layout") == "image":
        return _whole_images(card, options, splits, scale, split_note, data_source, num_classes)
    if options.get("augment", "none") != "none":
        raise bad_argument("augment", "none with layout 'sequence'", repr(options["augment"]))
    patch_size = int(options["patch_size"])
    height, width = splits["train"][0].row_shape[:2]
    tokens = _is_tokens(patch_size, splits["train"][0])
    return Task(
        name=card.name,
        options=dict(options),
        input_kind="tokens" if tokens else "vectors",
        vocab_size=scale.top + 1 if tokens else None,
        num_features=None if tokens else patch_size**2 * len(scale.mean),
        num_classes=num_classes,
        max_length=(height // patch_size) * (width // patch_size),
        padding=False,
        split_note=split_note,
        data_source=data_source,
        splits={name: PixelSplit(*split, patch_size, scale) for name, split in splits.items()},
    )


def _with_pillow(augmentation: str) -> ModuleType:
    """Import the augmentations that need Pillow.

    Raises:
        InputError: Pillow is not installed.
    """
    try:
        from rifflemix.lab.tasks.images import augmentations
    except ImportError:
        raise InputError(
            f"augment {augmentation!r} changes images with Pillow: pip install 'rifflemix[images]'"
        ) from None
    return augmentations


def check_layout(options: Mapping[str, Any]) -> None:
    """Raise if `pixel_task` does not support the options "layout" and "augment"."""
    check_choice("layout", options["layout"], LAYOUTS)
    check_choice("augment", options["augment"], AUGMENTATIONS)
    if options["augment"] in _BY_PILLOW:
        _with_pillow(options["augment"])


def _whole_images(
    card: TaskCard,
    options: Mapping[str, Any],
    splits: Mapping[str, tuple[ImageStack, Array, NDArray[np.int64]]],
    scale: PixelScale,
    split_note: str,
    data_source: str,
    num_classes: int,
) -> WholeImages:
    if options["patch_size"] != 1:
        raise bad_argument(
            "patch_size", "1 with layout 'image'", options["patch_size"], "models cut the patches"
        )
    height, width = splits["train"][0].row_shape[:2]
    return WholeImages(
        name=card.name,
        options=dict(options),
        input_kind="images",
        vocab_size=None,
        num_features=None,
        num_classes=num_classes,
        max_length=height * width,
        padding=False,
        split_note=split_note,
        data_source=data_source,
        splits={name: PixelSplit(*split, None, scale) for name, split in splits.items()},
        image_shape=(len(scale.mean), height, width),
        augmentation=str(options["augment"]),
        black=tuple(-mean / std for mean, std in zip(scale.mean, scale.std, strict=True)),
        white=tuple((1 - mean) / std for mean, std in zip(scale.mean, scale.std, strict=True)),
    )


def carved_task(
    card: TaskCard,
    options: Mapping[str, Any],
    arrays: Mapping[str, Array],
    scale: PixelScale,
    data_source: str,
    num_classes: int = 10,
) -> Task:
    """Create a task from arrays of `check_parts`.

    Validation is the last 10 % of the training part.
    """
    stack = (arrays["train_images"], arrays["train_labels"])
    held_out = (arrays["test_images"], arrays["test_labels"])
    for labels in (stack[1], held_out[1]):
        folder = labels.path.parent if labels.path else Path(data_source)
        check_ids(folder, "labels", labels.values, num_classes)
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
        num_classes=num_classes,
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


def _is_tokens(patch_size: int, images: ImageStack) -> bool:
    return patch_size == 1 and len(images.row_shape) == 2
