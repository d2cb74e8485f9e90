"""Texts as token ids: bytes, words or subwords."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.arrays import Truncate, check_length, cut, pairs, texts
from rifflemix.lab.tasks.core.card import BYTE_IDS
from rifflemix.lab.tasks.data_io.files import Array, Arrays
from rifflemix.lab.tasks.text.vocabulary import bpe_vocabulary, read_tokenizer, train_merges

Ids = NDArray[np.int32]

RESERVED = 2
"""Number of reserved ids: 0 for padding, 1 for unknown words or the end of a subword text."""

LEAST_SUBWORDS = RESERVED + 257
"""Minimum size of a subword vocabulary: reserved ids, all bytes and one pair."""

LEVELS = ("word", "subword", "byte")

_STORED = ("words", "skipped", "merges")
_UNKNOWN = _END = 1
_SHORTEST_WORD = 3
_WORDS = re.compile(r"\w+|[^\w\s]")
_BREAK = re.compile(r"<br\s*/?>")
# Letters and digits with apostrophes between them, or any other visible character.
_REVIEW_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[^\w\s]|_")


def plain_words(text: str) -> str:
    """Convert a text to lower-case words and punctuation, separated by spaces."""
    return " ".join(_WORDS.findall(text.lower()))


def review_words(text: str) -> str:
    """Convert a review to lower-case words and punctuation, without line breaks."""
    return " ".join(_REVIEW_WORD.findall(_BREAK.sub(" ", text.lower())))


def content_words(text: str) -> str:
    """Convert a text to its lower-case words of three letters or more."""
    words = plain_words(text).split()
    return " ".join(word for word in words if len(word) >= _SHORTEST_WORD and word.isalpha())


RULES: Mapping[str, Callable[[str], str]] = {
    "none": str,
    "plain": plain_words,
    "reviews": review_words,
    "content": content_words,
}
"""Preparations of a text before it is encoded."""


@dataclass(frozen=True)
class TextEncoder:
    """Conversion of a text to token ids.

    Attributes:
        level: "byte" (byte b is id b + 1), "word" (ids of `words` from 2 on, 1 for other words) or
            "subword" (byte pairs from 2 on, 1 at the end of the text), or "tokenizer" (id i of a
            tokenizer file is i + 1).
        rule: Name of the preparation, one of `RULES`.
        words: Words in the order of their ids.
        skipped: Words that are left out.
        merges: Byte pair encoding, or other tokenizer, in the JSON format of the `tokenizers`
            library.
    """

    level: str
    rule: str = "none"
    words: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    merges: str = ""

    def __len__(self) -> int:
        """Return the number of ids."""
        if self.level == "byte":
            return BYTE_IDS
        if self.level == "tokenizer":
            return 1 + int(self._tokenizer.get_vocab_size())
        return RESERVED + (len(self.words) if self.level == "word" else len(self._subwords))

    def ids(self, text: str) -> Ids:
        """Return the token ids (N,) of a text."""
        text = RULES[self.rule](text)
        if self.level == "byte":
            return np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.int32) + 1
        if self.level == "word":
            return self.word_ids(text.split())
        if self.level == "tokenizer":
            return np.array(self._tokenizer.encode(text).ids, dtype=np.int32) + 1
        return np.append(self._subwords.encode_whole(text) + RESERVED, _END).astype(np.int32)

    def word_ids(self, words: Iterable[str]) -> Ids:
        """Return the ids (N,) of prepared words, for levels "word" and "subword".

        A word can have several subwords. The first one starts with a space.
        """
        if self.level == "subword":
            pieces: Ids = self._subwords.encode("".join(f" {word}" for word in words))
            return pieces + RESERVED
        found = (self._table.get(word, _UNKNOWN) for word in words if word not in self._skipped)
        return np.fromiter(found, dtype=np.int32)

    def word_starts(self, ids: Ids) -> NDArray[np.bool_]:
        """Return (N,) bools: whether each id of `word_ids` is the first one of a word."""
        if self.level == "word":
            return np.ones(len(ids), dtype=np.bool_)
        return self._starts[ids]

    def to_arrays(self) -> Arrays:
        """Return the words and byte pairs as arrays for `from_arrays`."""
        texts = ("\n".join(self.words), "\n".join(self.skipped), self.merges)
        return {
            name: np.frombuffer(text.encode(), dtype=np.uint8)
            for name, text in zip(_STORED, texts, strict=True)
        }

    @classmethod
    def from_arrays(cls, level: str, rule: str, arrays: Mapping[str, Array]) -> Self:
        """Restore an encoder from `to_arrays`. Missing arrays are empty."""
        words, skipped, merges = (
            arrays[name].values.tobytes().decode() if name in arrays else "" for name in _STORED
        )
        return cls(level, rule, _split(words), _split(skipped), merges)

    @functools.cached_property
    def _table(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words, start=RESERVED)}

    @functools.cached_property
    def _skipped(self) -> frozenset[str]:
        return frozenset(self.skipped)

    @functools.cached_property
    def _starts(self) -> NDArray[np.bool_]:
        starts = [piece.startswith(b" ") for piece in self._subwords.pieces]
        return np.array([False] * RESERVED + starts)

    @functools.cached_property
    def _subwords(self) -> Any:
        return bpe_vocabulary(self.merges)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return read_tokenizer(self.merges)


def _split(lines: str) -> tuple[str, ...]:
    return tuple(lines.split("\n")) if lines else ()


def learn_encoder(
    trained: Iterable[str], level: str, rule: str = "none", vocab_size: int | None = None
) -> TextEncoder:
    """Learn the encoder of training texts.

    Args:
        trained: Training texts.
        level: One of `LEVELS`.
        rule: Preparation of a text, one of `RULES`. Subwords need none.
        vocab_size: Maximum number of ids, including reserved ids. None keeps all words.

    Raises:
        InputError: Unknown level, no `vocab_size` for subwords, or the tokenizers library is
            missing.
    """
    check_choice("level", level, LEVELS)
    if level == "byte":
        return TextEncoder(level, rule)
    if level == "word":
        return TextEncoder(level, rule, tuple(count_words(map(RULES[rule], trained), vocab_size)))
    if vocab_size is None:
        raise bad_argument("vocab_size", "a number with level subword", "None")
    return TextEncoder(level, merges=train_merges(_lines(trained), vocab_size - RESERVED))


def _lines(trained: Iterable[str]) -> Iterator[str]:
    """Yield the lines of texts that are joined by line feeds."""
    before: str | None = None
    for text in trained:
        if before is not None:
            yield from f"{before}\n".splitlines(keepends=True)
        before = text
    yield from (before or "").splitlines(keepends=True)


def count_words(prepared: Iterable[str], vocab_size: int | None = None) -> list[str]:
    """List the words of texts by decreasing frequency, then alphabetically.

    Args:
        prepared: Texts with words separated by spaces.
        vocab_size: Maximum number of ids, including reserved ids. None keeps all words.
    """
    counts = Counter(word for text in prepared for word in text.split())
    words = sorted(counts, key=lambda word: (-counts[word], word))
    return words[: None if vocab_size is None else vocab_size - RESERVED]


@dataclass(frozen=True)
class TextInputs:
    """Texts, or pairs of texts.

    Attributes:
        encoder: Conversion of a text to ids.
        max_length: Maximum number of tokens of a sequence.
        fixed: True if all sequences have `max_length` tokens.
        cuts: True if longer texts are cut, as in training.
        texts: Texts per sample, 1 or 2.
        separator: Id between two texts that are joined to one sequence. None keeps them separate.
        columns: Columns of the user's table, one for each text. Empty without a table.
        truncate: Part of a longer text that remains, see `rifflemix.lab.tasks.core.arrays.cut`.
    """

    kind: ClassVar[str] = "texts"
    encoder: TextEncoder
    max_length: int
    fixed: bool = False
    cuts: bool = True
    texts: int = 1
    separator: int | None = None
    columns: tuple[str, ...] = ()
    truncate: Truncate = "head"

    def encode(self, raw: Any) -> list[Any]:
        """Convert texts to tokens (N,) int64, or pairs to two of these."""
        samples = pairs(raw) if self.texts == 2 else [(text,) for text in texts(raw)]
        found = []
        for number, sample in enumerate(samples):
            sequences = self.sequences([self.encoder.ids(text) for text in sample])
            for ids in sequences:
                check_length(len(ids), self.max_length, number, "tokens", fixed=self.fixed)
            tensors = tuple(torch.from_numpy(ids.astype(np.int64)) for ids in sequences)
            found.append(tensors if len(tensors) > 1 else tensors[0])
        return found

    def sequences(self, parts: Sequence[Ids]) -> tuple[Ids, ...]:
        """Join the ids of the texts of a sample if they are one sequence, and cut them."""
        if self.separator is not None:
            middle = np.array([self.separator], dtype=np.int32)
            parts = [np.concatenate((parts[0], middle, parts[1]))]
        if not self.cuts:
            return tuple(parts)
        return tuple(cut(part, self.max_length, self.truncate) for part in parts)
