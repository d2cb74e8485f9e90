"""Recipes of the CSP paper: Tables 1 and 3 (images) and both groups of Table 4 (Long Range Arena).

Sliceformer's recipes share the image data. The second group of Table 4 is in
`rifflemix.lab.recipes.mega` and `rifflemix.lab.recipes.baselines_of_mega_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rifflemix.lab.recipes import baselines_of_mega_table, lra, mega
from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.train import TrainConfig
from rifflemix.models import model_settings


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
    """

    title: str
    task: str
    options: Mapping[str, Any]
    model: str
    train: TrainConfig
    settings: Mapping[str, Any] = field(
        default_factory=lambda: {"dropout": 0.1, "embedding_dropout": 0.1}
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
    ),
    "tiny": Data(
        "Tiny-ImageNet",
        "tiny_imagenet",
        {"layout": "image", "size": 224, **_CROP_FLIP},
        "vit_tiny_imagenet",
        _train(100_000),
    ),
}


def vit_row(data: str, *, settings: Mapping[str, Any], **where: Any) -> Recipe:
    """Build the recipe of a ViT on one of `DATA`.

    Args:
        data: key of `DATA`.
        settings: model settings, including the mixer.
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
        **{"column": of.title, **where},
    )


PAPER = mega.PAPER

# Table 3: name, mixer and its options.
_ImageRow = tuple[str, str, dict[str, Any]]
_AS_RELEASED: dict[str, Any] = {"shift": "code_linear", "order": "ascending"}
_IMAGE_ROWS: dict[str, _ImageRow] = {
    "vit": ("ViT, MHA", "softmax", {}),
    "shift": ("ViT, circular shifting", "csp", {**_AS_RELEASED, "group_size": 1}),
    "sort": ("ViT, group sorting", "csp", {"shift": "none", "num_groups": 1, "order": "ascending"}),
    "group_sort": (
        "ViT, group sorting in the groups of Table 5",
        "csp",
        {"shift": "none", "group_size": 2, "order": "ascending"},
    ),
    "csp": ("ViT, CSP", "csp", {**_AS_RELEASED, "group_size": 2}),
    "csp_wide": ("ViT, CSP, as many parameters as MHA", "csp", {**_AS_RELEASED, "group_size": 2}),
}
_IMAGE_COLUMNS = ("cifar10", "cifar100", "imagenet")
_IMAGE_METRICS = ("accuracy", "top5_accuracy")
# Table 1: one shift step for each of eight heads, equation (3).
_HEAD_SHIFT: dict[str, Any] = {
    "shift": "head", "heads": 8, "group_size": 1, "order": "ascending"
}  # fmt: skip

# Table 4, first group: mixer and name.
TRANSFORMERS: dict[str, str] = {
    "softmax": "Transformer",
    "local": "LocalAttention",
    "linear": "LinearTrans",
    "reformer": "Reformer",
    "sinkformer": "Sinkformer",
    "sparse_transformer": "SparseTrans",
    "sinkhorn": "SinkhornTrans",
    "linformer": "Linformer",
    "performer": "Performer",
    "synthesizer": "Synthesizer",
    "longformer": "Longformer",
    "bigbird": "BigBird",
    "cosformer": "Cosformer",
}
_FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
# Table 6: sizes and training settings of the paper's model.
_CSP_SIZES: dict[str, tuple[int, int]] = {"image": (128, 4), "pathfinder": (64, 6)}
_CSP_TRAIN: dict[str, dict[str, Any]] = {
    "listops": {},
    "text": {},
    "retrieval": {"batch_size": 8},
    "image": {"max_steps": 35_156, "lr": 8e-3},
    "pathfinder": {"max_steps": 125_000, "batch_size": 256, "schedule_steps": 124_800},
}


def table1(metric: str) -> Recipe:
    """Build the entry of Table 1 that is not in Table 3.

    It has one shift per head, on CIFAR-10.
    """
    return _image_row(
        "csp/table1-cifar10-head_shift",
        "cifar10",
        metric,
        table="Table 1",
        row="8 circular shifts, one for each head",
        settings={"mixer": "csp", "mixer_options": _HEAD_SHIFT},
    )


def table3(column: str, row: str, metric: str) -> Recipe:
    """Build an entry of Table 3: Top-1 ("accuracy") or Top-5."""
    words, mixer, options = _IMAGE_ROWS[row]
    if row == "csp_wide":
        options = {**options, "inner_dim": 2 * model_settings(DATA[column].model)["dim"]}
    return _image_row(
        f"csp/table3-{column}-{row}",
        column,
        metric,
        table="Table 3",
        row=words,
        settings={"mixer": mixer, "mixer_options": options},
    )


def _image_row(
    name: str,
    column: str,
    metric: str,
    *,
    settings: dict[str, Any],
    **where: Any,
) -> Recipe:
    """Build an entry of Table 1 or 3.

    Top-1 and Top-5 are metrics of the same run.
    """
    if metric == "top5_accuracy":
        where |= {"column": f"{DATA[column].title}, Top-5"}
        name += "-top5"
    return vit_row(
        column,
        settings={**settings, "pool": "mean"},
        name=name,
        paper=PAPER,
        metric=metric,
        **where,
    )


def table4_transformer(task: str, mixer: str) -> Recipe:
    """Build an entry of Table 4, first group: a JAX-code Transformer."""
    title, task_name, _ = lra.TASKS[task]
    return Recipe(
        name=f"csp/table4-{task}-{mixer}",
        paper=PAPER,
        table="Table 4",
        row=TRANSFORMERS[mixer],
        column=title,
        task=task_name,
        task_options=lra.row_task_options(mixer, task),
        model=f"lra_{task}",
        model_settings=lra.row_settings(mixer, task),
        train=replace(lra.BASE[task], **lra.row_training(mixer, task)),
    )


def table4_csp(task: str) -> Recipe:
    """Build the recipe of the paper's model in Table 4, first group.

    The mixer is one sort of the whole sequence.
    """
    title, task_name, _ = lra.TASKS[task]
    settings: dict[str, Any] = {
        "mixer": "csp",
        "mixer_options": {
            "num_groups": 1,
            "shift": "none",
            "order": "ascending",
            "out_bias": False,
        },
        "pool": "cls",
        "padding": "unmasked",
        "padding_id": None,
    }
    if task in _CSP_SIZES:
        dim, layers = _CSP_SIZES[task]
        settings |= {"dim": dim, "num_layers": layers, "head_hidden": [dim]}
    return Recipe(
        name=f"csp/table4-{task}",
        paper=PAPER,
        table="Table 4",
        row="Transformer using CSP",
        column=title,
        task=task_name,
        task_options=lra.JAX_TASK_OPTIONS.get(task, {}),
        model=f"lra_{task}",
        model_settings=settings,
        train=replace(lra.BASE[task], **_CSP_TRAIN[task]),
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table1, metric) for metric in _IMAGE_METRICS),
    *(
        partial(table3, column, row, metric)
        for column in _IMAGE_COLUMNS
        for row in _IMAGE_ROWS
        if (row, column) != ("group_sort", "imagenet")
        for metric in _IMAGE_METRICS
    ),
    *(partial(table4_csp, task) for task in _FIVE),
    *(partial(table4_transformer, task, mixer) for mixer in TRANSFORMERS for task in _FIVE),
    *(partial(mega.table4, task, row) for row in mega.ROWS for task in mega.TASKS),
    *(
        partial(baselines_of_mega_table.table4, task, row)
        for row in baselines_of_mega_table.ROWS
        for task in mega.TASKS
        if (row, task) not in baselines_of_mega_table.FAILED
    ),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
