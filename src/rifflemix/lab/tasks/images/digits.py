"""Real handwritten digits that ship with the package. A model trains in seconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rifflemix.lab.tasks.core.base import SPLITS, Request, Task, check_one_of, content_order
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.core.generated import GeneratedTask
from rifflemix.lab.tasks.data_io.files import Array, check_sha256
from rifflemix.lab.tasks.images.pixel_inputs import PixelScale
from rifflemix.lab.tasks.images.pixels import pixel_shapes, pixel_task

DIGITS = tuple(map(str, range(10)))
"""Names of the classes."""

_FILE = Path(__file__).parent / "files" / "digits.npz"
_SHA256 = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"
# Mean and standard deviation of the training pixels.
_SCALE = PixelScale(top=16, mean=(0.3054,), std=(0.3759,))


class Digits(GeneratedTask):
    """UCI Optical Recognition of Handwritten Digits: 8x8 pixels with 17 gray levels."""

    takes_seed = False
    card = TaskCard(
        name="digits",
        title="Handwritten digits",
        source="UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998)",
        licence="CC BY 4.0",
        description=(
            "1,797 real 8x8 images of digits with 17 gray levels, 10 classes. patch_size 1: 64 "
            "tokens; 2 or 4: 16 or 4 patches as vectors. Ships with the package."
        ),
        needs_data=False,
        is_image=True,
        options={"patch_size": 1},
        budget=Budget(max_steps=400, batch_size=64, lr=5e-3, evaluations=8),
        shapes=partial(pixel_shapes, classes=10, channels=1, side=8, levels=17),
    )

    at_hand = "ships with the package"

    def load(self, request: Request) -> Task:
        """Load the task and check the sha256 of its file."""
        check_one_of(request.options, "patch_size", (1, 2, 4))
        images, labels, rows_of = read_digits()
        stack = (Array(images), Array(labels))
        return pixel_task(
            self.card,
            request.options,
            {name: (*stack, rows) for name, rows in rows_of.items()},
            scale=_SCALE,
            split_note=(
                "60 / 20 / 20 % train / validation / test, stratified by class, fixed by a hash "
                "of the images and so independent of any seed"
            ),
            data_source="digits.npz of the package",
            classes=DIGITS,
        )


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    """Return images (M, 8, 8), labels (M,) and the rows of each split."""
    check_sha256(_FILE, _SHA256)
    with np.load(_FILE, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    return images, labels, _split_rows(images, labels)


def _split_rows(
    images: NDArray[np.uint8], labels: NDArray[np.uint8]
) -> dict[str, NDArray[np.int64]]:
    pixels = [image.tobytes() for image in images]
    chosen, order = content_order(pixels, "digits: split"), content_order(pixels, "digits: order")
    split_of = np.zeros(len(labels), dtype=np.int64)
    for label in range(10):
        members = chosen[labels[chosen] == label]
        fifth = len(members) // 5
        split_of[members[:fifth]] = 2
        split_of[members[fifth : 2 * fifth]] = 1
    return {name: order[split_of[order] == code] for code, name in enumerate(SPLITS)}
