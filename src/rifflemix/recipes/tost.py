"""Recipes of the ToST paper: Table 3 (Long Range Arena), Table 4 (language), Table 8 (ablation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.recipes import csp, lra
from rifflemix.recipes.base import Recipe
from rifflemix.train import TrainConfig

PAPER = "Wu et al., Token Statistics Transformer"

_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
# Table 3, rows of one host, with the paper's own operator and with attention.
_OWN: dict[str, tuple[str, tuple[float, ...]]] = {
    "tssa": ("ToST", (37.25, 66.75, 79.46, 46.62, 69.41)),
    "softmax": ("Transformer", (37.11, 65.21, 79.14, 42.94, 71.83)),
}
# Table 3, rows that are quoted from the JAX code's table.
_QUOTED: dict[str, str] = {
    "reformer": "Reformer",
    "bigbird": "BigBird",
    "linear": "LinFormer",
    "performer": "Performer",
}
# Table 7: layers, dim, heads, MLP; batch, rate, dropout, decay, steps, warm-up, schedule.
_SIZES: dict[str, tuple[int, int, int, int]] = {
    "listops": (6, 512, 8, 2048),
    "text": (4, 256, 4, 1024),
    "retrieval": (6, 128, 4, 512),
    "image": (8, 64, 8, 128),
    "pathfinder": (2, 64, 2, 128),
}
_MEGA_HOST: dict[str, Any] = {
    "batch_size": 64,
    "lr": 1e-4,
    "betas": (0.9, 0.98),
    "clip_norm": 1.0,
    "warmup_init": 1e-7,
    "schedule": "linear",
    "eval_every": 1_000,
}
_TRAIN: dict[str, TrainConfig] = {
    "listops": TrainConfig(
        **{**_MEGA_HOST, "schedule": "inverse_sqrt"},
        weight_decay=1e-2,
        max_steps=90_000,
        warmup_steps=3_000,
    ),
    "text": TrainConfig(
        **{**_MEGA_HOST, "batch_size": 32},
        weight_decay=1e-2,
        max_steps=25_000,
        warmup_steps=10_000,
    ),
    "retrieval": TrainConfig(
        **_MEGA_HOST, weight_decay=4e-2, max_steps=91_960, warmup_steps=10_000
    ),
    "image": TrainConfig(**_MEGA_HOST, weight_decay=2e-2, max_steps=180_000, warmup_steps=9_000),
    "pathfinder": replace(
        lra.NYSTROM_TRAIN["pathfinder"],
        max_steps=200_000,
        batch_size=256,
        lr=2e-4,
        clip_value=1.0,
    ),
}
# What the host of a task adds to the sizes; Pathfinder's is Skyformer's.
_HOST: dict[str, dict[str, Any]] = {
    "listops": {"vocab_size": 16, "tie_layers": True},
    "text": {"vocab_size": 257},
    "retrieval": {"vocab_size": 257, "num_sequences": 2},
    "image": {"vocab_size": 256, "level_scale": [0.48, 0.24]},
}
_NOTES: dict[str, tuple[str, ...]] = {
    "listops": ("the MEGA repository's host ties all layers on this task",),
    "image": ("pixels are read as levels, as the MEGA repository does",),
    "pathfinder": (
        "the Skyformer host with pre-norm, as released; Table 7 says post-norm",
        "trained on our generator's images where no released ones are given",
    ),
}
_UNRELEASED = "the paper's code for this table is not released: its host is rebuilt from Table 7"

# Table 4: preset, row; training differs in how a batch is cut.
_LANGUAGE: dict[str, str] = {
    "gpt2_base": "GPT2-Base",
    "tost_lm_base": "ToST-Base",
    "tost_lm_medium": "ToST-Medium",
    "tost_lm_large": "ToST-Large",
}
_ACCUMULATION = {"gpt2_base": 8, "tost_lm_base": 8, "tost_lm_medium": 16, "tost_lm_large": 24}
_LANGUAGE_NOTES = (
    "the paper trains on OpenWebText and reads this text without training on it; that corpus is "
    "no task here, so no printed number is comparable",
    "600,000 updates of the printed run are many passes over a small text",
)

# Table 8: words, settings, accuracy.
_ABLATION: dict[str, tuple[str, dict[str, Any], float]] = {
    "normalized-mlp": (
        "Normalization, MLP",
        {"feed_forward": "mlp", "mixer_options": {"normalize": True}},
        91.2,
    ),
    "normalized-ista": (
        "Normalization, ISTA",
        {"feed_forward": "ista", "mixer_options": {"normalize": True}},
        87.4,
    ),
    "plain-mlp": (
        "No normalization, MLP",
        {"feed_forward": "mlp", "mixer_options": {"normalize": False}},
        85.2,
    ),
    "plain-ista": (
        "No normalization, ISTA",
        {"feed_forward": "ista", "mixer_options": {"normalize": False}},
        80.6,
    ),
}
_EPOCH = 50_000 // 256


def table3(task: str, mixer: str) -> Recipe:
    """A row of Table 3 that was trained in the hosts of Table 7."""
    words, printed = _OWN[mixer]
    title, task_name, options = lra.TASKS[task]
    layers, dim, heads, mlp = _SIZES[task]
    host = _HOST[task] if task != "pathfinder" else lra.nystrom_settings(task)
    return Recipe(
        name=f"tost/table3-{task}-{mixer}",
        paper=PAPER,
        table="Table 3",
        row=words,
        column=title,
        printed=printed[_TASKS.index(task)],
        task=task_name,
        task_options=options,
        model="encoder",
        model_settings={
            "mixer": mixer,
            "num_layers": layers,
            "dim": dim,
            "num_heads": heads,
            "mlp_ratio": mlp / dim,
            "head_hidden": [mlp],
            "dropout": 0.0 if task == "image" else 0.1,
            "embedding_std": dim**-0.5,
            "pool": "mean",
            **host,
        },
        train=_TRAIN[task],
        notes=(_UNRELEASED, *_NOTES.get(task, ())),
    )


def table3_quoted(task: str, mixer: str) -> Recipe:
    """A row that Table 3 shares with Table 4 of the CSP paper: the same runs of the JAX code."""
    same = csp.table4_transformer(task, mixer)
    is_linear = mixer == "linear"
    named_so = ("the row is named LinFormer, its numbers are those of the Linear Transformer",)
    return replace(
        same,
        name=f"tost/table3-{task}-{mixer}",
        paper=PAPER,
        table="Table 3",
        row=_QUOTED[mixer],
        notes=(*same.notes, *(named_so if is_linear else ())),
    )


def table4(model: str) -> Recipe:
    """A row of Table 4, trained and read on Penn Treebank."""
    return Recipe(
        name=f"tost/table4-ptb-{model}",
        paper=PAPER,
        table="Table 4",
        row=_LANGUAGE[model],
        column="PTB",
        printed=None,
        metric="loss",
        unit="nats",
        task="ptb",
        task_options={"level": "bpe", "max_length": 1024},
        model=model,
        model_settings={"bias": False},
        train=TrainConfig(
            max_steps=600_000,
            batch_size=480,
            accumulation=_ACCUMULATION[model],
            lr=6e-4,
            min_lr=6e-5,
            betas=(0.9, 0.95),
            weight_decay=1e-2 if model == "tost_lm_base" else 0.1,
            schedule="cosine",
            warmup_steps=2_000,
            clip_norm=1.0,
            eval_every=2_000,
        ),
        notes=_LANGUAGE_NOTES,
    )


def table8(row: str) -> Recipe:
    """A row of Table 8: what normalisation and the feed-forward branch are worth."""
    words, settings, printed = _ABLATION[row]
    return Recipe(
        name=f"tost/table8-cifar10-{row}",
        paper=PAPER,
        table="Table 8",
        row=words,
        column="CIFAR-10",
        printed=printed,
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
            max_steps=400 * _EPOCH,
            batch_size=256,
            lr=1e-4,
            weight_decay=0.05,
            schedule="cosine",
            warmup_steps=5 * _EPOCH,
            warmup_init=1e-6,
            eval_every=_EPOCH,
        ),
        notes=(
            "the paper says 400 epochs of CIFAR-10 and no more: size (ToST-T), patches of 4 and "
            "the rate of its fine-tuning are our choice",
            "a tenth of the training images choose the model",
        ),
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table3, task, mixer) for mixer in _OWN for task in _TASKS),
    *(partial(table3_quoted, task, mixer) for mixer in _QUOTED for task in _TASKS),
    *(partial(table4, model) for model in _LANGUAGE),
    *(partial(table8, row) for row in _ABLATION),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
