"""Labelled sentences, or pairs of them, as ids of words, subwords or bytes."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Progress, Request, Task, check_integer
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, damaged
from rifflemix.lab.tasks.text.subwords import LEAST_SUBWORDS, RESERVED, Subwords

LEVELS = ("word", "subword", "byte")

SUBWORDS = "level subword: cased byte pairs of the training split, at most {}, and an end token. "
"""A sentence on level "subword", for the cards of tasks on text."""

JOINED = (
    "joined: the two sentences as one sequence of at most max_length tokens, a token of its own "
    "between them; else a pair, each of at most max_length."
)
"""A sentence on the option "joined", for the cards of tasks on pairs."""

_PAD_AND_BYTES = 257
_WORDS = re.compile(r"\w+|[^\w\s]")

Ids = NDArray[np.int32]
Row = tuple[tuple[str, ...], int]
"""The sentences of a sample, one or two, their words parted by spaces; and the label."""

Parts = Mapping[str, Sequence[Row]]
"""The rows of each file, or of each split."""


@dataclass(frozen=True, eq=False)
class SentenceSplit:
    """Sentences or pairs with labels.

    Attributes:
        tokens: (total,) int32, ids of all sentences end to end.
        ends: (M * sentences,) int64, where each ends.
        labels: (M,) int64.
        sentences: in a sample, 1 or 2.
        max_length: longer sentences are cut to it, or both together where they are joined.
        separator: the id between two sentences that are joined; None leaves them two.
    """

    tokens: Array
    ends: Array
    labels: Array
    sentences: int
    max_length: int
    separator: int | None = None

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.labels.values)

    def __getitem__(self, index: int) -> tuple[Tensor | tuple[Tensor, ...], int]:
        """The token ids (N,) int64, of a pair two of them, and the label."""
        index = range(len(self))[index]
        parts = tuple(torch.from_numpy(ids.astype(np.int64)) for ids in self.sample(index))
        return (parts if len(parts) > 1 else parts[0]), int(self.labels.values[index])

    def sample(self, index: int) -> tuple[Ids, ...]:
        """Token ids of each of the sequences of a sample."""
        first = index * self.sentences
        parts = [self._sentence(position) for position in range(first, first + self.sentences)]
        if self.separator is not None:
            middle = np.array([self.separator], dtype=np.int32)
            parts = [np.concatenate((parts[0], middle, parts[1]))]
        return tuple(part[: self.max_length] for part in parts)

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample, (M,); of a pair, of its longer sentence."""
        each = np.diff(self.ends.values, prepend=0).reshape(-1, self.sentences)
        joined = each.sum(axis=1) + 1 if self.separator is not None else each.max(axis=1)
        lengths: NDArray[np.int64] = np.minimum(joined, self.max_length)
        return lengths

    def digest(self) -> bytes:
        """Hash of all token ids and labels, in order."""
        total = hashlib.blake2b(self.labels.values.astype("<i8").tobytes(), digest_size=16)
        for index in range(len(self)):
            for ids in self.sample(index):
                total.update(len(ids).to_bytes(4, "little") + ids.astype("<i4").tobytes())
        return total.digest()

    def _sentence(self, position: int) -> Ids:
        start = int(self.ends.values[position - 1]) if position else 0
        ids: Ids = self.tokens.values[start : int(self.ends.values[position])]
        return ids


class SentenceTask(FileTask):
    """Labelled sentences, or pairs of them; a subclass gives `sets`, `read` and `num_classes`.

    Attributes:
        split_note: where the validation split comes from.
        folders: folders of the data folder, one of which holds the files.
        endings: what may follow the names of the files.
        subwords: most ids on level "subword" where option vocab_size does not say.
    """

    split_note: str
    subwords: int
    folders: Sequence[str] = (".",)
    endings: Sequence[str] = ("",)

    @abstractmethod
    def sets(self, options: Options) -> Sequence[Mapping[str, str | Sequence[str]]]:
        """The file of each part, in each of the forms in which people have them."""

    @abstractmethod
    def read(self, path: Path, options: Options) -> Iterator[Row]:
        """The samples of a file."""

    @abstractmethod
    def num_classes(self, options: Options) -> int:
        """Labels are 0 to num_classes - 1."""

    def parts(self, rows: Parts, options: Options) -> Parts:
        """The splits from the rows of the files."""
        return rows

    def plain(self, sentence: str) -> str:
        """A sentence as levels "word" and "byte" read it."""
        return sentence

    def note(self, options: Options) -> str:
        """Where the validation split comes from."""
        return self.split_note

    def check(self, options: Options) -> None:
        """Check the level, the sizes and `joined`."""
        check_choice("level", options["level"], LEVELS)
        check_integer(options, "max_length", 1)
        if options.get("vocab_size") is not None:
            least = LEAST_SUBWORDS if options["level"] == "subword" else RESERVED + 1
            check_integer(options, "vocab_size", least)
        if not isinstance(options.get("joined", False), bool):
            raise bad_argument("joined", "true or false", repr(options["joined"]))

    def key(self, options: Options) -> tuple[object, ...]:
        """All options but those that are read from the tokens."""
        shapes = [value for name, value in options.items() if name not in ("max_length", "joined")]
        return (shapes,)

    def forms(self, options: Options) -> Sequence[Form]:
        """The sets of files."""
        read = partial(self._decode, options)
        return [
            Form("{train} and its companions", files, read, self.folders, self.endings)
            for files in self.sets(options)
        ]

    def _decode(self, options: Options, paths: Paths, progress: Progress) -> Arrays:
        rows = {}
        for done, (part, path) in enumerate(paths.items()):
            progress(f"reading {self.card.title}", done, len(paths))
            rows[part] = list(self.read(path, options))
            if not rows[part]:
                raise damaged(path, "it holds no samples")
        parts, level, size = self.parts(rows, options), options["level"], options.get("vocab_size")
        if level == "subword":
            return encode_rows(parts, level, size or self.subwords)
        plain = {
            name: [(tuple(map(self.plain, sentences)), label) for sentences, label in part]
            for name, part in parts.items()
        }
        return encode_rows(plain, level, size)

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """The task over tokens."""
        joined = bool(request.options.get("joined", False))
        max_length = int(request.options["max_length"])
        sentences = len(arrays["train_ends"].values) // len(arrays["train_labels"].values)
        words = int(arrays["vocab_size"].values[0])
        splits = {
            name: SentenceSplit(
                tokens=arrays[f"{name}_tokens"],
                ends=arrays[f"{name}_ends"],
                labels=arrays[f"{name}_labels"],
                sentences=sentences,
                max_length=max_length,
                separator=words if joined else None,
            )
            for name in SPLITS
        }
        return Task(
            name=self.card.name,
            options=dict(request.options),
            input_kind="tokens",
            vocab_size=words + joined,
            num_features=None,
            num_classes=self.num_classes(request.options),
            max_length=max_length,
            padding=True,
            split_note=self.note(request.options),
            data_source=source.description,
            splits=splits,
            num_sequences=1 if joined else sentences,
        )


def encode_rows(parts: Parts, level: str, vocab_size: int | None = None) -> Arrays:
    """Token ids, ends and labels of every split, and "vocab_size".

    Args:
        parts: samples of "train", "validation" and "test".
        level: "word", ids by frequency in the training samples; "subword", see `Subwords`; or
            "byte", byte b as b + 1.
        vocab_size: most ids; None, of words, for as many as there are.

    Raises:
        InputError: an unknown level, or the tokenizers library is missing.
    """
    check_choice("level", level, LEVELS)
    encode, size = _encoder([s for row in parts["train"] for s in row[0]], level, vocab_size)
    arrays: Arrays = {"vocab_size": np.array([size])}
    for name in SPLITS:
        ids = [encode(sentence) for row in parts[name] for sentence in row[0]]
        arrays[f"{name}_tokens"] = np.concatenate([np.zeros(0, np.int32), *ids])
        arrays[f"{name}_ends"] = np.cumsum([len(sentence) for sentence in ids], dtype=np.int64)
        arrays[f"{name}_labels"] = np.array([row[1] for row in parts[name]], dtype=np.int64)
    return arrays


def plain_words(sentence: str) -> str:
    """A sentence in lower case, its words and signs parted by spaces."""
    return " ".join(_WORDS.findall(sentence.lower()))


def word_ids(texts: Iterable[Iterable[str]], vocab_size: int | None = None) -> dict[str, int]:
    """Ids by falling frequency in the texts' words, then by the alphabet.

    Args:
        texts: words of each.
        vocab_size: ids at most, the reserved ones among them; as many as there are if None.
    """
    counts = Counter(word for words in texts for word in words)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    room = None if vocab_size is None else vocab_size - RESERVED
    return {word: index for index, word in enumerate(words[:room], start=RESERVED)}


def words_to_ids(words: Iterable[str], table: Mapping[str, int]) -> Ids:
    """Ids (N,) of words; 1 for those that `table` does not know."""
    return np.array([table.get(word, RESERVED - 1) for word in words], dtype=np.int32)


def _encoder(
    trained: Sequence[str], level: str, vocab_size: int | None
) -> tuple[Callable[[str], Ids], int]:
    """The function from a sentence to its ids, and how many ids there are."""
    if level == "word":
        table = word_ids((sentence.split() for sentence in trained), vocab_size)
        return lambda sentence: words_to_ids(sentence.split(), table), len(table) + RESERVED
    if level == "subword":
        if vocab_size is None:
            raise bad_argument("vocab_size", "a number with level subword", "None")
        subwords = Subwords(trained, vocab_size)
        return subwords.encode, len(subwords)
    return _byte_ids, _PAD_AND_BYTES


def _byte_ids(sentence: str) -> Ids:
    return np.frombuffer(sentence.encode(), dtype=np.uint8).astype(np.int32) + 1
