"""Copying, memorization of facts, compression of a sequence, and state tracking."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.builder import check_integer
from rifflemix.lab.tasks.synthetic.recall import (
    Drawing,
    Ints,
    Options,
    RecallTask,
    recall_card,
    unscored,
)


class SelectiveCopying(RecallTask):
    """Selective copying: Gu and Dao 2023, "Mamba", section 4.1.1; and MAD.

    Random places between blanks contain `tokens` tokens. After the copy token the model repeats
    them in their order. The answers are not inputs: blanks follow the copy token. The last two ids
    are the blank and the copy token.
    """

    card = recall_card(
        "selective_copying",
        "Selective copying",
        "generated, as in MAD (Poli et al. 2024) and Mamba (Gu and Dao 2023)",
        "Tokens in random places between blanks, then a copy token. Scored: the tokens in their "
        "order, at the copy token and the blanks after it.",
        {"vocab_size": 16, "length": 256, "tokens": 16},
    )

    def check(self, options: Options, length: int) -> None:
        count = check_integer(options, "tokens", 1)
        if length < 2 * count:
            raise bad_argument("length", f"at least 2 x tokens = {2 * count}", length)

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        vocab, count, length = (
            drawing.options["vocab_size"],
            drawing.options["tokens"],
            drawing.length,
        )
        blank, copy = vocab - 2, vocab - 1
        tokens = rng.integers(vocab - 2, size=(rows, count))
        context = length - count
        places = np.sort(rng.random((rows, context)).argsort(axis=1)[:, :count], axis=1)
        inputs = np.full((rows, length), blank, dtype=np.int64)
        np.put_along_axis(inputs, places, tokens, axis=1)
        inputs[:, context] = copy
        labels = unscored(rows, length)
        labels[:, context:] = tokens
        return inputs, labels


class Copying(RecallTask):
    """Copying of a whole string: Jelassi et al. 2024, "Repeat After Me", section 3.

    A random string, the copy token, and the string again. Each token of the copy is predicted from
    the tokens before it. With causal=False, blanks replace the copy in the inputs.
    """

    card = recall_card(
        "copying",
        "Copying",
        "generated, as in Jelassi et al. 2024",
        "A random string, a copy token, and the string again. Scored: the tokens of the copy.",
        {"vocab_size": 32, "length": 64},
    )

    fewest_ids = 4

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        vocab, count = drawing.options["vocab_size"], drawing.length // 2
        blank, copy = vocab - 2, vocab - 1
        tokens = rng.integers(vocab - 2, size=(rows, count))
        inputs = np.full((rows, drawing.length), blank, dtype=np.int64)
        labels = unscored(rows, drawing.length)
        inputs[:, :count], inputs[:, count] = tokens, copy
        if drawing.causal:
            inputs[:, count + 1 : 2 * count] = tokens[:, :-1]
        labels[:, count : 2 * count] = tokens
        return inputs, labels


class Induction(RecallTask):
    """Induction heads: Gu and Dao 2023, "Mamba", section 4.1.2.

    A random sequence contains a trigger token once inside and once at its end. The label of the
    last token is the token after the first trigger. The trigger is the last id.
    """

    card = recall_card(
        "induction",
        "Induction heads",
        "generated, as in Mamba (Gu and Dao 2023)",
        "A random sequence with one trigger token inside and one at the end. Scored: the token "
        "that followed the first trigger, at the last position.",
        {"vocab_size": 16, "length": 256},
    )

    def check(self, options: Options, length: int) -> None:
        if length < 3:
            raise bad_argument("length", "at least 3", length)

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        vocab, length = drawing.options["vocab_size"], drawing.length
        inputs = rng.integers(vocab - 1, size=(rows, length))
        place = rng.integers(length - 2, size=(rows, 1))
        np.put_along_axis(inputs, place, vocab - 1, axis=1)
        inputs[:, -1] = vocab - 1
        labels = unscored(rows, length)
        labels[:, -1] = np.take_along_axis(inputs, place + 1, axis=1)[:, 0]
        return inputs, labels


class Needle(RecallTask):
    """One fact in a long noise: the single-needle task of RULER (Hsieh et al. 2024) as tokens.

    A random sequence contains a key and its value at `depth` from 0 (start) to 1 (end), or in a
    random place. The key follows again at the end. Keys and values do not occur in the noise.
    """

    card = recall_card(
        "needle",
        "Needle in noise",
        "generated, after RULER (Hsieh et al. 2024)",
        "A key and its value in a long random sequence, and the key again at the end. Scored: the "
        "value, at the last position. `depth` is the place of the fact from 0 to 1; negative: "
        "random.",
        {"vocab_size": 64, "length": 1024, "depth": -1.0},
    )

    fewest_ids = 6

    def check(self, options: Options, length: int) -> None:
        depth = options["depth"]
        if isinstance(depth, bool) or not isinstance(depth, int | float) or depth > 1:
            raise bad_argument("depth", "a number from 0 to 1, or a negative number", repr(depth))
        if length < 3:
            raise bad_argument("length", "at least 3", length)

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        third, length = drawing.options["vocab_size"] // 3, drawing.length
        inputs = rng.integers(2 * third, drawing.options["vocab_size"], size=(rows, length))
        keys = rng.integers(third, size=(rows, 1))
        values = rng.integers(third, 2 * third, size=(rows, 1))
        depth = drawing.options["depth"]
        place = np.full((rows, 1), round(max(depth, 0.0) * (length - 3)))
        if depth < 0:
            place = rng.integers(length - 2, size=(rows, 1))
        np.put_along_axis(inputs, place, keys, axis=1)
        np.put_along_axis(inputs, place + 1, values, axis=1)
        inputs[:, -1:] = keys
        labels = unscored(rows, length)
        labels[:, -1:] = values
        return inputs, labels


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
