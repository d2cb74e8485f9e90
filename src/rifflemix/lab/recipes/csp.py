"""Recipes of the CSP paper: Tables 1 and 3 (images) and both groups of Table 4 (Long Range Arena).

The second group of Table 4 is in `rifflemix.lab.recipes.mega` and
`rifflemix.lab.recipes.quoted`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.lab.recipes import lra, mega, quoted
from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.recipes.images import DATA, vit_row
from rifflemix.models import model_settings

PAPER = mega.PAPER

# Table 3. Name, mixer and its options; Top-1 on CIFAR-10, CIFAR-100, ImageNet, then Top-5.
_ImageRow = tuple[str, str, dict[str, Any], tuple[float, ...], tuple[float, ...]]
_AS_RELEASED: dict[str, Any] = {"shift": "code_linear", "order": "ascending"}
_IMAGE_ROWS: dict[str, _ImageRow] = {
    "vit": ("ViT, MHA", "softmax", {}, (81.90, 53.30, 76.53), (98.85, 79.97, 92.81)),
    "shift": (
        "ViT, circular shifting",
        "csp",
        {**_AS_RELEASED, "group_size": 1},
        (83.84, 58.38, 75.64),
        (99.27, 84.26, 92.42),
    ),
    "sort": (
        "ViT, group sorting",
        "csp",
        {"shift": "none", "num_groups": 1, "order": "ascending"},
        (79.41, 51.47, 64.77),
        (99.03, 79.67, 85.28),
    ),
    "group_sort": (
        "ViT, group sorting in the groups of Table 5",
        "csp",
        {"shift": "none", "group_size": 2, "order": "ascending"},
        (79.41, 51.47),
        (99.03, 79.67),
    ),
    "csp": (
        "ViT, CSP",
        "csp",
        {**_AS_RELEASED, "group_size": 2},
        (84.81, 59.16, 76.66),
        (99.35, 84.76, 93.05),
    ),
    "csp_wide": (
        "ViT, CSP, as many parameters as MHA",
        "csp",
        {**_AS_RELEASED, "group_size": 2},
        (85.02, 59.23, 77.14),
        (99.37, 85.09, 93.23),
    ),
}
_IMAGE_COLUMNS = ("cifar10", "cifar100", "imagenet")
_IMAGE_METRICS = ("accuracy", "top5_accuracy")
_AS_RELEASED_NOTE = (
    "sorted ascending and shifted as released; the paper's formulas sort by the first channel and "
    "shift channel c by c ceil(N / C)"
)
_IMAGE_NOTES: dict[str, tuple[str, ...]] = {
    "sort": (
        "sorted ascending, all tokens in one group, as in Sliceformer; on ImageNet the printed "
        "accuracy is Sliceformer's",
        "for CIFAR the paper prints no number of groups; csp/table3-COLUMN-group_sort has the "
        "groups of Table 5",
    ),
    "group_sort": (
        "sorted ascending in pairs, without shifts: the groups that Table 5 prints for CSP",
        "the paper prints no number of groups for this row; csp/table3-COLUMN-sort has one group",
    ),
    "csp": (_AS_RELEASED_NOTE,),
    "shift": (
        "steps 0, 0, 1, 2 ... modulo N as the released code makes them with windows of one token: "
        "N different ones, as Table 1 counts; its formula starts 0, 1, 2",
    ),
    "csp_wide": (
        _AS_RELEASED_NOTE,
        "the paper widens the channels of the layer and prints the counts of the ViT with MHA; "
        "twice the width within CSP gives them",
    ),
}
# Table 1: one shift step for each of eight heads, equation (3).
_HEAD_SHIFT: dict[str, Any] = {
    "shift": "head", "heads": 8, "group_size": 1, "order": "ascending"
}  # fmt: skip

# Table 4, first group. Name, then accuracy on ListOps, Text, Retrieval, Image, Pathfinder.
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
# Tasks on which the paper's model and ascending Sliceformer have the same settings.
_SLICEFORMERS = ("listops", "text")
# Table 6: sizes and training settings of the paper's model.
_CSP_SIZES: dict[str, tuple[int, int]] = {"image": (128, 4), "pathfinder": (64, 6)}
_SIZE_NOTES: dict[str, str] = {
    "image": "447,370 parameters; the Transformer of this table has 248,458",
    "pathfinder": "121,474 parameters; the Transformer of this table has 26,530",
}
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
    printed = {"accuracy": 80.70, "top5_accuracy": 98.97}[metric]
    return _image_row(
        "csp/table1-cifar10-head_shift",
        "cifar10",
        metric,
        table="Table 1",
        row="8 circular shifts, one for each head",
        printed=printed,
        settings={"mixer": "csp", "mixer_options": _HEAD_SHIFT},
    )


def table3(column: str, row: str, metric: str) -> Recipe:
    """Build an entry of Table 3: Top-1 ("accuracy") or Top-5."""
    words, mixer, options, top1, top5 = _IMAGE_ROWS[row]
    if row == "csp_wide":
        options = {**options, "inner_dim": 2 * model_settings(DATA[column].model)["dim"]}
    return _image_row(
        f"csp/table3-{column}-{row}",
        column,
        metric,
        table="Table 3",
        row=words,
        printed=(top1 if metric == "accuracy" else top5)[_IMAGE_COLUMNS.index(column)],
        settings={"mixer": mixer, "mixer_options": options},
        notes=_IMAGE_NOTES.get(row, ()),
    )


def _image_row(
    name: str,
    column: str,
    metric: str,
    *,
    settings: dict[str, Any],
    notes: tuple[str, ...] = (),
    **where: Any,
) -> Recipe:
    """Build an entry of Table 1 or 3.

    Top-1 and Top-5 are metrics of the same run.
    """
    if metric == "top5_accuracy":
        notes = (*notes, f"the same run as {name}")
        where |= {"column": f"{DATA[column].title}, Top-5"}
        name += "-top5"
    return vit_row(
        column,
        settings={**settings, "pool": "mean"},
        notes=notes,
        name=name,
        paper=PAPER,
        metric=metric,
        **where,
    )


def table4_transformer(task: str, mixer: str) -> Recipe:
    """Build an entry of Table 4, first group: a JAX-code Transformer."""
    words, printed = TRANSFORMERS[mixer]
    settings, notes = lra.row_settings(mixer, task)
    title, task_name, _ = lra.TASKS[task]
    return Recipe(
        name=f"csp/table4-{task}-{mixer}",
        paper=PAPER,
        table="Table 4",
        row=words,
        column=title,
        printed=printed[_FIVE.index(task)],
        task=task_name,
        task_options=lra.row_task_options(mixer, task),
        model=f"lra_{task}",
        model_settings=settings,
        train=replace(lra.BASE[task], **lra.row_training(mixer, task)),
        notes=notes,
    )


def _csp_notes(task: str) -> tuple[str, ...]:
    same = f"the printed figure is that of sliceformer/table2-{task}-ascending"
    sorted_too = "padding is sorted with the rest, as released"
    decay = (lra.DECOUPLED_DECAY,) if lra.BASE[task].weight_decay else ()
    if task in _SLICEFORMERS:
        return f"{same}, which is the same model and training", sorted_too, *decay
    return (
        f"{same}; the settings are this paper's Table 6, which differ",
        *decay,
        "Table 6 prints no width of the MLP, dropout or warm-up: dropout, warm-up and the ratio of "
        "the MLP to the model are those of the released host's Transformer",
        *((_SIZE_NOTES[task],) if task in _SIZE_NOTES else ()),
        *(lra.RETRIEVAL_NOTES if task == "retrieval" else ()),
        sorted_too,
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
        printed=_CSP_ROW[_FIVE.index(task)],
        task=task_name,
        task_options=lra.JAX_TASK_OPTIONS.get(task, {}),
        model=f"lra_{task}",
        model_settings=settings,
        train=replace(lra.BASE[task], **_CSP_TRAIN[task]),
        notes=_csp_notes(task),
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table1, metric) for metric in _IMAGE_METRICS),
    *(
        partial(table3, column, row, metric)
        for place, column in enumerate(_IMAGE_COLUMNS)
        for row, (*_, top1, _) in _IMAGE_ROWS.items()
        if place < len(top1)
        for metric in _IMAGE_METRICS
    ),
    *(partial(table4_csp, task) for task in _FIVE),
    *(partial(table4_transformer, task, mixer) for mixer in TRANSFORMERS for task in _FIVE),
    *(partial(mega.table4, task, row) for row in mega.ROWS for task in mega.TASKS),
    *(
        partial(quoted.table4, task, row)
        for row, (_, printed) in quoted.ROWS.items()
        for task, number in zip(mega.TASKS, printed, strict=True)
        if number is not None
    ),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
