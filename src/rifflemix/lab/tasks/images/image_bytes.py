"""CIFAR-10 number by number: each of an image's 3,072 is predicted from those before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rifflemix.errors import check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Request, Sample, Split, Task, TaskCard
from rifflemix.lab.tasks.data_io.file_task import Options
from rifflemix.lab.tasks.data_io.files import Array, Source
from rifflemix.lab.tasks.images.image import Image
from rifflemix.lab.tasks.images.pixels import ImageStack, PixelSplit
from rifflemix.lab.tasks.text.next_token import NextTokenTask
from rifflemix.lab.tasks.text.vocabulary import Vocabulary

START = 256
"""The token from which the first number is predicted."""

_WHOLE: Mapping[str, Any] = {
    "patch_size": 1,
    "layout": "image",
    "augment": "none",
    "statistics": "data",
}
_LENGTH = 32 * 32 * 3


@dataclass(frozen=True, eq=False)
class ByteSplit:
    """Some of a stack of images, in a given order, as sequences.

    Attributes:
        images: (M, 32, 32, 3) uint8.
        rows: which of them belong to the split, in order.
    """

    images: ImageStack
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of images."""
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Inputs and labels (3072,) int64: rows first, red, green and blue of a pixel together."""
        image = self.images[int(self.rows[index])]
        labels = torch.from_numpy(image.reshape(-1).astype(np.int64))
        return torch.cat((torch.tensor([START]), labels[:-1])), labels

    def digest(self) -> bytes:
        """Hash of the images, in order."""
        total = hashlib.blake2b(b"image bytes", digest_size=16)
        for content in self.images.content(self.rows):
            total.update(content)
        return total.digest()


class ImageBytes(Image):
    """Images of CIFAR-10 as a text of numbers."""

    card = TaskCard(
        name="image_bytes",
        title="CIFAR-10, number by number",
        source=Image.card.source,
        licence=Image.card.licence,
        description=(
            "Each of the 3,072 numbers of a 32x32 color image is predicted from those before, the "
            "first from a start token; rows first, red, green and blue of a pixel together. "
            "bits_per_byte is what is known as bits per dimension. Files and splits as of image."
        ),
        needs_data=True,
        options={"color": "rgb"},
        output="next_token",
        backbone="gpt",
    )

    def check(self, options: Options) -> None:
        """Check that the images are in color: every channel has its number."""
        check_choice("color", options["color"], ("rgb",))

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """The task over sequences of numbers."""
        whole = replace(request, options={**request.options, **_WHOLE})
        images = super().build(whole, source, arrays)
        vocabulary = Vocabulary("byte", (*(bytes([value]) for value in range(START)), b""))
        return NextTokenTask(
            name=self.card.name,
            options=dict(request.options),
            input_kind="tokens",
            vocab_size=len(vocabulary),
            num_features=None,
            num_classes=len(vocabulary),
            max_length=_LENGTH,
            padding=False,
            split_note=images.split_note,
            data_source=images.data_source,
            splits={name: _bytes_of(images.split(name)) for name in SPLITS},
            metric="bits_per_byte",
            higher_is_better=False,
            vocabulary=vocabulary,
            is_text=False,
        )


def _bytes_of(split: Split) -> ByteSplit:
    pixels = cast(PixelSplit, split)  # what `Image` makes
    return ByteSplit(pixels.images, pixels.rows)
