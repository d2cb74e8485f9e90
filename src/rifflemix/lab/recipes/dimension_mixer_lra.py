"""Recipes of the Dimension Mixer paper's Tables 5 and 6: Long Range Arena, Path-X curriculum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.lab.recipes import lra
from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.tasks.pathfinder.pathfinder import CURRICULUM
from rifflemix.lab.train import TrainConfig

PAPER = "Sapkota and Bhattarai, Dimension Mixer"

_ONE_CYCLE = (
    "the paper prints warm-up and linear decay; one cycle from a 25th of the rate, with a beta1 "
    "that moves from 0.95 to 0.85 and back, is in the released host"
)
# Table 5: name, mixer options.
_LRA: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("Standard", {}),
    "flash": ("Flash-Attn.", {}),
    "reformer": (
        "Reformer",
        {"num_hashes": 2, "chunk_size": 64, "compat": "hf", "out_bias": True},
    ),
    "linformer": (
        "Linformer",
        {"projected_length": 256, "share_heads": False, "keep_positions": True},
    ),
    "performer": (
        "Performer",
        {"num_features": 256, "scale_exponent": 0.5, "padded_keys": "zero"},
    ),
    "nystromformer": (
        "Nystromformer",
        {"num_landmarks": 128, "conv_kernel": 35, "landmarks": "all", "pinv_init": "batch"},
    ),
    "butterfly": ("Butterfly", {}),
}
_LRA_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
_LRA_IMAGES = ("image", "pathfinder")
# Mixers with attention dropout in the released code: softmax, and butterfly built from softmax.
_DROPS_WEIGHTS = ("softmax", "flash", "butterfly")
_LRA_NOTES: dict[str, tuple[str, ...]] = {
    "flash": (
        "quoted from FlashAttention; exact attention as in the row Standard, with torch's fused "
        "kernels if the device supports them",
    ),
    "reformer": ("the code draws new rotations at every call, ours stay",),
    "performer": (
        "as in the code, queries and keys are scaled twice, and padding, as zero keys, counts in "
        "the sum of the weights",
    ),
    "linformer": ("the code's projection is one for all layers, ours one for each",),
    "nystromformer": ("the paper does not print the number of landmarks; the code has 32 to 256",),
    "butterfly": (
        "no code is released for this table: blocks of sqrt(N) in the quoted rows' host",
    ),
}

# Further recipes for Table 5: mixers of other papers in the host model of the table.
_LRA_BESIDE: dict[str, str] = {
    "csp": "CSP",
    "sliceformer": "Sliceformer",
    "tssa": "Token statistics (TSSA)",
    "sinkhorn": "Sparse Sinkhorn attention",
}

# Table 6: image size and name of each step of the curriculum. The first two steps and
# the last step use data of the Long Range Arena; the paper generates the other four data sets.
_CURRICULUM: dict[str, tuple[int, str]] = {
    "32": (32, "32, contour 14"),
    "64": (64, "64, contour 9"),
    "128-d5-g1": (128, "128, contour 14, 5 distractors, gap 1"),
    "128-d5-g2": (128, "128, contour 14, 5 distractors, gap 2"),
    "128-d14": (128, "128, contour 14, 14 distractors, gaps 2 and 3"),
    "128-d20": (128, "128, contour 14, 20 distractors, gaps 2 and 3"),
    "128": (128, "128, contour 14"),
}
_CHAIN_NOTE = (
    "the paper starts each row of the table from the weights of the row above: --start-from"
)


def table5(task: str, mixer: str) -> Recipe:
    """Build an entry of Table 5 with Nystromformer's PyTorch host model."""
    words, options = _LRA[mixer]
    title, task_name, task_options = lra.TASKS[task]
    exact = "softmax" if mixer == "flash" else mixer
    settings: dict[str, Any] = {**lra.nystrom_settings(task), "mixer": exact}
    if options:
        settings["mixer_options"] = options
    if mixer not in _DROPS_WEIGHTS:
        settings["attention_dropout"] = 0.0
    return Recipe(
        name=f"dimension_mixer/table5-{task}-{mixer}",
        paper=PAPER,
        table="Table 5",
        row=words,
        column=title,
        task=task_name,
        task_options={"max_length": 4000} if task == "text" else task_options,
        model="encoder",
        model_settings=settings,
        train=lra.NYSTROM_TRAIN[task],
        notes=(*lra.nystrom_notes(task), _ONE_CYCLE, *_LRA_NOTES.get(mixer, ())),
    )


def table5_all_pixels(task: str, mixer: str) -> Recipe:
    """Build a recipe like `table5` without masked black pixels."""
    hidden = table5(task, mixer)
    return replace(
        hidden,
        name=f"{hidden.name}-all-pixels",
        row=f"{hidden.row}, black pixels seen",
        model_settings={**hidden.model_settings, "padding_id": None},
        notes=(
            f"no row of the paper: {hidden.name} with the black pixels that its host hides",
            *_LRA_NOTES.get(mixer, ()),
        ),
    )


def table5_beside(task: str, mixer: str) -> Recipe:
    """Build a Table 5 recipe with the mixer of another paper."""
    butterfly = table5(task, "butterfly")
    return replace(
        butterfly,
        name=f"dimension_mixer/table5-{task}-{mixer}",
        row=f"{_LRA_BESIDE[mixer]}, in the table's host",
        model_settings={
            **butterfly.model_settings,
            "mixer": mixer,
            "attention_dropout": 0.0,
        },
        notes=(
            f"no row of the paper: {mixer} as it is by default, in the host of its rows",
            *lra.nystrom_notes(task),
        ),
    )


def table5_pathx() -> Recipe:
    """Build the last entry of Table 6: butterfly attention on Path-X."""
    title, task, options = lra.TASKS["pathx"]
    return replace(
        table6("128"),
        name="dimension_mixer/table5-pathx-butterfly",
        table="Table 5",
        row="Butterfly",
        column=title,
        task=task,
        task_options=options,
    )


def table6(step: str) -> Recipe:
    """Build an entry of Table 6: a step of the Path-X curriculum."""
    size, words = _CURRICULUM[step]
    task, options = CURRICULUM[step]
    return Recipe(
        name=f"dimension_mixer/table6-{step}",
        paper=PAPER,
        table="Table 6",
        row=words,
        column="Pathfinder",
        task=task,
        task_options=options,
        model="encoder",
        model_settings={
            **lra.nystrom_settings("pathfinder"),
            "mixer": "butterfly",
            "mixer_options": {"block_size": size},
            "num_layers": 4,
            "num_heads": 4,
            "residual_dropout": 0.0,
            "max_length": size**2,
        },
        train=TrainConfig(
            max_steps=62_400,
            batch_size=256,
            accumulation=8 if size == 128 else 1,
            lr=3e-4,
            eps=1e-6,
            weight_decay=1e-3,
            decay_all=True,  # the code passes all parameters to AdamW as one group
            schedule="cosine",
            eval_every=1_248,
        ),
        notes=(
            _CHAIN_NOTE,
            "batch size and updates follow Pathfinder in Table 5; the paper does not report them",
        ),
    )


TABLES_5_AND_6: tuple[Callable[[], Recipe], ...] = (
    *(partial(table5, task, mixer) for mixer in _LRA for task in _LRA_TASKS),
    *(
        partial(table5_all_pixels, task, mixer)
        for mixer in _LRA
        if mixer != "flash"
        for task in _LRA_IMAGES
    ),
    *(partial(table5_beside, task, mixer) for mixer in _LRA_BESIDE for task in _LRA_TASKS),
    table5_pathx,
    *(partial(table6, step) for step in _CURRICULUM),
)
