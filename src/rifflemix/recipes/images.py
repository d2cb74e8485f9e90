"""What the image rows of the CSP and Sliceformer papers share: data, presets, training."""

from __future__ import annotations

from typing import Any

from rifflemix.recipes.base import Recipe
from rifflemix.train import TrainConfig

# Column title, task and its options, preset, training images of the data set.
DATA: dict[str, tuple[str, str, dict[str, Any], str, int]] = {
    "mnist": ("MNIST", "mnist", {"layout": "image"}, "vit_mnist", 60_000),
    "cifar10": (
        "CIFAR-10",
        "image",
        {"color": "rgb", "layout": "image", "augment": "crop_flip"},
        "vit_cifar10",
        50_000,
    ),
    "cifar100": ("CIFAR-100", "cifar100", {"augment": "crop_flip"}, "vit_cifar100", 50_000),
}
_BATCH, _EPOCHS = 64, 100


def vit_row(data: str, *, settings: dict[str, Any], **place: Any) -> Recipe:
    """A ViT on one of `DATA`, trained as both papers do: 100 epochs, a rate for each epoch.

    Args:
        data: key of `DATA`.
        settings: of the model, the mixer first of all.
        place: name, paper, table, row and printed number.
    """
    column, task, options, model, images = DATA[data]
    epoch = images // _BATCH
    return Recipe(
        column=column,
        task=task,
        task_options=options,
        model=model,
        model_settings={**settings, "dropout": 0.1, "embedding_dropout": 0.1},
        train=TrainConfig(
            max_steps=_EPOCHS * epoch,
            batch_size=_BATCH,
            optimizer="adam",
            lr=1e-4,
            schedule="cosine",
            schedule_interval=epoch,
            eval_every=epoch,
        ),
        notes=("a tenth of the training images choose the model; the paper trains on all of them",),
        **place,
    )
