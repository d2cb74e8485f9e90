"""Memorization of facts, compression of a sequence, and state tracking."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np

from rifflemix.errors import check_choice
from rifflemix.lab.tasks.core.base import check_integer
from rifflemix.lab.tasks.recall.base import (
    Drawing,
    Ints,
    Options,
    RecallTask,
    recall_card,
    unscored,
)

_FACTS = 10**6
"""Number of the stream that draws the facts of a seed; no split uses it."""


class Memorization(RecallTask):
    """Memorization of MAD: Poli et al. 2024, section 3.1.

    Keys alternate with a blank. The label of a blank is the value of the key before it. The values
    of all keys are drawn once from the seed, so that the weights have to store them.
    """

    card = recall_card(
        "memorization",
        "Memorization (MAD)",
        "generated, as in MAD (Poli et al. 2024)",
        "Keys alternate with a blank; each key has a fixed value. Scored: the value of the key, at "
        "each blank.",
        {"vocab_size": 256, "length": 32, "num_train": 256},
    )

    def vocabulary(self, options: Options) -> int:
        return check_integer(options, "vocab_size", 3, 1 << 20)

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        vocab, length = drawing.options["vocab_size"], drawing.length
        half = (vocab - 1) // 2
        facts = np.random.default_rng([drawing.seed, _FACTS]).integers(half, 2 * half, size=half)
        inputs = np.full((rows, length), vocab - 1, dtype=np.int64)
        keys = rng.integers(half, size=(rows, length // 2))
        inputs[:, 0 : 2 * (length // 2) : 2] = keys
        labels = unscored(rows, length)
        labels[:, 1 : 2 * (length // 2) : 2] = facts[keys]
        return inputs, labels


class Compression(RecallTask):
    """Compression of MAD: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid
    Architectures", section 3.1, and its released code.

    Random tokens, then a compression token, the last id. Each token is its own label. The model
    `compressor` must read all labels from one vector, the output at the compression token.
    """

    predicts_next: ClassVar[bool] = False
    card = replace(
        recall_card(
            "compression",
            "Compression (MAD)",
            "generated, as in MAD (Poli et al. 2024)",
            "Random tokens and a compression token. Scored: all tokens, read from one vector of "
            "the sequence. With causal=True, the mixers of the encoder are causal, as in MAD.",
            {"vocab_size": 16, "length": 32, "causal": False},
        ),
        output="tokens",
        backbone="compressor",
        causal_backbone="causal_compressor",
    )

    def vocabulary(self, options: Options) -> int:
        return check_integer(options, "vocab_size", 3, 1 << 20)

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        last = drawing.options["vocab_size"] - 1
        inputs = rng.integers(last, size=(rows, drawing.length))
        inputs[:, -1] = last
        return inputs, inputs


@functools.cache
def multiplication_table(group: str) -> Ints:
    """Return the products of a group, (G, G): entry [a, b] is a b.

    Args:
        group: "Z60" and other cyclic groups, "S3" and "S5" (permutations), "A5" (even
            permutations).
    """
    kind, size = group[0], int(group[1:])
    if kind == "Z":
        return np.add.outer(np.arange(size), np.arange(size)) % size
    elements = list(itertools.permutations(range(size)))
    if kind == "A":
        elements = [element for element in elements if _is_even(element)]
    index = {element: number for number, element in enumerate(elements)}
    return np.array(
        [[index[tuple(a[b[k]] for k in range(size))] for b in elements] for a in elements]
    )


def _is_even(permutation: tuple[int, ...]) -> bool:
    pairs = itertools.combinations(permutation, 2)
    return sum(first > second for first, second in pairs) % 2 == 0


GROUPS = ("Z2", "Z60", "S3", "S5", "A5")


class StateTracking(RecallTask):
    """Word problems of groups: Merrill et al. 2024, "The Illusion of State in State-Space Models".

    The inputs are group elements. The label of each position is the product of all elements up to
    it. Z2 is the parity of a bit string.
    """

    card = recall_card(
        "state_tracking",
        "State tracking",
        "generated, as in Merrill et al. 2024",
        "Random elements of a group: Z2 (parity), Z60, S3, S5 or A5. Scored: the product of all "
        "elements so far, at every position.",
        {"group": "S3", "length": 32},
    )

    def vocabulary(self, options: Options) -> int:
        check_choice("group", options["group"], GROUPS)
        return len(multiplication_table(options["group"]))

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        table = multiplication_table(drawing.options["group"])
        inputs = rng.integers(len(table), size=(rows, drawing.length))
        labels = inputs.copy()
        for place in range(1, drawing.length):
            labels[:, place] = table[labels[:, place - 1], inputs[:, place]]
        return inputs, labels
