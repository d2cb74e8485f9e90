"""Recipes of the Sparse Sinkhorn Attention paper: all tables, and Figures 3 and 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.recipes.sinkhorn_language import (
    ANALYSES,
    DENSE,
    PAPER,
    TABLES_2_TO_4,
    Mixing,
    local_blocks,
    sinkhorn_blocks,
    sparse_blocks,
    transformer_base_training,
)

# Table 1: name, mixing.
_SORT: dict[str, tuple[str, Mixing]] = {
    "transformer": ("Transformer", DENSE),
    "local": ("Local Attention (32)", local_blocks(32)),
    "sparse": ("Sparse Transformer (32)", sparse_blocks(32)),
    "b8": ("Sinkhorn Transformer (8)", sinkhorn_blocks(8)),
    "b16": ("Sinkhorn Transformer (16)", sinkhorn_blocks(16)),
    "b32": ("Sinkhorn Transformer (32)", sinkhorn_blocks(32)),
}

# Tables 6 and 7: name, mixing.
_CLASSIFIERS: dict[str, tuple[str, Mixing]] = {
    "transformer": ("Transformer", DENSE),
    "b8": ("Sinkhorn (8)", sinkhorn_blocks(8)),
    "b16": ("Sinkhorn (16)", sinkhorn_blocks(16)),
    "b32": ("Sinkhorn (32)", sinkhorn_blocks(32)),
    "sortcut-b8": ("SortCut (2x8)", sinkhorn_blocks(8, sortcut=2)),
    "sortcut-b16": ("SortCut (2x16)", sinkhorn_blocks(16, sortcut=2)),
    "sortcut-b32": ("SortCut (2x32)", sinkhorn_blocks(32, sortcut=2)),
}


@dataclass(frozen=True)
class _Classified:
    """Data set of Tables 6 and 7.

    Attributes:
        column: name in the table.
        task: registry name of the task.
        batch: mean number of samples in a batch of 4,096 tokens.
        classes: number of classes.
        steps: number of updates.
        eval_every: updates between evaluations.
        model: registry name of the preset.
    """

    column: str
    task: str
    options: dict[str, Any]
    batch: int
    model: str
    classes: int = 2
    steps: int = 15_000
    eval_every: int = 250


_JOINED_LONG = {"joined": True, "level": "subword", "max_length": 512}
_PAIRS: dict[str, _Classified] = {
    "snli": _Classified(
        "SNLI",
        "snli",
        _JOINED_LONG,
        160,
        "sinkhorn_sortcut_nli",
        3,
        500_000,
        5_000,
    ),
    "mnli": _Classified(
        "MNLI",
        "mnli",
        _JOINED_LONG,
        112,
        "sinkhorn_sortcut_nli",
        3,
        500_000,
        5_000,
    ),
    "sick": _Classified(
        "SICK (not SNLI, MNLI)",
        "sick",
        {"joined": True, "level": "subword"},
        110,
        "sinkhorn_sortcut_nli",
        3,
    ),
}
_SENTIMENT: dict[str, _Classified] = {
    "imdb-word": _Classified(
        "IMDb, words",
        "text",
        {"level": "subword", "max_length": 512, "vocab_size": 2**13, "validation": False},
        13,
        "sinkhorn_sortcut_imdb",
    ),
    "imdb-char": _Classified(
        "IMDb, characters",
        "text",
        {"max_length": 2048, "validation": False},
        3,
        "sinkhorn_sortcut_imdb_char",
    ),
    "sst-word": _Classified(
        "SST, words",
        "sst",
        {"labels": "glue", "level": "subword", "max_length": 512},
        280,
        "sinkhorn_sortcut_imdb",
    ),
    "sst-char": _Classified(
        "SST, characters",
        "sst",
        {"labels": "glue", "level": "byte", "max_length": 2048},
        72,
        "sinkhorn_sortcut_imdb_char",
    ),
}

# Table 5: name, mixing.
_PIXELS: dict[str, tuple[str, Mixing]] = {
    "local": ("Local Attention", local_blocks(256)),
    "transformer": ("Transformer", DENSE),
    "sparse": ("Sparse Transformer (256)", sparse_blocks(256)),
    "b256": ("Sinkhorn Transformer (256)", sinkhorn_blocks(256)),
    "mixture": ("Sinkhorn Mixture", sinkhorn_blocks(256, mixture=True)),
}

_TOKENS = 4_096  # tokens per batch in Tensor2Tensor
_DIM = 128  # width of transformer_tiny
_COPYING = (
    "an untrained model has a lower edit distance than every printed one, because its tied "
    "embeddings repeat the token before"
)


def _smoothing(classes: int) -> float:
    """Convert Tensor2Tensor's label smoothing 0.1, spread only over the wrong classes."""
    return 0.1 * classes / (classes - 1)


def table1(row: str, metric: str) -> Recipe:
    """Build an entry of Table 1 (sorting).

    `metric` is "sort" for exact matches, "edit" for the edit distance, or "written" for the edit
    distance of free-running outputs. The paper does not report "written".
    """
    words, mixing = _SORT[row]
    mixer, options = mixing
    is_own = mixer == "sinkhorn"
    column, name = {
        "sort": ("EM", "exact_match"),
        "edit": ("Edit distance", "tail_edit_distance"),
        "written": ("Edit distance, free-running", "free_running_edit_distance"),
    }[metric]
    test = {"num_test": 10_000}
    return Recipe(
        name=f"sinkhorn/table1-{metric}-{row}",
        paper=PAPER,
        table="Table 1",
        row=words,
        column=column,
        metric=name,
        unit="%" if metric == "sort" else "edits per symbol",
        task="sort",
        task_options={**test, "free_running": True} if metric == "written" else test,
        model="sinkhorn_seq2seq_sort",
        model_settings={
            "mixer": mixer,
            "mixer_options": options,
            "cross": "sinkhorn" if is_own else "softmax",
            "cross_options": options if is_own else {"bias": False},
        },
        train=transformer_base_training(
            512,
            max_steps=200_000,
            batch_size=30,
            token_batches=(_TOKENS, 256),
            label_smoothing=_smoothing(514),
        ),
        weights="last",
        not_comparable=_COPYING if metric == "edit" else "",
    )


def table5(row: str) -> Recipe:
    """Build an entry of Table 5: CIFAR-10 images, modeled byte by byte."""
    words, mixing = _PIXELS[row]
    mixer, options = mixing
    return Recipe(
        name=f"sinkhorn/table5-cifar10-{row}",
        paper=PAPER,
        table="Table 5",
        row=words,
        column="CIFAR-10",
        metric="bits_per_byte",
        unit="bits",
        task="image_bytes",
        model="sinkhorn_pixel_cifar10",
        model_settings={"mixer": mixer, "mixer_options": options},
        train=transformer_base_training(512, max_steps=500_000, batch_size=1),
    )


def table6(column: str, row: str) -> Recipe:
    """Build an entry of Table 6: sentiment from words or characters."""
    return _classifier("Table 6", f"table6-{column}-{row}", _SENTIMENT[column], row)


def table7(task: str, row: str) -> Recipe:
    """Build an entry of Table 7, or the same model on SICK."""
    return _classifier("Table 7", f"table7-{task}-{row}", _PAIRS[task], row)


def _classifier(table: str, name: str, data: _Classified, row: str) -> Recipe:
    """Build a classifier recipe with Tensor2Tensor's settings."""
    words, mixing = _CLASSIFIERS[row]
    mixer, options = mixing
    longest = data.options.get("max_length", 64)
    return Recipe(
        name=f"sinkhorn/{name}",
        paper=PAPER,
        table=table,
        row=words,
        column=data.column,
        task=data.task,
        task_options=data.options,
        model=data.model,
        model_settings={
            "mixer": mixer,
            "mixer_options": options,
            "pool": "position_mean",
            "scale_embeddings": True,
            "embedding_std": _DIM**-0.5,
        },
        train=transformer_base_training(
            _DIM,
            max_steps=data.steps,
            batch_size=data.batch,
            token_batches=(_TOKENS, longest),
            label_smoothing=_smoothing(data.classes),
            eval_every=data.eval_every,
        ),
        weights="last",
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table1, row, metric) for metric in ("sort", "edit", "written") for row in _SORT),
    *TABLES_2_TO_4,
    *(partial(table5, row) for row in _PIXELS),
    *(partial(table6, column, row) for column in _SENTIMENT for row in _CLASSIFIERS),
    *(partial(table7, task, row) for task in _PAIRS for row in _CLASSIFIERS),
    *ANALYSES,
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
