"""Texts in user data: choice of the tokenizer, and sequences of words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.checks import shown
from rifflemix.errors import bad_argument
from rifflemix.files import user_path
from rifflemix.lab.tasks.core.arrays import Truncate, as_numpy, bad_input, check_length, listed
from rifflemix.lab.tasks.core.token_labels import UNCOUNTED
from rifflemix.lab.tasks.text.encoder import LEAST_SUBWORDS, TextEncoder, count_words, learn_encoder
from rifflemix.lab.tasks.text.vocabulary import Vocabulary, build_vocabulary, read_tokenizer_file
from rifflemix.lab.tasks.user_data.samples import Samples

BYTES = "bytes"

_SIZED = re.compile(r"(words|bpe):([0-9]{1,9})")
_FEWEST_WORDS = 3  # padding, unknown words and one word


def check_tokenizer(choice: str) -> str:
    """Return a choice of a tokenizer, or raise.

    Args:
        choice: "bytes", "words", "words:SIZE", "bpe:SIZE", or the path of a tokenizer file.
    """
    expected = "bytes, words, bpe:SIZE (such as bpe:8000) or a tokenizer file"
    if not isinstance(choice, str) or not choice:
        raise bad_argument("tokenizer", expected, shown(choice))
    if choice in (BYTES, "words"):
        return choice
    if sized := _SIZED.fullmatch(choice):
        least = LEAST_SUBWORDS if sized[1] == "bpe" else _FEWEST_WORDS
        if int(sized[2]) < least:
            raise bad_argument("tokenizer", f"{sized[1]}:{least} or more", repr(choice))
        return choice
    if not user_path("tokenizer", choice).is_file():
        raise bad_argument("tokenizer", expected, repr(choice))
    return choice


def choose_encoder(choice: str, trained: Callable[[], Iterable[str]]) -> TextEncoder:
    """Create the encoder of a checked choice.

    Args:
        choice: See `check_tokenizer`.
        trained: Function that returns the texts of the training split.

    Raises:
        InputError: The `tokenizers` library is missing, or the file is not one of its tokenizers.
    """
    if choice == BYTES:
        return TextEncoder("byte")
    level, size = tokenizer_size(choice)
    if level == "words":
        return learn_encoder(trained(), "word", "plain", size)
    if level == "bpe":
        return learn_encoder(trained(), "subword", vocab_size=size)
    encoder = TextEncoder("tokenizer", merges=read_tokenizer_file(choice))
    len(encoder)  # raises for a file of another kind
    return encoder


def tokenizer_size(choice: str) -> tuple[str, int | None]:
    """Return the level of a checked choice and its size. The level of a file is "file"."""
    if sized := _SIZED.fullmatch(choice):
        return sized[1], int(sized[2])
    return (choice if choice in (BYTES, "words") else "file"), None


def tokenizer_name(choice: str) -> str:
    """Return the name of a tokenizer for the options of a task, without folders."""
    return Path(choice).name if tokenizer_size(choice)[0] == "file" else choice


@dataclass(frozen=True)
class TextOptions:
    """Options of the length and the tokenizer, see `Task.from_arrays`."""

    max_length: int | None
    truncate: Truncate
    tokenizer: str

    def check_no_texts(self) -> None:
        """Raise if a tokenizer is set although the samples are not texts."""
        if self.tokenizer != BYTES:
            expected = "'bytes' unless the samples are texts"
            raise bad_argument("tokenizer", expected, repr(self.tokenizer))

    def check_whole(self, kind: str) -> None:
        """Raise if `truncate` is set although a kind does not cut sequences."""
        if self.truncate != "head":
            raise bad_argument("truncate", f"'head' with kind {kind!r}", repr(self.truncate))

    def learned(self, rows: NDArray[np.int64]) -> tuple[str, str, str] | None:
        """Return level and rule of a learned encoder, and a hash of its size and rows."""
        kinds = {"words": ("word", "plain"), "bpe": ("subword", "none")}
        kind = kinds.get(tokenizer_size(self.tokenizer)[0])
        if kind is None:
            return None
        total = hashlib.blake2b(self.tokenizer.encode(), digest_size=12)
        total.update(rows.tobytes())
        return *kind, total.hexdigest()

    def recorded(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, for results."""
        return {
            **({"max_length": self.max_length} if self.max_length else {}),
            **({"truncate": self.truncate} if self.truncate != "head" else {}),
            **({"tokenizer": tokenizer_name(self.tokenizer)} if self.tokenizer != BYTES else {}),
        }

    def vocabulary(self, train: Sequence[str], others: Sequence[str]) -> Vocabulary:
        """Build a vocabulary that can decode from the training texts."""
        text = "\n".join(train)
        level, size = tokenizer_size(self.tokenizer)
        if level == BYTES:
            return build_vocabulary("byte", text)
        if level == "words":
            return build_vocabulary("word", text, others, most_words=size)
        if size is not None:
            return build_vocabulary("bpe", text, bpe_size=size)
        return build_vocabulary("bpe", text, tokenizer=self.tokenizer)


@dataclass(frozen=True)
class WordInputs:
    """Texts that are split at white space, or lists of words.

    Attributes:
        encoder: Words or subwords and their ids.
        max_length: Maximum number of tokens.
        fixed: True if all samples have `max_length` tokens.
        columns: Columns of the user's table. Empty without a table.
    """

    kind: ClassVar[str] = "words"
    encoder: TextEncoder
    max_length: int
    fixed: bool
    columns: tuple[str, ...] = ()

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert texts or lists of words to ids (N,) int64."""
        found = []
        for number, sample in enumerate(listed(raw, "texts or lists of words")):
            words = as_words(sample)
            if words is None:
                raise bad_input("a text or a list of words", shown(sample), number)
            ids = self.encoder.word_ids(words).astype(np.int64)
            check_length(len(ids), self.max_length, number, "tokens", fixed=self.fixed)
            found.append(torch.from_numpy(ids))
        return found

    def picked(self, ids: Tensor) -> Tensor:
        """Return (N,) bools: whether a token has a prediction, as the first one of its word."""
        return torch.from_numpy(self.encoder.word_starts(ids.numpy()))


def as_words(sample: Any) -> list[str] | None:
    """Return the words of a text or of a list of words. Return None for other values."""
    if isinstance(sample, str):
        return sample.split()
    words = as_numpy(sample)
    if not hasattr(words, "__len__") or isinstance(words, dict | bytes):
        return None
    words = list(words)
    are_words = all(isinstance(word, str) and word.split() == [word] for word in words)
    return words if words and are_words else None


def read_words(x: Any) -> list[list[str]] | None:
    """Return the words of each sample. Return None if the first sample is no text.

    Raises:
        InputError: A sample has no words, or is neither a text nor a list of words.
    """
    samples = as_numpy(x)
    if isinstance(samples, str) or not hasattr(samples, "__len__") or len(samples) == 0:
        return None
    if as_words(samples[0]) is None:
        return None
    found = []
    for number, sample in enumerate(samples):
        words = as_words(sample)
        if not words:
            expected = "texts, or lists of words without spaces"
            raise bad_argument("x", expected, f"{shown(sample)} as sample {number}")
        found.append(words)
    return found


def word_encoder(
    rows: Sequence[Sequence[str]], train: NDArray[np.int64], tokenizer: str
) -> TextEncoder:
    """Create the encoder of words.

    Words without an id share one id. Subwords come from the training rows, or from the file of a
    byte-level BPE.

    Args:
        rows: Words of each sample.
        train: Indices of the training rows.
        tokenizer: See `check_tokenizer`. "bytes" is "words".
    """
    texts = (" ".join(rows[row]) for row in train.tolist())
    level, size = tokenizer_size(tokenizer)
    if level in (BYTES, "words"):
        return TextEncoder("word", words=tuple(count_words(texts, size)))
    if level == "bpe":
        return learn_encoder((f" {text}" for text in texts), "subword", vocab_size=size)
    return TextEncoder("subword", merges=read_tokenizer_file(tokenizer))


def encode_words(rows: Sequence[Sequence[str]], encoder: TextEncoder) -> Samples:
    """Encode the words of all samples."""
    ids = [encoder.word_ids(row) for row in rows]
    ends = np.cumsum([len(row) for row in ids]).astype(np.int64)
    return Samples("tokens", np.concatenate(ids).astype(np.int64), ends, len(encoder))


def label_word_starts(labels: NDArray[Any], samples: Samples, encoder: TextEncoder) -> NDArray[Any]:
    """Move the labels of words to the first token of each word. Other tokens are not scored.

    Source: Devlin et al. 2019, BERT, section 5.3.

    Args:
        labels: M arrays of the classes of the words.
        samples: Tokens of the words.
        encoder: Encoder of the words.

    Raises:
        InputError: The tokenizer removes spaces, so that the first tokens are unknown.
    """
    found = np.empty(len(labels), dtype=object)
    for row, of_words in enumerate(labels):
        is_start = encoder.word_starts(samples[row])
        if is_start.sum() != len(of_words):
            raise bad_argument("tokenizer", "a byte-level BPE that keeps spaces", "another one")
        found[row] = np.full(len(is_start), UNCOUNTED)
        found[row][is_start] = of_words
    return found
