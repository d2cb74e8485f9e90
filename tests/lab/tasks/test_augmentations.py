"""Tests of augmentations by Pillow: crops, changes, erasing, and their use in a task."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.tasks.images import augmentations
from rifflemix.lab.tasks.images.augmentations import rand_augment
from rifflemix.lab.tasks.images.pixels import WholeImages, check_layout

MEAN = (124, 116, 104)


def test_half_of_the_operations_are_skipped() -> None:
    """Apply each of two operations at even odds; without crops, a quarter stays unchanged."""
    flat = torch.full((3, 16, 16), 90.0)
    draws = [augmentations.for_deit(flat, np.random.default_rng(k), MEAN) for k in range(400)]
    assert all(torch.equal(image, image.clamp(0, 255).round()) for image in draws)
    unchanged = sum(torch.equal(image, flat) for image in draws)
    # Some operations, such as equalize, do not change a flat image.
    assert 0.25 < unchanged / 400 < 0.6


@pytest.mark.parametrize("change", ["for_deit", "for_fine_tuning"])
def test_crops_cover_the_areas_of_resized_crops(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disable the operations, so that only resized and mirrored crops are left."""
    for name in ("rand_augment_increasing", "rand_augment"):
        monkeypatch.setattr(augmentations, name, lambda image, *_: image)
    means = {"mean": MEAN} if change == "for_deit" else {}
    ramp = torch.arange(64.0).expand(3, 64, 64).contiguous()  # the level encodes the column
    widths, mirrored = [], 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        row = getattr(augmentations, change)(ramp, draw, **means)[0, 32]
        widths.append(float(row.max() - row.min()) + 1)
        mirrored += int(row[0] > row[-1])
    assert 0.4 < mirrored / 300 < 0.6
    assert min(widths) < 24
    assert max(widths) > 58


def test_fine_tuning_makes_two_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check two changes of strength 14, each applied to the cropped picture."""
    asked: list[tuple[Any, Any]] = []

    def watch(image: Any, generator: Any) -> Any:
        asked.append((image.size, generator))
        return rand_augment(image, generator)

    monkeypatch.setattr(augmentations, "rand_augment", watch)
    levels, draw = torch.randint(0, 256, (3, 20, 30)).float(), np.random.default_rng(0)
    changed = augmentations.for_fine_tuning(levels, draw)
    assert asked == [((30, 20), draw)]
    assert changed.shape == levels.shape
    defaults = inspect.signature(rand_augment).parameters
    assert (defaults["changes"].default, defaults["strength"].default) == (2, 14)


def test_erased_areas_follow_the_settings() -> None:
    image = torch.zeros(3, 48, 40)
    found = [augmentations.erase(image, np.random.default_rng(seed)) for seed in range(800)]
    assert not image.any()
    shares = [float((one[0] != 0).float().mean()) for one in found]
    erased = [share for share in shares if share > 0]
    assert 0.2 < len(erased) / 800 < 0.3
    assert 0.015 < min(erased) < 0.06
    assert 0.28 < max(erased) < 0.35
    noise = torch.cat([one[one != 0] for one in found])
    assert abs(float(noise.mean())) < 0.01
    assert abs(float(noise.std()) - 1) < 0.01


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("augment", ["deit", "rand_augment"])
def test_a_task_changes_its_training_images(augment: str, channels: int) -> None:
    """Check that levels change between two normalizations, so black pixels stay black."""
    mean, std = torch.tensor([0.5, 0.4, 0.3])[:channels], torch.tensor([0.2, 0.25, 0.3])[:channels]
    task = WholeImages(
        name="x", options={}, input_kind="images", vocab_size=None, num_features=None,
        num_classes=2, max_length=4, padding=False, split_note="", data_source="", splits={},
        image_shape=(channels, 21, 32), augmentation=augment,
        black=tuple((-mean / std).tolist()), white=tuple(((1 - mean) / std).tolist()),
    )  # fmt: skip
    levels = torch.randint(0, 256, (40, channels, 21, 32)).float()
    images = (levels / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    kept = images.clone()
    changed = task.augment({"inputs": images}, list(range(40)))["inputs"]
    assert torch.equal(images, kept)
    assert changed.shape == images.shape
    assert changed.dtype == torch.float32
    assert not torch.equal(changed, images)
    assert torch.equal(changed, task.augment({"inputs": images}, list(range(40)))["inputs"])
    back = (changed * std.view(-1, 1, 1) + mean.view(-1, 1, 1)) * 255
    whole = [bool((one - one.round().clamp(0, 255)).abs().max() < 1e-3) for one in back]
    if augment == "deit":
        assert 0.55 < sum(whole) / 40 < 0.95  # erasing changes part of the others
    else:
        assert all(whole)


@pytest.mark.parametrize("augment", ["deit", "rand_augment"])
def test_missing_pillow_is_reported(monkeypatch: pytest.MonkeyPatch, augment: str) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=rf"'{augment}'.*'rifflemix\[images\]'"):
        check_layout({"layout": "image", "augment": augment})
    check_layout({"layout": "image", "augment": "crop_flip"})
