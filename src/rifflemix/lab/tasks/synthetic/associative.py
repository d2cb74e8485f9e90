"""Associative recall: the value of a key that the sequence contains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.builder import check_integer
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED
from rifflemix.lab.tasks.synthetic.recall import (
    Drawing,
    Ints,
    Options,
    RecallTask,
    recall_card,
    unscored,
)

Mask = NDArray[np.bool_]


def distinct(rng: np.random.Generator, rows: int, count: int, choices: int) -> Ints:
    """Draw `count` different numbers below `choices` for each row, (rows, count), in any order.

    All ordered draws are equally likely: repeated numbers are drawn again, and this rule treats
    all numbers equally.
    """
    drawn = rng.integers(choices, size=(rows, count))
    if 3 * count > choices:  # many repetitions: sort random numbers instead
        return rng.random((rows, choices)).argsort(axis=1)[:, :count]
    while True:
        order = drawn.argsort(axis=1, kind="stable")
        ordered = np.take_along_axis(drawn, order, axis=1)
        repeated = np.zeros(drawn.shape, dtype=bool)
        np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
        if not repeated.any():
            return drawn
        drawn[repeated] = rng.integers(choices, size=int(repeated.sum()))


def weighted_distinct(
    rng: np.random.Generator, rows: int, count: int, weights: NDArray[np.float64]
) -> Ints:
    """Draw `count` different indices for each row, one after the other with these weights.

    The smallest exponential variables with these rates have the distribution of such draws.
    """
    times = rng.standard_exponential((rows, len(weights))) / weights
    nearest = np.argpartition(times, count - 1, axis=1)[:, :count]
    order = np.take_along_axis(times, nearest, axis=1).argsort(axis=1)
    return np.take_along_axis(nearest, order, axis=1)


class MultiQueryRecall(RecallTask):
    """MQAR of Arora et al. 2023, "Zoology", section 3 and its released code.

    A sequence starts with pairs of different keys and different values. Each key then appears once
    as a query. Its label is its value, at the position of the query. The sequence does not contain
    the answers, so that causal=False asks the same questions.
    """

    card = recall_card(
        "mqar",
        "Multi-query associative recall",
        "generated, as in zoology (Arora et al. 2023)",
        "Key-value pairs, then queries in random places. The label of a query is the value of its "
        "key. Keys are ids from 1 to vocab_size / 2 - 1, values are the ids above. Tokens between "
        "queries are 0, or random with random_non_queries.",
        {
            "vocab_size": 256,
            "length": 64,
            "pairs": 4,
            "power": 0.01,
            "random_non_queries": True,
        },
    )

    fewest_ids = 4

    def check(self, options: Options, length: int) -> None:
        keys = self.vocabulary(options) // 2 - 1
        pairs = check_integer(options, "pairs", 1, keys)
        if 4 * pairs > length:
            raise bad_argument(
                "length", f"at least 4 pairs = {4 * pairs}", length, "a query takes two places"
            )
        power = options["power"]
        if isinstance(power, bool) or not isinstance(power, int | float) or not 0 < power <= 1:
            raise bad_argument("power", "a number above 0 and at most 1", repr(power))
        if not isinstance(options["random_non_queries"], bool):
            raise bad_argument(
                "random_non_queries", "true or false", repr(options["random_non_queries"])
            )

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        options, length = drawing.options, drawing.length
        half, pairs = options["vocab_size"] // 2, options["pairs"]
        keys = 1 + distinct(rng, rows, pairs, half - 1)
        values = half + distinct(rng, rows, pairs, options["vocab_size"] - half)
        context, places = 2 * pairs, (length - 2 * pairs) // 2
        weights = options["power"] * np.arange(1.0, places + 1) ** (options["power"] - 1)
        queries = context + 2 * weighted_distinct(rng, rows, pairs, weights)
        inputs, labels = np.zeros((rows, length), dtype=np.int64), unscored(rows, length)
        inputs[:, 0:context:2], inputs[:, 1:context:2] = keys, values
        np.put_along_axis(inputs, queries, keys, axis=1)
        np.put_along_axis(labels, queries, values, axis=1)
        if options["random_non_queries"]:
            noise = rng.integers(options["vocab_size"], size=inputs.shape)
            inputs = np.where(inputs == 0, noise, inputs)
        return inputs, labels


class InContextRecall(RecallTask):
    """Recall tasks of MAD: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid
    Architectures", section 3.1.

    A sequence consists of pairs: a key, and the value that this sequence assigns to the key. Keys
    repeat. Models are trained to predict every next token. Only values of keys that appeared
    before are scored. With options, keys and values are motifs of several tokens, and some pairs
    are noise.

    With causal=False, models would see the answers. The sequence then ends with a repeated key, and
    the only label is the first token of its value.
    """

    card = recall_card(
        "in_context_recall",
        "In-context recall (MAD)",
        "generated, as in MAD (Poli et al. 2024)",
        "Keys and values alternate. Each sequence assigns a random value to each key. Scored: the "
        "values of keys that appeared before.",
        {"vocab_size": 16, "length": 128},
    )

    fewest_ids = 4

    def check(self, options: Options, length: int) -> None:
        noise = options.get("noise_vocab_size", 0)
        check_integer({"noise_vocab_size": noise}, "noise_vocab_size", 0, options["vocab_size"] - 4)
        share = options.get("noise_share", 0.0)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise bad_argument("noise_share", "a number in [0, 1)", repr(share))
        if share and not noise:
            raise bad_argument("noise_vocab_size", "at least 1 with noise_share", noise)
        most = check_integer({"motif": 1, **options}, "motif", 1, 64)
        half = (self.vocabulary(options) - noise) // 2
        check_integer({"keys": half, **options}, "keys", 1, half)
        if length < 6 * most:
            raise bad_argument("length", f"at least 6 motifs = {6 * most}", length)

    def draw(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Ints]:
        stream, scored = self._stream(rng, rows, drawing)
        length = drawing.length
        if not drawing.causal:
            labels = unscored(rows, length)
            labels[:, -1] = stream[:, length]
            return stream[:, :length], labels
        inputs, labels = stream[:, :length], stream[:, 1:]
        return inputs, labels if drawing.trains else np.where(scored[:, 1:], labels, UNCOUNTED)

    def _stream(self, rng: np.random.Generator, rows: int, drawing: Drawing) -> tuple[Ints, Mask]:
        """Draw N + 1 tokens for each row, and mark the values of keys that appeared before.

        With causal=False the last token is the first token of the value of a repeated key.
        """
        options, length = drawing.options, drawing.length
        most = options.get("motif", 1)
        own = options["vocab_size"] - options.get("noise_vocab_size", 0)
        half = own // 2
        count, pairs = options.get("keys", half), length // 2 + 1
        motifs = np.stack(
            (
                rng.integers(half, size=(rows, count, most)),
                rng.integers(half, own, size=(rows, count, most)),
            ),
            axis=2,
        )  # (rows, keys, 2, most)
        motifs[:, :, 0, 0] = distinct(rng, rows, count, half)  # no key is a prefix of another
        sizes = rng.integers(1, most + 1, size=(rows, count, 2))
        order = rng.integers(count, size=(rows, pairs))
        is_noise = rng.random((rows, pairs)) < options.get("noise_share", 0.0)
        if not drawing.causal:
            self._ask(rng, order, is_noise, length // (2 * most) - 1)
        tokens = np.take_along_axis(motifs, order[:, :, None, None], axis=1)
        used = np.arange(most) < np.take_along_axis(sizes, order[:, :, None], axis=1)[..., None]
        noise = rng.integers(own, max(options["vocab_size"], own + 1), size=tokens.shape)
        tokens = np.where(is_noise[:, :, None, None], noise, tokens)
        known = np.zeros(tokens.shape, dtype=bool)
        known[:, :, 1] = (~is_noise & ~_is_first(np.where(is_noise, count, order)))[..., None]
        if not drawing.causal:
            used[:, -1, 1] = np.arange(most) < 1  # the question ends with one token of the value
        return _flatten(tokens, known, used, length + 1, from_end=not drawing.causal)

    @staticmethod
    def _ask(rng: np.random.Generator, order: Ints, is_noise: Mask, near: int) -> None:
        """Let the last pair repeat the key of one of the `near` pairs before it."""
        rows, pairs = order.shape
        asked = pairs - 1 - rng.integers(1, near + 1, size=rows)
        at = np.arange(rows)
        is_noise[at, asked] = is_noise[:, -1] = False
        order[:, -1] = order[at, asked]


class NoisyRecall(InContextRecall):
    """In-context recall with pairs of noise tokens between the other pairs."""

    card = recall_card(
        "noisy_recall",
        "Noisy in-context recall (MAD)",
        "generated, as in MAD (Poli et al. 2024)",
        "In-context recall in which a share of the pairs are two noise tokens. Noise tokens are "
        "the last noise_vocab_size ids.",
        {"vocab_size": 32, "length": 128, "noise_vocab_size": 16, "noise_share": 0.2},
    )


class FuzzyRecall(InContextRecall):
    """In-context recall with keys and values of 1 to `motif` tokens."""

    card = recall_card(
        "fuzzy_recall",
        "Fuzzy in-context recall (MAD)",
        "generated, after MAD (Poli et al. 2024)",
        "In-context recall in which each of `keys` keys, and each value, is a motif of 1 to "
        "`motif` tokens. Scored: all tokens of values if their key appeared before.",
        {"vocab_size": 16, "length": 128, "motif": 3, "keys": 4},
    )


def _flatten(
    tokens: Ints, known: Mask, used: Mask, length: int, *, from_end: bool
) -> tuple[Ints, Mask]:
    """Keep the first or the last `length` used tokens of each row, in order."""
    rows = len(tokens)
    flat = used.reshape(rows, -1)
    order = np.argsort(flat if from_end else ~flat, axis=1, kind="stable")
    order = order[:, -length:] if from_end else order[:, :length]
    stream = np.take_along_axis(tokens.reshape(rows, -1), order, axis=1)
    return stream, np.take_along_axis(known.reshape(rows, -1), order, axis=1)


def _is_first(keys: Ints) -> Mask:
    """Mark the first appearance of each number in each row."""
    order = keys.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, axis=1)
    is_new = np.ones(keys.shape, dtype=bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.zeros(keys.shape, dtype=bool)
    np.put_along_axis(first, order, is_new, axis=1)
    return first
