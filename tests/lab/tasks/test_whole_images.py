"""Tests of `layout=image`: whole images instead of sequences, with random changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task


@pytest.fixture
def task(data: Path, write_npz_xz: Callable[..., None]) -> Callable[..., Task]:
    rng = np.random.default_rng(3)
    # Random differences decode to valid images.
    arrays = {
        "train_x_diff": rng.integers(1, 256, (20, 3, 32, 32), dtype=np.uint8),
        "train_y": rng.integers(0, 10, 20, dtype=np.uint8),
        "test_x_diff": rng.integers(1, 256, (4, 3, 32, 32), dtype=np.uint8),
        "test_y": rng.integers(0, 10, 4, dtype=np.uint8),
    }
    write_npz_xz(data / "cifar10_rgb.npz.xz", **arrays)

    def load(**options: Any) -> Task:
        return load_task("image", data_dir=data, color="rgb", **options)

    return load


def test_images_contain_the_pixels_of_the_patches(task: Callable[..., Task]) -> None:
    whole, patches = task(layout="image"), task(patch_size=4)
    assert whole.input_kind == "images"
    assert whole.image_shape == (3, 32, 32)
    image, label = whole.split("train")[5]
    sequence, same_label = patches.split("train")[5]
    assert image.shape == (3, 32, 32)
    assert label == same_label
    cut = image.unfold(1, 4, 4).unfold(2, 4, 4).permute(1, 2, 3, 4, 0).reshape(64, 48)
    assert torch.equal(cut, sequence)


def test_changed_images_are_shifted_and_mirrored(task: Callable[..., Task]) -> None:
    made = task(layout="image", augment="crop_flip")
    batch = made.collate([made.split("train")[index] for index in range(18)])
    changed = made.augment(batch, list(range(18)))["inputs"]
    assert torch.equal(changed, made.augment(batch, list(range(18)))["inputs"])
    assert not torch.equal(changed, made.augment(batch, list(range(1, 19)))["inputs"])
    black = torch.tensor(made.black).view(3, 1, 1)
    padded = black.repeat(1, 40, 40)
    for image, found in zip(batch["inputs"], changed, strict=True):
        padded[:, 4:36, 4:36] = image
        crops = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
        assert any(torch.equal(found, c) or torch.equal(found, c.flip(-1)) for c in crops)


def test_every_shift_and_both_directions_occur(task: Callable[..., Task]) -> None:
    made = task(layout="image", augment="crop_flip")
    one = made.collate([made.split("train")[0]] * 18)
    found = torch.cat([made.augment(one, range(18 * k, 18 * k + 18))["inputs"] for k in range(60)])
    assert len({tensor.numpy().tobytes() for tensor in found}) > 150  # of 9 x 9 x 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "picture"}, "layout"),
        ({"augment": "mixup", "layout": "image"}, "augment"),
        ({"augment": "crop_flip"}, "augment: .*'sequence'"),
        ({"layout": "image", "patch_size": 4}, r"patch_size: .*\b1\b.*'image'"),
    ],
    ids=["layout", "augment", "augmented sequence", "patches of images"],
)
def test_bad_options_are_refused(
    options: dict[str, Any], words: str, task: Callable[..., Task]
) -> None:
    with pytest.raises(InputError, match=words):
        task(**options)


def test_top5_counts_labels_among_the_five_largest(task: Callable[..., Task]) -> None:
    made = task(layout="image")
    labels = torch.arange(10)
    # Row r has its largest logit at position 2 r, and the next logits fall. Label r has rank
    # 10 - r, or 0 for r = 0.
    outputs = torch.stack([(-torch.arange(10.0)).roll(2 * row) for row in range(10)])
    ranks = [(row > row[label]).sum().item() for label, row in enumerate(outputs)]
    found = made.metrics(outputs, {"labels": labels})
    assert found["top5_accuracy"] == (sum(rank < 5 for rank in ranks), 10)
    assert found["accuracy"] == (ranks.count(0), 10)
    assert 0 < found["accuracy"][0] < found["top5_accuracy"][0] < 10
    assert "top5_accuracy" not in task(patch_size=4).metrics(outputs, {"labels": labels})
