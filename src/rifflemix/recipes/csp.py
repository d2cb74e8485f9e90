"""Recipes of the CSP paper: Table 3 (images) and both groups of Table 4 (Long Range Arena)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.models import model_settings
from rifflemix.recipes import lra
from rifflemix.recipes.base import Recipe
from rifflemix.recipes.images import vit_row
from rifflemix.train import TrainConfig

PAPER = "Yuan and Xu, Channel-wise Sample Permutation"

# Table 3. Names, words, settings of the ViT, Top-1 on CIFAR-10, CIFAR-100, ImageNet.
_IMAGE_ROWS: dict[str, tuple[str, dict[str, Any], tuple[float, float, float]]] = {
    "vit": ("ViT, MHA", {"mixer": "softmax"}, (81.90, 53.30, 76.53)),
    "shift": (
        "ViT, circular shifting",
        {"mixer": "csp", "mixer_options": {"shift": "code_linear", "group_size": 1}},
        (83.84, 58.38, 75.64),
    ),
    "sort": (
        "ViT, group sorting",
        {"mixer": "csp", "mixer_options": {"shift": "none", "num_groups": 1, "order": "ascending"}},
        (79.41, 51.47, 64.77),
    ),
    "csp": (
        "ViT, CSP",
        {
            "mixer": "csp",
            "mixer_options": {"shift": "code_linear", "group_size": 2, "order": "ascending"},
        },
        (84.81, 59.16, 76.66),
    ),
}
_IMAGE_COLUMNS = ("cifar10", "cifar100")

# Table 4, first group. What it is called, then ListOps, Text, Retrieval, Image, Pathfinder.
TRANSFORMERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "softmax": ("Transformer", (36.37, 64.27, 57.46, 42.44, 71.40)),
    "local": ("LocalAttention", (15.82, 52.98, 53.39, 41.46, 66.63)),
    "linear": ("LinearTrans", (16.13, 65.90, 53.09, 42.34, 75.30)),
    "reformer": ("Reformer", (37.27, 56.10, 53.40, 38.07, 68.50)),
    "sinkformer": ("Sinkformer", (30.70, 64.03, 55.45, 41.08, 64.65)),
    "sparse_transformer": ("SparseTrans", (17.07, 63.58, 59.59, 44.24, 71.71)),
    "sinkhorn": ("SinkhornTrans", (33.67, 61.20, 53.83, 41.23, 67.45)),
    "linformer": ("Linformer", (35.70, 53.94, 52.27, 38.56, 76.34)),
    "performer": ("Performer", (18.01, 65.40, 53.82, 42.77, 77.05)),
    "synthesizer": ("Synthesizer", (36.99, 61.68, 54.67, 41.61, 69.45)),
    "longformer": ("Longformer", (35.63, 62.85, 56.89, 42.22, 69.71)),
    "bigbird": ("BigBird", (36.05, 64.02, 59.29, 40.83, 74.87)),
    "cosformer": ("Cosformer", (37.90, 63.41, 61.36, 43.17, 70.33)),
}
_CSP_ROW = (37.65, 64.60, 62.23, 48.02, 82.04)
_FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
# Table 6: what the paper's own row changes.
_CSP_SIZES: dict[str, tuple[int, int]] = {"image": (128, 4), "pathfinder": (64, 6)}
_CSP_TRAIN: dict[str, dict[str, Any]] = {
    "listops": {},
    "text": {},
    "retrieval": {"batch_size": 8},
    "image": {"lr": 8e-3},
    "pathfinder": {"max_steps": 125_000, "batch_size": 256, "schedule_steps": 124_800},
}

# Table 4, second group: ListOps, Text, Retrieval, Image, Pathfinder, Path-X.
_MEGA: dict[str, tuple[str, tuple[float, ...]]] = {
    "mega": ("MEGA", (63.14, 90.43, 91.25, 90.44, 96.01, 97.98)),
    "mega_chunk": ("MEGA-chunk", (58.76, 90.19, 90.97, 85.80, 94.41, 93.81)),
    "mega_csp": ("MEGA using CSP", (61.85, 90.27, 90.09, 87.42, 93.74, 91.98)),
}
_SIX = (*_FIVE, "pathx")
# Table 7 and the released commands: batch, accumulation, updates, warm-up, rate, decay.
_MEGA_TRAIN: dict[str, tuple[int, int, int, int, float, float]] = {
    "listops": (64, 1, 90_000, 3_000, 1e-3, 0.01),
    "text": (50, 2, 25_000, 10_000, 4e-3, 0.01),
    "retrieval": (64, 8, 20_000, 10_000, 6e-3, 0.04),
    "image": (50, 1, 180_000, 9_000, 1e-2, 0.02),
    "pathfinder": (64, 1, 250_000, 50_000, 3e-2, 0.01),
    "pathx": (60, 1, 125_000, 25_000, 1e-2, 0.01),
}


def table3(column: str, row: str) -> Recipe:
    """A row of Table 3 on CIFAR-10 or CIFAR-100."""
    words, settings, printed = _IMAGE_ROWS[row]
    return vit_row(
        column,
        settings={**settings, "pool": "mean"},
        name=f"csp/table3-{column}-{row}",
        paper=PAPER,
        table="Table 3",
        row=words,
        printed=printed[_IMAGE_COLUMNS.index(column)],
    )


def table4_transformer(task: str, mixer: str) -> Recipe:
    """A row of the first group of Table 4: a Transformer of the JAX code with a mixer."""
    words, printed = TRANSFORMERS[mixer]
    settings, notes = lra.row_settings(mixer, task)
    title, task_name, options = lra.TASKS[task]
    return Recipe(
        name=f"csp/table4-{task}-{mixer}",
        paper=PAPER,
        table="Table 4",
        row=words,
        column=title,
        printed=printed[_FIVE.index(task)],
        task=task_name,
        task_options=options,
        model=f"lra_{task}",
        model_settings=settings,
        train=replace(lra.BASE[task], **lra.row_training(mixer, task)),
        notes=notes,
    )


def table4_csp(task: str) -> Recipe:
    """The paper's own row of the first group of Table 4: one sort of the whole sequence."""
    title, task_name, options = lra.TASKS[task]
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
    }
    if task in _CSP_SIZES:
        dim, layers = _CSP_SIZES[task]
        settings |= {"dim": dim, "num_layers": layers}
    return Recipe(
        name=f"csp/table4-{task}",
        paper=PAPER,
        table="Table 4",
        row="Transformer using CSP",
        column=title,
        printed=_CSP_ROW[_FIVE.index(task)],
        task=task_name,
        task_options=options,
        model=f"lra_{task}",
        model_settings=settings,
        train=replace(lra.BASE[task], **_CSP_TRAIN[task]),
        notes=(
            "the printed figures equal those of Sliceformer's ascending row",
            "padding is sorted with the rest, as released",
        ),
    )


def _as_reported(model: str) -> dict[str, Any]:
    """The MEGA block's options with the sort and the shifts of the released code."""
    options = model_settings(model)["mixer_options"]
    csp = options["csp_options"]
    shift = {"linear": "code_linear", "power": "code_exp"}.get(csp["shift"], csp["shift"])
    return {**options, "csp_options": {**csp, "order": "ascending", "shift": shift}}


def table4_mega(task: str, variant: str) -> Recipe:
    """A row of the second group of Table 4."""
    words, printed = _MEGA[variant]
    title, task_name, options = lra.TASKS[task]
    batch, accumulation, updates, warmup, rate, decay = _MEGA_TRAIN[task]
    model, is_own = f"{variant}_lra_{task}", variant == "mega_csp"
    return Recipe(
        name=f"csp/table4-{task}-{variant}",
        paper=PAPER,
        table="Table 4",
        row=words,
        column=title,
        printed=printed[_SIX.index(task)],
        task=task_name,
        task_options=options,
        model=model,
        model_settings={"mixer_options": _as_reported(model)} if is_own else {},
        notes=("sorted ascending and shifted as released",) if is_own else (),
        train=TrainConfig(
            max_steps=updates,
            batch_size=batch,
            accumulation=accumulation,
            lr=rate,
            weight_decay=decay,
            betas=(0.9, 0.98),
            schedule="linear",
            warmup_steps=warmup,
            warmup_init=1e-7,
            warmup_power=2.0 if task == "pathx" else 1.0,
            schedule_steps=91_960 if task == "retrieval" else None,
            clip_norm=1.0,
            eval_every=1_000,
        ),
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table3, column, row) for column in _IMAGE_COLUMNS for row in _IMAGE_ROWS),
    *(partial(table4_csp, task) for task in _FIVE),
    *(partial(table4_transformer, task, mixer) for mixer in TRANSFORMERS for task in _FIVE),
    *(partial(table4_mega, task, variant) for variant in _MEGA for task in _SIX),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
