"""What the image rows of the CSP and Sliceformer papers share: data, presets, training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rifflemix.recipes.base import Recipe
from rifflemix.train import TrainConfig

OWN_SPLIT = "a tenth of the training images choose the model; the paper trains on all of them"

_ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 1e-4}


@dataclass(frozen=True)
class Data:
    """A column: data, the preset for it, and how both papers train on it.

    Attributes:
        title: of the column.
        task: registry name, with `options`.
        options: of the task.
        model: registry name of the preset.
        images: in the training set; an epoch is as many whole batches as they fill.
        batch: images per update.
        epochs: of the printed run.
        optimizer: which, and its rate; the rate falls along a cosine, once an epoch.
        notes: on the data.
    """

    title: str
    task: str
    options: Mapping[str, Any]
    model: str
    images: int
    batch: int = 64
    epochs: int = 100
    optimizer: Mapping[str, Any] = field(default_factory=lambda: _ADAM)
    notes: tuple[str, ...] = (OWN_SPLIT,)


DATA: dict[str, Data] = {
    "mnist": Data("MNIST", "mnist", {"layout": "image"}, "vit_mnist", 60_000),
    "cifar10": Data(
        "CIFAR-10",
        "image",
        {"color": "rgb", "layout": "image", "augment": "crop_flip"},
        "vit_cifar10",
        50_000,
    ),
    "cifar100": Data("CIFAR-100", "cifar100", {"augment": "crop_flip"}, "vit_cifar100", 50_000),
}


def vit_row(
    data: str, *, settings: Mapping[str, Any], notes: tuple[str, ...] = (), **place: Any
) -> Recipe:
    """A ViT on one of `DATA`, trained as both papers do: a rate for each epoch.

    Args:
        data: key of `DATA`.
        settings: of the model, the mixer first of all.
        notes: of the row, behind those of the data.
        place: name, paper, table, row and printed number; column and metric where they are not
            those of Top-1 on that data.
    """
    of = DATA[data]
    epoch = of.images // of.batch
    return Recipe(
        task=of.task,
        task_options=of.options,
        model=of.model,
        model_settings={**settings, "dropout": 0.1, "embedding_dropout": 0.1},
        train=TrainConfig(
            max_steps=of.epochs * epoch,
            batch_size=of.batch,
            **of.optimizer,
            schedule="cosine",
            schedule_interval=epoch,
            eval_every=epoch,
        ),
        notes=(*of.notes, *notes),
        **{"column": of.title, **place},
    )
