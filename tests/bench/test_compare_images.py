"""Comparisons on whole images."""

from __future__ import annotations

import numpy as np
import pytest

from rifflemix.bench.compare import CompareConfig, check_model, default_budget, train_config
from rifflemix.errors import InputError
from rifflemix.tasks.base import SPLITS
from rifflemix.tasks.files import Array
from rifflemix.tasks.pixels import PixelScale, PixelSplit, WholeImages


@pytest.fixture
def task() -> WholeImages:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8) % 2
    scale = PixelScale(top=255, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    split = PixelSplit(Array(images), Array(labels), np.arange(6), None, scale)
    return WholeImages(
        name="image",
        options={"layout": "image"},
        input_kind="images",
        vocab_size=None,
        num_features=None,
        num_classes=2,
        max_length=64,
        padding=False,
        split_note="",
        data_source="",
        splits=dict.fromkeys(SPLITS, split),
        image_shape=(3, 8, 8),
    )


def config(mixer: str, model: str) -> CompareConfig:
    budget = default_budget("image")
    return CompareConfig(
        task="image",
        mixers=(mixer,),
        seeds=(0,),
        dim=16,
        num_layers=1,
        num_heads=2,
        train=train_config(budget, max_steps=2, batch_size=4, lr=1e-3, precision="no"),
        model=model,
    )


@pytest.mark.parametrize("mixer", ["softmax", "csp", "sliceformer", "tssa"])
def test_images_go_through_a_vit(task: WholeImages, mixer: str) -> None:
    assert check_model(config(mixer, "vit_cifar10"), task, mixer) > 0


@pytest.mark.parametrize(
    ("model", "message"), [("encoder", "no whole images"), ("resnet_dense_20_p16", "mixer")]
)
def test_models_of_another_kind_are_refused(task: WholeImages, model: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        check_model(config("softmax", model), task, "softmax")
    assert "\n" not in str(raised.value)
