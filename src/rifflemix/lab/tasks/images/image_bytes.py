"""CIFAR-10 as next-byte prediction: each image is a sequence of 3,072 bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rifflemix.errors import check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Sample, Split, Task
from rifflemix.lab.tasks.core.builder import Request
from rifflemix.lab.tasks.core.card import BYTE_IDS, Shapes, TaskCard
from rifflemix.lab.tasks.data_io.file_task import Options
from rifflemix.lab.tasks.data_io.files import Array, Source
from rifflemix.lab.tasks.images.cifar import Image
from rifflemix.lab.tasks.images.pixels import ImageStack, PixelSplit
from rifflemix.lab.tasks.text.next_token import ByteInputs, NextTokenTask
from rifflemix.lab.tasks.text.vocabulary import Vocabulary

START = 256
"""Start token: the input for the prediction of the first byte."""

_WHOLE: Mapping[str, Any] = {
    "patch_size": 1,
    "layout": "image",
    "augment": "none",
    "statistics": "data",
}
_LENGTH = 32 * 32 * 3


@dataclass(frozen=True, eq=False)
class ByteSplit:
    """Images of one split as byte sequences.

    Attributes:
        images: (M, 32, 32, 3) uint8.
        rows: indices of the images in the split, in order.
    """

    images: ImageStack
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return inputs and labels, both (3072,) int64.

        Pixels are in row order. The red, green and blue values of a pixel are adjacent.
        """
        image = self.images[int(self.rows[index])]
        labels = torch.from_numpy(image.reshape(-1).astype(np.int64))
        return torch.cat((torch.tensor([START]), labels[:-1])), labels

    def digest(self) -> bytes:
        total = hashlib.blake2b(b"image bytes", digest_size=16)
        for content in self.images.content(self.rows):
            total.update(content)
        return total.digest()


def _shapes(options: Options) -> Shapes:
    return Shapes(
        input_kind="tokens",
        num_classes=BYTE_IDS,
        max_length=_LENGTH,
        vocab_size=BYTE_IDS,
    )


class ImageBytes(Image):
    """CIFAR-10 images as byte sequences."""

    card = TaskCard(
        name="image_bytes",
        title="CIFAR-10, number by number",
        source=Image.card.source,
        licence=Image.card.licence,
        description=(
            "Predict each of the 3,072 numbers of a 32x32 color image from the numbers before it, "
            "the first from a start token. The order is row by row, with red, green and blue of a "
            "pixel together. bits_per_byte is also known as bits per dimension. Files and splits "
            "are those of task image."
        ),
        needs_data=True,
        options={"color": "rgb"},
        output="next_token",
        backbone="gpt",
        shapes=_shapes,
    )

    def check(self, options: Options) -> None:
        """Raise unless the images are in color. A sequence has one byte per channel."""
        check_choice("color", options["color"], ("rgb",))

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        whole = replace(request, options={**request.options, **_WHOLE})
        images = super().build(whole, source, arrays)
        vocabulary = Vocabulary("byte", (*(bytes([value]) for value in range(START)), b""))
        return NextTokenTask(
            name=self.card.name,
            options=dict(request.options),
            **_shapes(request.options).for_task(),
            split_note=images.split_note,
            data_source=images.data_source,
            splits={name: _bytes_of(images.split(name)) for name in SPLITS},
            metric="bits_per_byte",
            higher_is_better=False,
            vocabulary=vocabulary,
            is_text=False,
            inputs=ByteInputs(START, _LENGTH, image_shape=(32, 32, 3)),
        )


def _bytes_of(split: Split) -> ByteSplit:
    pixels = cast(PixelSplit, split)  # `Image.build` creates PixelSplit
    return ByteSplit(pixels.images, pixels.rows)
