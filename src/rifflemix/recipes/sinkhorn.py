"""Recipes of the Sparse Sinkhorn Attention paper: Tables 1, 2 and 4 to 8."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rifflemix.recipes.base import Recipe
from rifflemix.train import TrainConfig

PAPER = "Tay et al., Sparse Sinkhorn Attention"

Mixing = tuple[str, dict[str, Any]]


def _own(block: int, **options: Any) -> Mixing:
    return "sinkhorn", {"block_size": block, "bias": False, **options}


def _local(block: int) -> Mixing:
    return "local", {"block_size": block, "bias": False, "out_bias": False}


def _sparse(block: int) -> Mixing:
    """The fixed pattern with 8 summary places in each block."""
    options = {"stride": block, "num_summary": 8, "bias": False, "out_bias": False}
    return "sparse_transformer", options


_DENSE: Mixing = ("softmax", {"bias": False, "out_bias": False})

# Table 1: words, mixing, edit distance, exact match.
_SORT: dict[str, tuple[str, Mixing, float, float]] = {
    "transformer": ("Transformer", _DENSE, 0.4252, 45.69),
    "local": ("Local Attention (32)", _local(32), 0.4340, 21.12),
    "sparse": ("Sparse Transformer (32)", _sparse(32), 0.4176, 46.88),
    "b8": ("Sinkhorn Transformer (8)", _own(8), 0.4156, 43.65),
    "b16": ("Sinkhorn Transformer (16)", _own(16), 0.4071, 48.23),
    "b32": ("Sinkhorn Transformer (32)", _own(32), 0.4054, 49.24),
}

# Tables 2 and 8, whose corpus is no task: rows without printed numbers.
_WORDS: dict[str, tuple[str, Mixing]] = {
    "transformer": ("Transformer", _DENSE),
    **{f"local-b{b}": (f"Local Attention ({b})", _local(b)) for b in (16, 32, 64)},
    "sparse": ("Sparse Transformer (64)", _sparse(64)),
    **{f"b{b}": (f"Sinkhorn Transformer ({b})", _own(b)) for b in (16, 32, 64)},
    "mixture": ("Sinkhorn Mixture", _own(32, mixture=True)),
}
_CHARACTERS: dict[str, tuple[str, Mixing]] = {
    "local": ("Local Attention", _local(128)),
    "transformer": ("Transformer", _DENSE),
    "sparse": ("Sparse Transformer", _sparse(64)),
    "sinkhorn": ("Sinkhorn Transformer", _own(128)),
    "mixture": ("Sinkhorn Mixture", _own(128, mixture=True)),
}
# Row (6) of Table 8, no iterations, has no recipe: exp(R) of sums over 225 tokens overflows.
_ABLATION: dict[str, tuple[str, Mixing]] = {
    "relu-mlp": ("(1) P(X) = s(F2(s(F1(X))))", _own(32, sort_net="relu_mlp")),
    "mlp": ("(2) P(X) = F2(s(F1(X)))", _own(32, sort_net="mlp")),
    "relu": ("(3) P(X) = s(F1(X))", _own(32, sort_net="relu")),
    "linear": ("(4) P(X) = F1(X)", _own(32, sort_net="linear")),
    "tied": ("(5) K = V", _own(32, tie_kv=True)),
}

# Table 6: words, mixing; IMDb words and characters, SST words and characters.
_CLASSIFIERS: dict[str, tuple[str, Mixing, tuple[float, float, float, float]]] = {
    "transformer": ("Transformer", _DENSE, (85.12, 62.77, 76.83, 57.45)),
    "b8": ("Sinkhorn (8)", _own(8), (82.51, 63.78, 74.08, 62.27)),
    "b16": ("Sinkhorn (16)", _own(16), (82.00, 62.05, 76.15, 56.08)),
    "b32": ("Sinkhorn (32)", _own(32), (83.54, 62.87, 77.52, 58.14)),
    "sortcut-b8": ("SortCut (2x8)", _own(8, sortcut=2), (84.32, 64.53, 73.85, 56.65)),
    "sortcut-b16": ("SortCut (2x16)", _own(16, sortcut=2), (80.12, 64.87, 74.31, 58.14)),
    "sortcut-b32": ("SortCut (2x32)", _own(32, sortcut=2), (84.43, 62.80, 75.81, 56.42)),
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
    "local": ("Local Attention", _local(256), 4.200),
    "transformer": ("Transformer", _DENSE, 3.198),
    "sparse": ("Sparse Transformer (256)", _sparse(256), 3.227),
    "b256": ("Sinkhorn Transformer (256)", _own(256), 3.197),
    "mixture": ("Sinkhorn Mixture", _own(256, mixture=True), 3.199),
}

# Channels of the two sizes of language models, which the rate depends on.
_WIDTHS = {"base": 512, "big": 2048}

_NO_SMOOTHING = "Tensor2Tensor smooths the labels of this task by 0.1, we do not"
_NO_LM1B = "the paper trains on LM1B, which is no task here: no printed number is comparable"
_PIECES_NOTE = "Tensor2Tensor parts rare words into pieces; to the recipe they are unknown"
_BATCH_NOTE = "Tensor2Tensor fills a batch with 4,096 tokens; the recipe takes {} sequences"


def _tensor2tensor(dim: int, **changes: Any) -> TrainConfig:
    """transformer_base of Tensor2Tensor: the rate is 2 / sqrt(dim max(step, warm-up))."""
    settings: dict[str, Any] = {
        "optimizer": "adam",
        "betas": (0.9, 0.997),
        "eps": 1e-9,
        "schedule": "rsqrt",
        "lr": 2.0 * dim**-0.5,
        "warmup_steps": 8_000,
        "eval_every": 1_000,
    }
    return TrainConfig(**{**settings, **changes})


def table1(row: str, metric: str) -> Recipe:
    """An entry of Table 1: exact matches ("sort") or edit distance ("edit") of sorting."""
    words, (mixer, options), distance, matches = _SORT[row]
    counts_matches = metric == "sort"
    is_own = mixer == "sinkhorn"
    same = (f"the same run as sinkhorn/table1-sort-{row}",)
    return Recipe(
        name=f"sinkhorn/table1-{metric}-{row}",
        paper=PAPER,
        table="Table 1",
        row=words,
        column="EM" if counts_matches else "Edit distance",
        printed=matches if counts_matches else distance,
        metric="exact_match" if counts_matches else "edit_distance",
        unit="%" if counts_matches else "edits",
        task="sort",
        model="sinkhorn_seq2seq_sort",
        model_settings={
            "mixer": mixer,
            "mixer_options": options,
            "cross": "sinkhorn" if is_own else "softmax",
            "cross_options": options if is_own else {"bias": False},
        },
        train=_tensor2tensor(512, max_steps=200_000, batch_size=32),
        notes=(_NO_SMOOTHING, _BATCH_NOTE.format(32), *(() if counts_matches else same)),
    )


def _language(
    name: str,
    table: str,
    words: str,
    mixing: Mixing,
    *,
    by_character: bool = False,
    size: str = "base",
) -> Recipe:
    mixer, options = mixing
    return Recipe(
        name=f"sinkhorn/{name}",
        paper=PAPER,
        table=table,
        row=words if size == "base" else f"{words}, {size}",
        column="Tiny Shakespeare (not LM1B)" if by_character else "Penn Treebank (not LM1B)",
        printed=None,
        metric="bits_per_byte" if by_character else "perplexity",
        unit="bits" if by_character else "perplexity",
        task="shakespeare" if by_character else "ptb",
        task_options={"level": "byte", "max_length": 1024}
        if by_character
        else {"level": "word", "max_length": 256},
        model=f"sinkhorn_char_{size}" if by_character else f"sinkhorn_lm_{size}",
        model_settings={"mixer": mixer, "mixer_options": options},
        train=_tensor2tensor(
            _WIDTHS[size], max_steps=300_000, batch_size=64 if by_character else 256
        ),
        notes=(_NO_LM1B, f"{size} sizes", "16 TPU cores of 4,096 tokens make an update"),
    )


def table2(row: str, size: str = "base") -> Recipe:
    """A row of Table 2, on another corpus."""
    name = row if size == "base" else f"{size}-{row}"
    return _language(f"table2-ptb-{name}", "Table 2", *_WORDS[row], size=size)


def table4(row: str, size: str = "base") -> Recipe:
    """A row of Table 4, on another corpus."""
    words, mixing = _CHARACTERS[row]
    name = f"table4-shakespeare-{row if size == 'base' else f'{size}-{row}'}"
    return _language(name, "Table 4", words, mixing, by_character=True, size=size)


def table5(row: str) -> Recipe:
    """A row of Table 5: images of CIFAR-10, number by number."""
    words, (mixer, options), printed = _PIXELS[row]
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
        train=_tensor2tensor(512, max_steps=500_000, batch_size=1),
        notes=("the first number follows a start token, one more than the paper's 256",),
    )


def table6(column: str, row: str) -> Recipe:
    """An entry of Table 6: sentiment of words or characters."""
    words, (mixer, options), printed = _CLASSIFIERS[row]
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
        train=_tensor2tensor(128, max_steps=15_000, batch_size=batch, eval_every=250),
        notes=(
            _BATCH_NOTE.format(batch),
            *((_PIECES_NOTE,) if column == "imdb-word" else ()),
        ),
    )


def table7(row: str) -> Recipe:
    """A row of Table 7 on SICK, which is smaller than SNLI and MNLI."""
    words, (mixer, options), _ = _CLASSIFIERS[row]
    return Recipe(
        name=f"sinkhorn/table7-sick-{row}",
        paper=PAPER,
        table="Table 7",
        row=words,
        column="SICK (not SNLI, MNLI)",
        printed=None,
        task="sick",
        model="sinkhorn_sortcut_nli",
        model_settings={
            "mixer": mixer,
            "mixer_options": options,
            "num_sequences": 2,
            "pair_mix": "concat_product_difference",
        },
        train=_tensor2tensor(128, max_steps=15_000, batch_size=128, eval_every=250),
        notes=(
            "the paper's SNLI and MNLI are no tasks here: no printed number is comparable",
            "both sentences go through one encoder; the paper reads them as one sequence",
            "15,000 updates; the paper's larger data takes 500,000",
        ),
    )


def table8(row: str) -> Recipe:
    """A row of Table 8, on another corpus."""
    return _language(f"table8-ptb-{row}", "Table 8", *_ABLATION[row])


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table1, row, metric) for metric in ("sort", "edit") for row in _SORT),
    *(partial(table2, row, size) for size in _WIDTHS for row in _WORDS),
    *(partial(table4, row, size) for size in _WIDTHS for row in _CHARACTERS),
    *(partial(table5, row) for row in _PIXELS),
    *(partial(table6, column, row) for column in _CLASSIFIED for row in _CLASSIFIERS),
    *(partial(table7, row) for row in _CLASSIFIERS),
    *(partial(table8, row) for row in _ABLATION),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
