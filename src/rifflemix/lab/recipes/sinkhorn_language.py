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
from rifflemix.lab.recipes.sinkhorn_rows import (
    DENSE,
    PAPER,
    Mixing,
    lmx,
    local,
    own,
    sparse,
    tuning,
)

SIZES = ("base", "big")

# Table 2: name, mixing, perplexity per word for both sizes.
_WORDS: dict[str, tuple[str, Mixing, tuple[float, float]]] = {
    "transformer": ("Transformer", DENSE, (41.57, 27.59)),
    "local-b16": ("Local Attention (16)", local(16), (44.62, 30.14)),
    "local-b32": ("Local Attention (32)", local(32), (44.23, 29.32)),
    "local-b64": ("Local Attention (64)", local(64), (44.23, 28.97)),
    "sparse": ("Sparse Transformer (64)", sparse(64), (41.89, 28.77)),
    "b16": ("Sinkhorn Transformer (16)", own(16), (42.64, 29.42)),
    "b32": ("Sinkhorn Transformer (32)", own(32), (41.29, 28.48)),
    "b64": ("Sinkhorn Transformer (64)", own(64), (40.79, 28.39)),
    "mixture": ("Sinkhorn Mixture", own(32, mixture=True), (40.11, 27.34)),
}

# Table 4: name, mixing, bits per character for both sizes.
_CHARACTERS: dict[str, tuple[str, Mixing, tuple[float, float]]] = {
    "local": ("Local Attention", local(128), (2.559, 1.825)),
    "transformer": ("Transformer", DENSE, (1.283, 1.121)),
    "sparse": ("Sparse Transformer", sparse(64), (1.300, 1.134)),
    "sinkhorn": ("Sinkhorn Transformer", own(128), (1.295, 1.132)),
    "mixture": ("Sinkhorn Mixture", own(128, mixture=True), (1.270, 1.119)),
}

# Variant (6): the scores are the sort matrix, without normalization. ReLU keeps them finite;
# exponentials of sums over up to 225 tokens overflow.
_UNBALANCED = own(32, num_iterations=0, kernel="relu", temperature=1.0, gumbel="never")

# Table 8: name, mixing, perplexity per word.
_ABLATION: dict[str, tuple[str, Mixing, float]] = {
    "relu-mlp": ("(1) P(X) = s(F2(s(F1(X))))", own(32, sort_net="relu_mlp"), 41.70),
    "mlp": ("(2) P(X) = F2(s(F1(X)))", own(32, sort_net="mlp"), 41.38),
    "relu": ("(3) P(X) = s(F1(X))", own(32, sort_net="relu"), 41.34),
    "linear": ("(4) P(X) = F1(X)", own(32, sort_net="linear"), 41.29),
    "tied": ("(5) K = V", own(32, tie_kv=True), 42.26),
    "no-sinkhorn": ("(6) N_k = 0, no Sinkhorn", _UNBALANCED, 52.40),
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
    notes: tuple[str, ...] = ()


_NOT_LM1B = "the paper trains on LM1B: no printed number is comparable"
_PACKED = (
    "Tensor2Tensor keeps the sentences in a window apart; here a window is running text",
    "words outside the published list of 793,471 are UNK where vocab-2016-09-10.txt is at hand",
)
_SUBWORDS = "32,768 subwords by byte pair encoding, not by Tensor2Tensor's own rule"
_TPUS = (
    "16 TPU cores of 4,096 tokens make an update; activations are bfloat16 there",
    "torch's Adafactor: its rate is at most 1 / sqrt(step), and it takes the sorting network's "
    "weights head by head",
)
_STRIDE = (
    "a stride of 64 with 8 summary positions as in Table 2; section 5.2 prints a block length of "
    "128 for characters, perhaps for this row too"
)
_MIXTURE = "the blocks of this table's mixture are not said: 32 here"
_CORPORA: dict[bool, tuple[_Corpus, _Corpus]] = {  # per character -> paper's corpus, small corpus
    False: (
        _Corpus("lm1b", "LM1B", {}, "word_perplexity", True, (*_PACKED, _SUBWORDS)),
        _Corpus(
            "ptb",
            "Penn Treebank (not LM1B)",
            {"level": "word", "max_length": 256},
            "perplexity",
            False,
            (_NOT_LM1B,),
        ),
    ),
    True: (
        _Corpus(
            "lm1b",
            "LM1B",
            {"level": "byte", "max_length": 1024},
            "bits_per_byte",
            True,
            (*_PACKED, 'characters are bytes; "bytes per char" are taken for bits'),
        ),
        _Corpus(
            "shakespeare",
            "Tiny Shakespeare (not LM1B)",
            {"level": "byte", "max_length": 1024},
            "bits_per_byte",
            False,
            (_NOT_LM1B,),
        ),
    ),
}


def _recipe(
    name: str,
    table: str,
    words: str,
    mixing: Mixing,
    corpus: _Corpus,
    printed: float | None,
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
        printed=printed if corpus.is_printed else None,
        metric=corpus.metric,
        unit="bits" if by_character else "perplexity",
        task=corpus.task,
        task_options=corpus.options,
        model=f"sinkhorn_{'char' if by_character else 'lm'}_{size}",
        model_settings={"mixer": mixer, "mixer_options": options},
        train=lmx(batch_size=64 if by_character else 256),
        notes=(
            f"{size} sizes",
            *corpus.notes,
            *_TPUS,
            *((_MIXTURE,) if "mixture" in options and not by_character else ()),
            *((_STRIDE,) if mixer == "sparse_transformer" and by_character else ()),
            *tuning(mixing),
        ),
    )


def _of_two_sizes(table: int, row: str, size: str, corpus: _Corpus) -> Recipe:
    words, mixing, printed = (_WORDS if table == 2 else _CHARACTERS)[row]
    short = row if size == "base" else f"{size}-{row}"
    name = f"table{table}-{corpus.task}-{short}"
    number = printed[SIZES.index(size)]
    made = _recipe(name, f"Table {table}", words, mixing, corpus, number, size)
    if corpus.is_printed:
        return replace(made, column=f"{corpus.title}, {size.capitalize()}")
    return made if size == "base" else replace(made, row=f"{words}, {size}")


def table3(parameters: str) -> Recipe:
    """Build an entry of Table 3 that is also in Table 2."""
    row, printed, note = {
        "450M": ("b64", 28.39, "the same run as sinkhorn/table2-lm1b-big-b64, 430 M in Table 2"),
        "1.9B": (
            "mixture",
            27.34,
            "Table 2 prints this number for the mixture of the big size, which has 430 M "
            "parameters; of a model with 1.9 B nothing is said: the same run as "
            "sinkhorn/table2-lm1b-big-mixture",
        ),
    }[parameters]
    corpus = _CORPORA[False][0]
    name = f"table3-lm1b-{parameters.lower()}"
    words = f"Sinkhorn Transformer, {parameters}"
    made = _recipe(name, "Table 3", words, _WORDS[row][1], corpus, printed, "big")
    return replace(made, notes=(note, *made.notes))


def table8(row: str, corpus: _Corpus) -> Recipe:
    """Build an entry of Table 8."""
    words, mixing, printed = _ABLATION[row]
    made = _recipe(f"table8-{corpus.task}-{row}", "Table 8", words, mixing, corpus, printed)
    if row != "no-sinkhorn":
        return made
    note = "the sort matrix is s(F1(X)): with exponentials instead it overflows"
    return replace(made, notes=(note, *made.notes[:-1]))


def _figure(number: int, setting: str, value: float, corpus: _Corpus) -> Recipe:
    """Build a point of Figure 3 or 4, without a reported number."""
    mixing = own(32, **{setting: value})
    words = f"{'tau' if number == 3 else 'k'} = {value}"
    name = f"figure{number}-{corpus.task}-{'tau' if number == 3 else 'k'}{value}"
    made = _recipe(name, f"Figure {number}", words, mixing, corpus, None)
    other = "5 iterations" if number == 3 else "temperature 0.75"
    note = f"Sinkhorn Transformer (32) with {other}; the paper's own is not said"
    return replace(made, notes=(note, *made.notes[:-1]))


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
