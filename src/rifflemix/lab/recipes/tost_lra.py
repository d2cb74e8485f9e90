"""Recipes of the ToST paper's Table 3: ToST, MEGA's Transformer, S4 and JAX-code models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.lab.recipes import csp, lra
from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.train import TrainConfig

PAPER = "Wu et al., Token Statistics Transformer"

_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
# Models with results that the paper quotes from the table of the JAX code.
_QUOTED: dict[str, str] = {
    "reformer": "Reformer",
    "bigbird": "BigBird",
    "linear": "LinFormer",
    "performer": "Performer",
}

# Layers, dim, heads, MLP width, head width: from Table 7, and as registered in MEGA's code.
_Size = tuple[int, int, int, int, int]
_SIZES: dict[str, _Size] = {
    "listops": (6, 512, 8, 2048, 2048),
    "text": (4, 256, 4, 1024, 1024),
    "retrieval": (6, 128, 4, 512, 512),
    "image": (8, 64, 8, 128, 128),
}
_REGISTERED: dict[str, _Size] = {
    **_SIZES,
    "retrieval": (4, 128, 4, 512, 512),
    "image": (1, 64, 8, 128, 128),
    "pathfinder": (1, 128, 4, 128, 256),
}
# MEGA's Transformer: a class token for text; no class token and gray levels for pixels.
_TEXT: dict[str, Any] = {"pool": "cls", "first_position": 2}
_PIXELS: dict[str, Any] = {"vocab_size": 256, "pool": "mean"}
_HOST: dict[str, dict[str, Any]] = {
    "listops": {**_TEXT, "vocab_size": 16, "tie_layers": True, "init": "bert"},
    "text": {**_TEXT, "vocab_size": 257, "init": "bert"},
    "retrieval": {**_TEXT, "vocab_size": 257, "num_sequences": 2},
    "image": {**_PIXELS, "level_scale": [0.48, 0.24]},
    "pathfinder": {**_PIXELS, "level_scale": [0.5, 0.5]},
}

# Adam as in fairseq: decoupled weight decay on every parameter.
_FAIRSEQ: dict[str, Any] = {"betas": (0.9, 0.98), "warmup_init": 1e-7, "decay_all": True}
_OWN: dict[str, Any] = {
    **_FAIRSEQ, "lr": 1e-4, "clip_norm": 1.0, "schedule": "linear", "eval_every": 1_000
}  # fmt: skip
# Training of Table 7; Pathfinder uses Skyformer's code.
_OWN_TRAIN: dict[str, TrainConfig] = {
    "listops": TrainConfig(
        **{**_OWN, "schedule": "inverse_sqrt"},
        batch_size=64,
        weight_decay=1e-2,
        max_steps=90_000,
        warmup_steps=3_000,
    ),
    "text": TrainConfig(
        **_OWN, batch_size=32, weight_decay=1e-2, max_steps=25_000, warmup_steps=10_000
    ),
    "retrieval": TrainConfig(
        **_OWN, batch_size=64, weight_decay=4e-2, max_steps=91_960, warmup_steps=10_000
    ),
    "image": TrainConfig(
        **_OWN, batch_size=64, weight_decay=2e-2, max_steps=180_000, warmup_steps=9_000
    ),
    "pathfinder": replace(
        lra.NYSTROM_TRAIN["pathfinder"],
        max_steps=200_000,
        batch_size=256,
        lr=2e-4,
        clip_value=1.0,
    ),
}
# Luna's released commands: batch, rate, decay, updates, warm-up, dropout, attention dropout.
_LUNA: dict[str, tuple[int, float, float, int, int, float, float]] = {
    "listops": (32, 1e-4, 1e-4, 5_000, 1_000, 0.1, 0.1),
    "text": (32, 5e-5, 1e-4, 20_000, 8_000, 0.3, 0.3),
    "retrieval": (32, 5e-4, 1e-4, 20_000, 8_000, 0.1, 0.1),
    "image": (256, 5e-3, 0.0, 35_000, 4_000, 0.3, 0.1),
    "pathfinder": (512, 1e-3, 0.0, 62_500, 4_000, 0.2, 0.1),
}
# S4's released configurations: batch, rate, decay, updates, length of the cosine, warm-up.
_S4: dict[str, tuple[int, float, float, int, int, int]] = {
    "listops": (50, 1e-2, 0.05, 76_800, 80_000, 1_000),
    "text": (16, 1e-2, 0.05, 50_000, 50_000, 1_000),
    "retrieval": (64, 1e-2, 0.05, 45_960, 50_000, 2_500),
    "image": (50, 1e-2, 0.05, 180_000, 200_000, 1_000),
    "pathfinder": (64, 4e-3, 0.03, 500_000, 500_000, 2_500),
}


def _mega_host(task: str, mixer: str, size: _Size) -> dict[str, Any]:
    layers, dim, heads, mlp, head = size
    return {
        "mixer": mixer,
        "num_layers": layers,
        "dim": dim,
        "num_heads": heads,
        "mlp_ratio": mlp / dim,
        "norm": "post",
        "norm_embedding": True,
        "positions": "sinusoid",
        "scale_embeddings": True,
        "embedding_std": dim**-0.5,
        "hidden_dropout": 0.0,
        "head_hidden": [head],
        "head_activation": "gelu",
        "head_bias": False,
        **_HOST[task],
    }


def _mega_options(task: str) -> dict[str, Any]:
    return {**lra.TASKS[task][2], **lra.MEGA_TASK_OPTIONS.get(task, {})}


def _row(task: str, mixer: str, words: str, **fields: Any) -> Recipe:
    title, task_name, options = lra.TASKS[task]
    return Recipe(
        **{
            "name": f"tost/table3-{task}-{mixer}",
            "paper": PAPER,
            "table": "Table 3",
            "row": words,
            "column": title,
            "task": task_name,
            "task_options": options,
            "model": "encoder",
            **fields,
        }
    )


def own(task: str) -> Recipe:
    """Build a ToST entry with released host model and Table 7's settings."""
    if task == "pathfinder":
        settings: dict[str, Any] = {**lra.nystrom_settings(task), "mixer": "tssa"}
    else:
        dropout = 0.0 if task == "image" else 0.1
        host_settings = _mega_host(task, "tssa", _SIZES[task])
        settings = {**host_settings, "dropout": dropout, "head_dropout": dropout}
    return _row(
        task,
        "tssa",
        "ToST",
        task_options=_mega_options(task),
        model_settings=settings,
        train=_OWN_TRAIN[task],
    )


def own_as_printed(task: str) -> Recipe:
    """Build an entry like `own` with the norm order of Table 7."""
    row = own(task)
    change: dict[str, Any] = {"norm": "pre", "norm_embedding": False}
    if task == "pathfinder":
        change = {"norm": "post"}
    return replace(
        row,
        name=f"{row.name}-as_printed",
        row="ToST, norms as printed",
        model_settings={**row.model_settings, **change},
    )


def mega_transformer(task: str) -> Recipe:
    """Build the entry of MEGA's Transformer with its registered sizes."""
    batch, rate, decay, updates, warmup, dropout, of_attention = _LUNA[task]
    return _row(
        task,
        "softmax",
        "Transformer",
        task_options=_mega_options(task),
        model_settings={
            **_mega_host(task, "softmax", _REGISTERED[task]),
            "dropout": dropout,
            "head_dropout": dropout,
            "attention_dropout": of_attention,
        },
        train=TrainConfig(
            **_FAIRSEQ,
            batch_size=batch,
            lr=rate,
            weight_decay=decay,
            max_steps=updates,
            warmup_steps=warmup,
            schedule="inverse_sqrt",
            eval_every=max(250, updates // 50),
        ),
    )


def s4(task: str) -> Recipe:
    """Build an S4 entry with the model of S4's paper.

    ToST quotes the number from the last version of that paper.
    """
    batch, rate, decay, updates, cosine, warmup = _S4[task]
    return _row(
        task,
        "s4",
        "S4",
        model=f"s4_lra_{task}",
        train=TrainConfig(
            batch_size=batch,
            lr=rate,
            weight_decay=decay,
            max_steps=updates,
            schedule="cosine",
            schedule_steps=cosine,
            warmup_steps=warmup,
            eval_every=max(500, updates // 100),
        ),
    )


def quoted(task: str, mixer: str) -> Recipe:
    """Build a JAX-code entry that Table 3 shares with CSP's Table 4."""
    same = csp.table4_transformer(task, mixer)
    return replace(
        same,
        name=f"tost/table3-{task}-{mixer}",
        paper=PAPER,
        table="Table 3",
        row=_QUOTED[mixer],
    )


TABLE3: tuple[Callable[[], Recipe], ...] = (
    *(partial(own, task) for task in _TASKS),
    *(partial(own_as_printed, task) for task in _TASKS),
    *(partial(mega_transformer, task) for task in _TASKS),
    *(partial(quoted, task, mixer) for mixer in _QUOTED for task in _TASKS),
    *(partial(s4, task) for task in _TASKS),
)
