"""Recipes of the ToST paper: Tables 2 (images), 3 (LRA), 4 (language) and 8 (ablation)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.recipes.tost_lra import PAPER, TABLE3
from rifflemix.lab.train import TrainConfig

# Table 4: title of each column, and the corresponding metric of the task.
_TEXTS: dict[str, tuple[str, str]] = {
    "owt": ("OWT", "loss"),
    "lambada": ("Lambada", "lambada_loss"),
    "wikitext": ("Wikitext", "wikitext_loss"),
    "ptb": ("PTB", "ptb_loss"),
}
# Preset -> name.
_LANGUAGE: dict[str, str] = {
    "gpt2_base": "GPT2-Base",
    "tost_lm_base": "ToST-Base",
    "tost_lm_medium": "ToST-Medium",
    "tost_lm_large": "ToST-Large",
}
# Preset -> updates, samples per update, backward passes per update.
_SCHEDULES: dict[str, tuple[int, int, int]] = {
    "gpt2_base": (920_000, 1_280, 40),
    "tost_lm_base": (600_000, 480, 8),
    "tost_lm_medium": (600_000, 480, 16),
    "tost_lm_large": (600_000, 480, 24),
}
# Table 2: preset -> name.
_IMAGES: dict[str, str] = {
    "tost_tiny_16": "ToST-T",
    "tost_small_16": "ToST-S",
    "tost_medium_16": "ToST-M",
    "xcit_small_16": "XCiT-S",
    "xcit_medium_16": "XCiT-M",
}
# All data sets are normalized with the statistics of the pretraining data, also CIFAR.
_SCALE = {"statistics": "imagenet"}
# Column title, task, options, classes, batches of 256 per epoch.
_FINE_TUNED: dict[str, tuple[str, str, dict[str, Any], int, int]] = {
    "cifar10": ("CIFAR-10", "image", {"color": "rgb", "layout": "image", **_SCALE}, 10, 196),
    "cifar100": ("CIFAR-100", "cifar100", _SCALE, 100, 196),
    "flowers102": ("Oxford Flowers-102", "flowers102", {"layout": "image"}, 102, 4),
    "pets": ("Oxford-IIIT-Pets", "oxford_pets", {"layout": "image"}, 37, 15),
}

# Table 8: name, settings.
_ABLATION: dict[str, tuple[str, dict[str, Any]]] = {
    "normalized-mlp": (
        "Normalization, MLP",
        {"feed_forward": "mlp", "mixer_options": {"normalize": True}},
    ),
    "normalized-ista": (
        "Normalization, ISTA",
        {"feed_forward": "ista", "mixer_options": {"normalize": True}},
    ),
    "plain-mlp": (
        "No normalization, MLP",
        {"feed_forward": "mlp", "mixer_options": {"normalize": False}},
    ),
    "plain-ista": (
        "No normalization, ISTA",
        {"feed_forward": "ista", "mixer_options": {"normalize": False}},
    ),
}


def table2(data: str, model: str) -> Recipe:
    """Build a fine-tuned entry of Table 2.

    Training starts from ImageNet weights with a new head. Images are resized to 224 x 224.
    """
    column, task, options, classes, epoch = _FINE_TUNED[data]
    is_small = data.startswith("cifar")
    return Recipe(
        name=f"tost/table2-{data}-{model}",
        paper=PAPER,
        table="Table 2",
        row=_IMAGES[model],
        column=column,
        task=task,
        task_options={**options, "augment": "rand_augment"},
        model=model,
        model_settings={
            **({"image_size": 32, "resize": 224} if is_small else {}),
            "num_classes": classes,
            "drop_path": 0.0,
        },
        train=TrainConfig(
            max_steps=200 * epoch,
            batch_size=256,
            lr=1e-4,
            weight_decay=0.01,
            decay_all=True,
            schedule="cosine",
            schedule_interval=epoch,
            eval_every=epoch,
        ),
        new_head=True,
    )


_IMAGENET_EPOCH = 1_281_167 // 2048


def table2_imagenet(model: str, *, real: bool = False) -> Recipe:
    """Build an ImageNet entry of Table 2, trained with XCiT's released settings."""
    return Recipe(
        name=f"tost/table2-imagenet{'_real' if real else ''}-{model}",
        paper=PAPER,
        table="Table 2",
        row=_IMAGES[model],
        column="ImageNet ReaL" if real else "ImageNet",
        metric="real_accuracy" if real else "accuracy",
        task="imagenet",
        task_options={
            "layout": "image",
            "augment": "deit",
            **({"further_tests": "real"} if real else {}),
        },
        model=model,
        train=TrainConfig(
            max_steps=400 * _IMAGENET_EPOCH,
            batch_size=2048,
            accumulation=8,  # mixing within 256 images, the batch of each of the 8 GPUs
            lr=2e-3,
            min_lr=1e-5,
            weight_decay=0.05,
            schedule="cosine",
            schedule_interval=_IMAGENET_EPOCH,
            warmup_steps=5 * _IMAGENET_EPOCH,
            warmup_init=1e-6,
            label_smoothing=0.1,
            mixup=0.8,
            cutmix=1.0,
            eval_every=_IMAGENET_EPOCH,
        ),
    )


def table4(text: str, model: str) -> Recipe:
    """Build an entry of Table 4: trained on OpenWebText, tested on `text`."""
    column, metric = _TEXTS[text]
    updates, batch, passes = _SCHEDULES[model]
    return Recipe(
        name=f"tost/table4-{text}-{model}",
        paper=PAPER,
        table="Table 4",
        row=_LANGUAGE[model],
        column=column,
        metric=metric,
        unit="nats",
        task="openwebtext",
        task_options={"further_tests": "lambada,wikitext,ptb"},
        model=model,
        model_settings={"bias": False},
        train=TrainConfig(
            max_steps=updates,
            batch_size=batch,
            accumulation=passes,
            lr=6e-4,
            min_lr=6e-5,
            betas=(0.9, 0.95),
            weight_decay=1e-2 if model == "tost_lm_base" else 0.1,
            schedule="cosine",
            warmup_steps=2_000,
            clip_norm=1.0,
            eval_every=2_000,
        ),
    )


_CIFAR_EPOCH = 50_000 // 256


def table8(row: str) -> Recipe:
    """Build an entry of Table 8: ablation of normalization and feed-forward."""
    words, settings = _ABLATION[row]
    return Recipe(
        name=f"tost/table8-cifar10-{row}",
        paper=PAPER,
        table="Table 8",
        row=words,
        column="CIFAR-10",
        task="image",
        task_options={"color": "rgb", "layout": "image", "augment": "crop_flip"},
        model="tost_tiny_16",
        model_settings={
            **settings,
            "mixer": "tssa",
            "image_size": 32,
            "patch_size": 4,
            "num_classes": 10,
        },
        train=TrainConfig(
            max_steps=400 * _CIFAR_EPOCH,
            batch_size=256,
            lr=1e-4,
            weight_decay=0.05,
            schedule="cosine",
            warmup_steps=5 * _CIFAR_EPOCH,
            warmup_init=1e-6,
            eval_every=_CIFAR_EPOCH,
        ),
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table2, data, model) for data in _FINE_TUNED for model in _IMAGES),
    *(partial(table2_imagenet, model) for model in _IMAGES),
    *(partial(table2_imagenet, model, real=True) for model in _IMAGES),
    *TABLE3,
    *(partial(table4, text, model) for text in _TEXTS for model in _LANGUAGE),
    *(partial(table8, row) for row in _ABLATION),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
