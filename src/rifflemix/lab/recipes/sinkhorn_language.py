"""Recipes of the Sparse Sinkhorn Attention paper's language models.

They cover Tables 2, 3, 4 and 8, and Figures 3 and 4. Recipes on LM1B need its shards. Further
recipes train the same models on Penn Treebank or Tiny Shakespeare, without reported numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.train import TrainConfig

PAPER = "Tay et al., Sparse Sinkhorn Attention"

Mixing = tuple[str, dict[str, Any]]
"""Name and options of a mixer."""


def sinkhorn_blocks(block: int, **options: Any) -> Mixing:
    """Return Sinkhorn attention with blocks of `block` tokens."""
    return "sinkhorn", {"block_size": block, "bias": False, "num_iterations": 5, **options}


def local_blocks(block: int) -> Mixing:
    """Return attention within blocks of `block` tokens."""
    return "local", {"block_size": block, "bias": False, "out_bias": False}


def sparse_blocks(block: int) -> Mixing:
    """Return the fixed sparse pattern with 8 summary positions in each block."""
    options = {"stride": block, "num_summary": 8, "bias": False, "out_bias": False}
    return "sparse_transformer", options


DENSE: Mixing = ("softmax", {"bias": False, "out_bias": False})


def transformer_base_training(dim: int, **changes: Any) -> TrainConfig:
    """Configure training as Tensor2Tensor's transformer_base.

    The rate is 2 / sqrt(dim max(step, warm-up)).
    """
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


def lmx_training(**changes: Any) -> TrainConfig:
    """Configure training as Tensor2Tensor's lmx_base and its larger variants.

    The optimizer is Adafactor with the rate 1 / sqrt(max(step, 10,000)).
    """
    settings: dict[str, Any] = {
        "optimizer": "adafactor",
        "schedule": "rsqrt_decay",
        "lr": 1.0,
        "warmup_steps": 10_000,
        "max_steps": 300_000,
        "eval_every": 1_000,
    }
    return TrainConfig(**{**settings, **changes})


SIZES = ("base", "big")

# Table 2: name, mixing.
_WORDS: dict[str, tuple[str, Mixing]] = {
    "transformer": ("Transformer", DENSE),
    "local-b16": ("Local Attention (16)", local_blocks(16)),
    "local-b32": ("Local Attention (32)", local_blocks(32)),
    "local-b64": ("Local Attention (64)", local_blocks(64)),
    "sparse": ("Sparse Transformer (64)", sparse_blocks(64)),
    "b16": ("Sinkhorn Transformer (16)", sinkhorn_blocks(16)),
    "b32": ("Sinkhorn Transformer (32)", sinkhorn_blocks(32)),
    "b64": ("Sinkhorn Transformer (64)", sinkhorn_blocks(64)),
    "mixture": ("Sinkhorn Mixture", sinkhorn_blocks(32, mixture=True)),
}

# Table 4: name, mixing.
_CHARACTERS: dict[str, tuple[str, Mixing]] = {
    "local": ("Local Attention", local_blocks(128)),
    "transformer": ("Transformer", DENSE),
    "sparse": ("Sparse Transformer", sparse_blocks(64)),
    "sinkhorn": ("Sinkhorn Transformer", sinkhorn_blocks(128)),
    "mixture": ("Sinkhorn Mixture", sinkhorn_blocks(128, mixture=True)),
}

# Variant (6): the scores are the sort matrix, without normalization. ReLU keeps them finite;
# exponentials of sums over up to 225 tokens overflow.
_UNBALANCED = sinkhorn_blocks(32, num_iterations=0, kernel="relu", temperature=1.0, gumbel="never")

# Table 8: name, mixing.
_ABLATION: dict[str, tuple[str, Mixing]] = {
    "relu-mlp": ("(1) P(X) = s(F2(s(F1(X))))", sinkhorn_blocks(32, sort_net="relu_mlp")),
    "mlp": ("(2) P(X) = F2(s(F1(X)))", sinkhorn_blocks(32, sort_net="mlp")),
    "relu": ("(3) P(X) = s(F1(X))", sinkhorn_blocks(32, sort_net="relu")),
    "linear": ("(4) P(X) = F1(X)", sinkhorn_blocks(32, sort_net="linear")),
    "tied": ("(5) K = V", sinkhorn_blocks(32, tie_kv=True)),
    "no-sinkhorn": ("(6) N_k = 0, no Sinkhorn", _UNBALANCED),
}

_TEMPERATURES = (0.25, 0.5, 0.75, 1.0)
_ITERATIONS = (2, 5, 10, 20)


@dataclass(frozen=True)
class _Corpus:
    """Text corpus with its task options and metric."""

    task: str
    title: str
    options: dict[str, Any]
    metric: str
    is_printed: bool


_CORPORA: dict[bool, tuple[_Corpus, _Corpus]] = {  # per character -> paper's corpus, small corpus
    False: (
        _Corpus("lm1b", "LM1B", {}, "word_perplexity", True),
        _Corpus(
            "ptb",
            "Penn Treebank (not LM1B)",
            {"level": "word", "max_length": 256},
            "perplexity",
            False,
        ),
    ),
    True: (
        _Corpus(
            "lm1b",
            "LM1B",
            {"level": "byte", "max_length": 1024},
            "bits_per_byte",
            True,
        ),
        _Corpus(
            "shakespeare",
            "Tiny Shakespeare (not LM1B)",
            {"level": "byte", "max_length": 1024},
            "bits_per_byte",
            False,
        ),
    ),
}


def _recipe(
    name: str,
    table: str,
    words: str,
    mixing: Mixing,
    corpus: _Corpus,
    size: str = "base",
) -> Recipe:
    mixer, options = mixing
    by_character = corpus.metric == "bits_per_byte"
    return Recipe(
        name=f"sinkhorn/{name}",
        paper=PAPER,
        table=table,
        row=words,
        column=corpus.title,
        metric=corpus.metric,
        unit="bits" if by_character else "perplexity",
        task=corpus.task,
        task_options=corpus.options,
        model=f"sinkhorn_{'char' if by_character else 'lm'}_{size}",
        model_settings={"mixer": mixer, "mixer_options": options},
        train=lmx_training(batch_size=64 if by_character else 256),
    )


def _of_two_sizes(table: int, row: str, size: str, corpus: _Corpus) -> Recipe:
    words, mixing = (_WORDS if table == 2 else _CHARACTERS)[row]
    short = row if size == "base" else f"{size}-{row}"
    name = f"table{table}-{corpus.task}-{short}"
    made = _recipe(name, f"Table {table}", words, mixing, corpus, size)
    if corpus.is_printed:
        return replace(made, column=f"{corpus.title}, {size.capitalize()}")
    return made if size == "base" else replace(made, row=f"{words}, {size}")


def table3(parameters: str) -> Recipe:
    """Build an entry of Table 3 that is also in Table 2."""
    row = {"450M": "b64", "1.9B": "mixture"}[parameters]
    corpus = _CORPORA[False][0]
    name = f"table3-lm1b-{parameters.lower()}"
    words = f"Sinkhorn Transformer, {parameters}"
    return _recipe(name, "Table 3", words, _WORDS[row][1], corpus, "big")


def table8(row: str, corpus: _Corpus) -> Recipe:
    """Build an entry of Table 8."""
    words, mixing = _ABLATION[row]
    return _recipe(f"table8-{corpus.task}-{row}", "Table 8", words, mixing, corpus)


def _figure(number: int, setting: str, value: float, corpus: _Corpus) -> Recipe:
    """Build a point of Figure 3 or 4, without a reported number."""
    mixing = sinkhorn_blocks(32, **{setting: value})
    words = f"{'tau' if number == 3 else 'k'} = {value}"
    name = f"figure{number}-{corpus.task}-{'tau' if number == 3 else 'k'}{value}"
    return _recipe(name, f"Figure {number}", words, mixing, corpus)


_ON_WORDS, _ON_CHARACTERS = _CORPORA[False], _CORPORA[True]

TABLES_2_TO_4: tuple[Callable[[], Recipe], ...] = (
    *(
        partial(_of_two_sizes, 2, row, size, corpus)
        for corpus in _ON_WORDS
        for size in SIZES
        for row in _WORDS
    ),
    *(partial(table3, parameters) for parameters in ("450M", "1.9B")),
    *(
        partial(_of_two_sizes, 4, row, size, corpus)
        for corpus in _ON_CHARACTERS
        for size in SIZES
        for row in _CHARACTERS
    ),
)
ANALYSES: tuple[Callable[[], Recipe], ...] = (
    *(partial(table8, row, corpus) for corpus in _ON_WORDS for row in _ABLATION),
    *(
        partial(_figure, number, setting, value, corpus)
        for number, setting, values in (
            (3, "temperature", _TEMPERATURES),
            (4, "num_iterations", _ITERATIONS),
        )
        for corpus in _ON_WORDS
        for value in values
    ),
)
