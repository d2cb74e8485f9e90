"""Recipes of the Sparse Sinkhorn Attention paper: all its tables, and Figures 3 and 4."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rifflemix.recipes.base import Recipe
from rifflemix.recipes.sinkhorn_language import ANALYSES, TABLES_2_TO_4
from rifflemix.recipes.sinkhorn_rows import (
    DENSE,
    PAPER,
    Mixing,
    local,
    own,
    sparse,
    transformer_base,
    tuning,
)

# Table 1: words, mixing, edit distance, exact match.
_SORT: dict[str, tuple[str, Mixing, float, float]] = {
    "transformer": ("Transformer", DENSE, 0.4252, 45.69),
    "local": ("Local Attention (32)", local(32), 0.4340, 21.12),
    "sparse": ("Sparse Transformer (32)", sparse(32), 0.4176, 46.88),
    "b8": ("Sinkhorn Transformer (8)", own(8), 0.4156, 43.65),
    "b16": ("Sinkhorn Transformer (16)", own(16), 0.4071, 48.23),
    "b32": ("Sinkhorn Transformer (32)", own(32), 0.4054, 49.24),
}

# Table 6: words, mixing; IMDb words and characters, SST words and characters.
_CLASSIFIERS: dict[str, tuple[str, Mixing, tuple[float, float, float, float]]] = {
    "transformer": ("Transformer", DENSE, (85.12, 62.77, 76.83, 57.45)),
    "b8": ("Sinkhorn (8)", own(8), (82.51, 63.78, 74.08, 62.27)),
    "b16": ("Sinkhorn (16)", own(16), (82.00, 62.05, 76.15, 56.08)),
    "b32": ("Sinkhorn (32)", own(32), (83.54, 62.87, 77.52, 58.14)),
    "sortcut-b8": ("SortCut (2x8)", own(8, sortcut=2), (84.32, 64.53, 73.85, 56.65)),
    "sortcut-b16": ("SortCut (2x16)", own(16, sortcut=2), (80.12, 64.87, 74.31, 58.14)),
    "sortcut-b32": ("SortCut (2x32)", own(32, sortcut=2), (84.43, 62.80, 75.81, 56.42)),
}
# Table 7: SNLI, MNLI.
_INFERENCE: dict[str, tuple[float, float]] = {
    "transformer": (78.87, 53.69),
    "b8": (68.34, 52.15),
    "b16": (77.77, 52.09),
    "b32": (78.62, 54.25),
    "sortcut-b8": (75.84, 48.88),
    "sortcut-b16": (80.30, 49.78),
    "sortcut-b32": (79.39, 55.80),
}
_PRINTED_PAIRS = ("snli", "mnli")
# Task, column, how many pairs stand for 4,096 tokens, updates, notes of its own.
_PAIRS: dict[str, tuple[str, int, int, tuple[str, ...]]] = {
    "snli": (
        "SNLI",
        160,
        500_000,
        ("tested on the test split; Tensor2Tensor evaluates on the development split",),
    ),
    "mnli": (
        "MNLI",
        112,
        500_000,
        ("tested on both development sets, as in Tensor2Tensor",),
    ),
    "sick": (
        "SICK (not SNLI, MNLI)",
        128,
        15_000,
        (
            "the paper's SNLI and MNLI are larger: no printed number is comparable",
            "15,000 updates; the paper's larger data takes 500,000",
        ),
    ),
}
# Column, task, its options, and how many sequences stand for 4,096 tokens.
_CLASSIFIED: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "imdb-word": (
        "IMDb, words",
        "text",
        {"level": "word", "max_length": 512, "vocab_size": 8192},
        16,
    ),
    "imdb-char": ("IMDb, characters", "text", {"max_length": 2048}, 4),
    "sst-word": ("SST, words", "sst", {"level": "word", "max_length": 512}, 192),
    "sst-char": ("SST, characters", "sst", {"level": "byte", "max_length": 2048}, 40),
}

# Table 5.
_PIXELS: dict[str, tuple[str, Mixing, float]] = {
    "local": ("Local Attention", local(256), 4.200),
    "transformer": ("Transformer", DENSE, 3.198),
    "sparse": ("Sparse Transformer (256)", sparse(256), 3.227),
    "b256": ("Sinkhorn Transformer (256)", own(256), 3.197),
    "mixture": ("Sinkhorn Mixture", own(256, mixture=True), 3.199),
}

# Of 514 symbols; Tensor2Tensor spreads a tenth of a label over the other 513.
_SMOOTHING = 0.1 * 514 / 513
_TEACHER_FORCED = (
    "Tensor2Tensor's edit distance is of the likeliest tokens, given the right ones before each; "
    "it also counts what its model says behind a sequence's end, up to the longest of the batch"
)
_FREE_RUNNING = "of what the model writes by itself; the paper does not print it"
_PIECES_NOTE = "Tensor2Tensor parts rare words into pieces; to the recipe they are unknown"
_CLASSIFIER_NOTE = (
    "Tensor2Tensor smooths the labels by 0.1, has padding count in the mean over the tokens, and "
    "multiplies embeddings by sqrt(128); here none of it"
)
_BATCH_NOTE = "Tensor2Tensor fills a batch with 4,096 tokens; the recipe takes {} sequences"


def table1(row: str, metric: str) -> Recipe:
    """An entry of Table 1: exact matches ("sort") or edit distance ("edit") of sorting.

    "written" is the edit distance of what the model writes by itself, which is not printed.
    """
    words, mixing, distance, matches = _SORT[row]
    mixer, options = mixing
    is_own = mixer == "sinkhorn"
    column, name, unit, printed = {
        "sort": ("EM", "exact_match", "%", matches),
        "edit": ("Edit distance", "edit_distance", "edits per symbol", distance),
        "written": (
            "Edit distance, free-running",
            "free_running_edit_distance",
            "edits per symbol",
            None,
        ),
    }[metric]
    own_notes = {
        "sort": (),
        "edit": (f"the same run as sinkhorn/table1-sort-{row}", _TEACHER_FORCED),
        "written": (f"the same training as sinkhorn/table1-sort-{row}", _FREE_RUNNING),
    }[metric]
    return Recipe(
        name=f"sinkhorn/table1-{metric}-{row}",
        paper=PAPER,
        table="Table 1",
        row=words,
        column=column,
        printed=printed,
        metric=name,
        unit=unit,
        task="sort",
        task_options={"free_running": True} if metric == "written" else {},
        model="sinkhorn_seq2seq_sort",
        model_settings={
            "mixer": mixer,
            "mixer_options": options,
            "cross": "sinkhorn" if is_own else "softmax",
            "cross_options": options if is_own else {"bias": False},
        },
        train=transformer_base(512, max_steps=200_000, batch_size=32, label_smoothing=_SMOOTHING),
        notes=(_BATCH_NOTE.format(32), *own_notes, *tuning(mixing)),
    )


def table5(row: str) -> Recipe:
    """A row of Table 5: images of CIFAR-10, number by number."""
    words, mixing, printed = _PIXELS[row]
    mixer, options = mixing
    return Recipe(
        name=f"sinkhorn/table5-cifar10-{row}",
        paper=PAPER,
        table="Table 5",
        row=words,
        column="CIFAR-10",
        printed=printed,
        metric="bits_per_byte",
        unit="bits",
        task="image_bytes",
        model="sinkhorn_pixel_cifar10",
        model_settings={"mixer": mixer, "mixer_options": options},
        train=transformer_base(512, max_steps=500_000, batch_size=1),
        notes=(
            "the first number follows a start token, one more than the paper's 256",
            '"bytes per dimension" are taken for bits',
            *tuning(mixing),
        ),
    )


def table6(column: str, row: str) -> Recipe:
    """An entry of Table 6: sentiment of words or characters."""
    words, mixing, printed = _CLASSIFIERS[row]
    mixer, options = mixing
    title, task, task_options, batch = _CLASSIFIED[column]
    return Recipe(
        name=f"sinkhorn/table6-{column}-{row}",
        paper=PAPER,
        table="Table 6",
        row=words,
        column=title,
        printed=printed[list(_CLASSIFIED).index(column)],
        task=task,
        task_options=task_options,
        model=f"sinkhorn_sortcut_imdb{'' if column.endswith('word') else '_char'}",
        model_settings={"mixer": mixer, "mixer_options": options},
        train=transformer_base(128, max_steps=15_000, batch_size=batch, eval_every=250),
        notes=(
            _CLASSIFIER_NOTE,
            _BATCH_NOTE.format(batch),
            *((_PIECES_NOTE,) if column == "imdb-word" else ()),
            *tuning(mixing),
        ),
    )


def table7(task: str, row: str) -> Recipe:
    """An entry of Table 7, or its model on SICK."""
    words, mixing, _ = _CLASSIFIERS[row]
    mixer, options = mixing
    column, batch, steps, own_notes = _PAIRS[task]
    is_printed = task in _PRINTED_PAIRS
    large = {"max_length": 512, "vocab_size": 2**15} if is_printed else {}
    return Recipe(
        name=f"sinkhorn/table7-{task}-{row}",
        paper=PAPER,
        table="Table 7",
        row=words,
        column=column,
        printed=_INFERENCE[row][_PRINTED_PAIRS.index(task)] if is_printed else None,
        task=task,
        task_options={"joined": True, **large},
        model="sinkhorn_sortcut_nli",
        model_settings={"mixer": mixer, "mixer_options": options},
        train=transformer_base(
            128,
            max_steps=steps,
            batch_size=batch,
            eval_every=5_000 if is_printed else 250,
        ),
        notes=(
            *own_notes,
            _CLASSIFIER_NOTE,
            _BATCH_NOTE.format(batch),
            *((_PIECES_NOTE,) if is_printed else ()),
            *tuning(mixing),
        ),
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table1, row, metric) for metric in ("sort", "edit", "written") for row in _SORT),
    *TABLES_2_TO_4,
    *(partial(table5, row) for row in _PIXELS),
    *(partial(table6, column, row) for column in _CLASSIFIED for row in _CLASSIFIERS),
    *(partial(table7, task, row) for task in _PAIRS for row in _CLASSIFIERS),
    *ANALYSES,
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
