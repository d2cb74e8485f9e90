"""Recipes of the Sliceformer paper: Table II (Long Range Arena), Table IV (images)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.recipes import csp, lra
from rifflemix.recipes.base import Recipe
from rifflemix.recipes.images import vit_row

PAPER = "Yuan and Xu, Sliceformer"

_VARIANTS: dict[str, tuple[str, tuple[float, ...]]] = {
    "max_exchange": ("Sliceformer, max-exchange", (37.00, 62.90, 59.00, 40.48, 75.42)),
    "interleave": ("Sliceformer, order-interleave", (37.30, 64.25, 61.97, 45.88, 81.98)),
    "ascending": ("Sliceformer, ascending", (37.65, 64.60, 62.23, 48.02, 82.04)),
}
_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
# emb, qkv, mlp, layers, heads of the released configurations.
_SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "listops": (512, 512, 1024, 4, 8),
    "text": (256, 256, 1024, 4, 4),
    "retrieval": (128, 128, 512, 4, 4),
    "image": (96, 48, 128, 6, 8),
    "pathfinder": (320, 320, 320, 4, 8),
}
_TRAIN: dict[str, dict[str, Any]] = {
    "listops": {},
    "text": {},
    "retrieval": {},
    # The cycle is that of the base configuration, so that on Image the cosine starts again.
    "image": {"max_steps": 46_800, "batch_size": 192, "lr": 5e-3},
    "pathfinder": {"max_steps": 50_000, "batch_size": 640, "lr": 5e-4},
}
_DROPOUT = {"image": 0.2}
_NOTES: dict[str, tuple[str, ...]] = {
    "text": ("the released configuration cuts reviews to 1,000 bytes",),
    "retrieval": ("5,000 steps end within the 8,000 of warm-up, as released",),
}

_IMAGE_ROWS: dict[str, tuple[str, dict[str, Any], tuple[float, float, float]]] = {
    "vit": ("ViT", {"mixer": "softmax"}, (98.78, 80.98, 53.99)),
    "max_exchange": (
        "Sliceformer, max-exchange",
        {"mixer": "sliceformer", "mixer_options": {"variant": "max_exchange"}},
        (98.81, 82.16, 54.24),
    ),
    "ascending": (
        "Sliceformer, ascending",
        {"mixer": "sliceformer", "mixer_options": {"variant": "ascending"}},
        (99.00, 83.54, 54.70),
    ),
}
_IMAGE_COLUMNS = ("mnist", "cifar10", "cifar100")


def table2(task: str, variant: str) -> Recipe:
    """One of the paper's own rows of Table II."""
    words, printed = _VARIANTS[variant]
    title, task_name, options = lra.TASKS[task]
    emb, qkv, mlp, layers, heads = _SIZES[task]
    mixer_options: dict[str, Any] = {"variant": variant, "heads": heads, "out_bias": False}
    if qkv != emb:
        mixer_options["inner_dim"] = qkv
    return Recipe(
        name=f"sliceformer/table2-{task}-{variant}",
        paper=PAPER,
        table="Table II",
        row=words,
        column=title,
        printed=printed[_TASKS.index(task)],
        task=task_name,
        task_options={"max_length": 1000} if task == "text" else options,
        model=f"lra_{task}",
        model_settings={
            "mixer": "sliceformer",
            "mixer_options": mixer_options,
            "dim": emb,
            "mlp_ratio": mlp / emb,
            "head_hidden": [mlp, mlp // 2] if task == "retrieval" else [mlp],
            "num_layers": layers,
            "num_heads": heads,
            "dropout": _DROPOUT.get(task, 0.1),
            "attention_dropout": 0.1,
            "pool": "cls",
        },
        train=replace(lra.BASE[task], **_TRAIN[task]),
        notes=_NOTES.get(task, ()),
    )


def table2_baseline(task: str, mixer: str) -> Recipe:
    """A row that Table II shares with Table 4 of the CSP paper: the same runs of the JAX code."""
    same = csp.table4_transformer(task, mixer)
    return replace(same, name=f"sliceformer/table2-{task}-{mixer}", paper=PAPER, table="Table II")


def table4(column: str, row: str) -> Recipe:
    """A row of Table IV: the ViT of that data with MHA or a sort."""
    words, settings, printed = _IMAGE_ROWS[row]
    return vit_row(
        column,
        settings={**settings, "pool": "cls"},
        name=f"sliceformer/table4-{column}-{row}",
        paper=PAPER,
        table="Table IV",
        row=words,
        printed=printed[_IMAGE_COLUMNS.index(column)],
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table2, task, variant) for variant in _VARIANTS for task in _TASKS),
    *(partial(table2_baseline, task, mixer) for mixer in csp.TRANSFORMERS for task in _TASKS),
    *(partial(table4, column, row) for column in _IMAGE_COLUMNS for row in _IMAGE_ROWS),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
