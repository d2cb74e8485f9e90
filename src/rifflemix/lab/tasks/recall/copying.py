"""Copying: repeat tokens of the sequence in their order."""

from __future__ import annotations

import numpy as np

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import check_integer
from rifflemix.lab.tasks.recall.base import (
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

    def vocabulary(self, options: Options) -> int:
        return check_integer(options, "vocab_size", 3, 1 << 20)

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

    def vocabulary(self, options: Options) -> int:
        return check_integer(options, "vocab_size", 4, 1 << 20)

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

    def vocabulary(self, options: Options) -> int:
        return check_integer(options, "vocab_size", 3, 1 << 20)

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

    def vocabulary(self, options: Options) -> int:
        return check_integer(options, "vocab_size", 6, 1 << 20)

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
