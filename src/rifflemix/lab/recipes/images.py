"""Data, presets and training for image results of the CSP and Sliceformer papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.train import TrainConfig


@dataclass(frozen=True)
class Data:
    """Column of a table: data set, preset and training.

    Attributes:
        title: title of the column.
        task: registry name of the task.
        options: task options.
        model: registry name of the preset.
        train: training configuration.
        settings: model settings that all models of the column share.
        notes: notes on data and training.
    """

    title: str
    task: str
    options: Mapping[str, Any]
    model: str
    train: TrainConfig
    settings: Mapping[str, Any] = field(
        default_factory=lambda: {"dropout": 0.1, "embedding_dropout": 0.1}
    )
    notes: tuple[str, ...] = (
        "a tenth of the training images choose the model; the paper trains on all of them, and its "
        "code keeps the epoch that is best on the test split",
    )


def _train(images: int, *, batch: int = 64, epochs: int = 100, **changes: Any) -> TrainConfig:
    """Configure Adam with a constant rate per epoch.

    An epoch has only complete batches.
    """
    epoch = images // batch
    settings: dict[str, Any] = {
        "optimizer": "adam",
        "lr": 1e-4,
        "schedule": "cosine",
        "schedule_interval": epoch,
        **changes,
    }
    return TrainConfig(max_steps=epochs * epoch, batch_size=batch, eval_every=epoch, **settings)


_CROP_FLIP = {"augment": "crop_flip"}
_DOGS_EPOCH = 20_000 // 64

DATA: dict[str, Data] = {
    # The released code crops and flips digits like the images of CIFAR.
    "mnist": Data("MNIST", "mnist", {"layout": "image", **_CROP_FLIP}, "vit_mnist", _train(60_000)),
    "cifar10": Data(
        "CIFAR-10",
        "image",
        # The released (0.2023, 0.1994, 0.2010) are mean standard deviations within an image.
        {"color": "rgb", "layout": "image", "statistics": "per_image", **_CROP_FLIP},
        "vit_cifar10",
        _train(50_000),
    ),
    "cifar100": Data("CIFAR-100", "cifar100", _CROP_FLIP, "vit_cifar100", _train(50_000)),
    "imagenet": Data(
        "ImageNet-1k",
        "imagenet",
        {"layout": "image", "augment": "resized_crop_flip"},
        "vit_imagenet",
        _train(1_281_167, batch=256, epochs=300, optimizer="adamw", lr=5e-4),
        notes=(
            "the release has no ImageNet configuration: heads, MLP and biases of Q, K and V follow "
            "from the reported number of parameters; random resized crops and mirror images are "
            "our choice; the paper reports no warm-up and no weight decay",
            "a part of the training images chooses the model; the published validation set tests",
        ),
    ),
    "dogs": Data(
        "Dogs vs. Cats",
        "dogs_vs_cats",
        {"layout": "image", "augment": "resized_crop_flip"},
        "vit_dogs_vs_cats",
        _train(
            20_000,
            epochs=300,
            lr=3e-5,
            schedule="multistep",
            schedule_interval=1,
            milestones=(250 * _DOGS_EPOCH,),
        ),
        settings={},
        notes=(
            "the release trains on four fifths of the labelled images and measures on the others; "
            "here eight tenths train, and a tenth each validates and tests",
            "random resized crops and mirror images in training, as released; the release also "
            "evaluates on such crops, does not normalize pixels, and squeezes each photograph "
            "into a square; rifflemix keeps the middle square",
        ),
    ),
    "tiny": Data(
        "Tiny-ImageNet",
        "tiny_imagenet",
        {"layout": "image", "size": 224, **_CROP_FLIP},
        "vit_tiny_imagenet",
        _train(100_000),
        notes=(
            "the training is not published: images of 224 pixels follow from the reported number "
            "of parameters (DeiT-S); training and augmentation follow CIFAR",
            "the reported numbers of parameters include a head of 1,000 classes; the data has 200",
            "a part of the training images chooses the model; the published validation set tests",
        ),
    ),
}


def vit_row(
    data: str, *, settings: Mapping[str, Any], notes: tuple[str, ...] = (), **where: Any
) -> Recipe:
    """Build the recipe of a ViT on one of `DATA`.

    Args:
        data: key of `DATA`.
        settings: model settings, including the mixer.
        notes: further notes, appended to the notes of the data.
        where: name, paper, table, row and reported number; also column and metric, unless the
            number is Top-1 on the data.
    """
    of = DATA[data]
    return Recipe(
        task=of.task,
        task_options=of.options,
        model=of.model,
        model_settings={**settings, **of.settings},
        train=of.train,
        notes=(*of.notes, *notes),
        **{"column": of.title, **where},
    )
