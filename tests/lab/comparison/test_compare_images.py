"""Tests of comparisons on whole images."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from rifflemix.errors import InputError
from rifflemix.lab.comparison import CompareConfig, check_model, default_budget, train_config
from rifflemix.lab.tasks import Task, load_task
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.images.image_files import PixelInputs, PixelScale
from rifflemix.lab.tasks.images.pixels import PixelSplit, WholeImages


@pytest.fixture
def task() -> WholeImages:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8) % 2
    scale = PixelScale(top=255, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    split = PixelSplit(
        Array(images), Array(labels), np.arange(6), PixelInputs(*images.shape[1:3], scale, None)
    )
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


def config(mixer: str, model: str, task: str = "image") -> CompareConfig:
    budget = default_budget(task)
    return CompareConfig(
        task=task,
        mixers=(mixer,),
        seeds=(0,),
        dim=16,
        num_layers=1,
        num_heads=2,
        train=train_config(budget, max_steps=2, batch_size=4, lr=1e-3, precision="no"),
        model=model,
    )


@pytest.mark.parametrize("mixer", ["softmax", "csp", "sliceformer", "tssa"])
def test_images_use_a_vit(task: WholeImages, mixer: str) -> None:
    assert check_model(config(mixer, "vit_cifar10"), task, mixer).parameters > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("encoder", "image.*vit_cifar10.*'sequence'$"),
        ("graphormer_pcqm4m", "image.*vit_cifar10$"),
        ("resnet_dense_20_p16", "mixer.*vit_cifar10$"),
        ("mlp_mixer_dense_e1", "mixer.*vit_cifar10$"),
    ],
)
def test_models_of_another_kind_are_refused(task: WholeImages, model: str, message: str) -> None:
    with pytest.raises(InputError, match=f"{model}.*{message}") as raised:
        check_model(config("softmax", model), task, "softmax")
    assert "\n" not in str(raised.value)


OF_TOKENS = {
    "vit_cifar10": "digits.*encoder$",
    "mlp_mixer_dense_e1": "digits.*encoder$",
    "resnet_dense_20_p16": "digits.*encoder$",
    "graphormer_pcqm4m": "digits.*encoder$",
    "point_cloud": "digits.*encoder$",
    "lra_retrieval": "digits",
    "gpt": "num_classes.*digits",
    "mega_lra_image": "num_heads.*digits.*encoder$",
}


@pytest.mark.parametrize(("model", "message"), OF_TOKENS.items(), ids=OF_TOKENS)
def test_tokens_are_refused_by_image_models(model: str, message: str) -> None:
    with pytest.raises(InputError, match=f"{model}.*{message}") as raised:
        check_model(config("softmax", model, "digits"), load_task("digits"), "softmax")
    assert "\n" not in str(raised.value)


def test_matching_layout_is_named(task: WholeImages) -> None:
    pixels = replace(task, options={"layout": "sequence"}, input_kind="vectors")
    sequence = Task(**{f.name: getattr(pixels, f.name) for f in fields(Task)})
    with pytest.raises(InputError, match=r"encoder.*'image'$"):
        check_model(config("softmax", "vit_cifar10"), sequence, "softmax")


def test_a_damaged_image_is_not_blamed_on_a_mixer(task: WholeImages) -> None:
    class Damaged(list[object]):
        def __getitem__(self, index: object) -> object:
            raise InputError("shard 0: image 0 is not what was stored")

    broken = replace(task, splits={**task.splits, "train": Damaged([0] * 6)})
    with pytest.raises(InputError, match=r"^shard 0: image 0"):
        check_model(config("csp", "vit_cifar10"), broken, "csp")
