"""Labeled sentences or pairs of sentences, as ids of words, subwords or bytes."""

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
"""Card text for level "subword"."""

JOINED = (
    "joined: the two sentences as one sequence of at most max_length tokens, a token of its own "
    "between them; else a pair, each of at most max_length."
)
"""Card text for option "joined"."""

_PAD_AND_BYTES = 257
_WORDS = re.compile(r"\w+|[^\w\s]")

Ids = NDArray[np.int32]
Row = tuple[tuple[str, ...], int]
"""One or two sentences with words separated by spaces, and the label."""

Parts = Mapping[str, Sequence[Row]]
"""Rows of each file or split."""


@dataclass(frozen=True, eq=False)
class SentenceSplit:
    """Sentences or pairs of sentences, with labels.

    Attributes:
        tokens: (total,) int32, ids of all sentences end to end.
        ends: (M * sentences,) int64, end of each sentence.
        labels: (M,) int64.
        sentences: Sentences per sample, 1 or 2.
        max_length: Maximum length of a sentence, or of a joined pair. Longer ones are cut.
        separator: Id between two joined sentences. None keeps the sentences separate.
    """

    tokens: Array
    ends: Array
    labels: Array
    sentences: int
    max_length: int
    separator: int | None = None

    def __len__(self) -> int:
        return len(self.labels.values)

    def __getitem__(self, index: int) -> tuple[Tensor | tuple[Tensor, ...], int]:
        """Return the token ids (N,) int64 and the label.

        A separate pair has two id tensors.
        """
        index = range(len(self))[index]
        parts = tuple(torch.from_numpy(ids.astype(np.int64)) for ids in self.sample(index))
        return (parts if len(parts) > 1 else parts[0]), int(self.labels.values[index])

    def sample(self, index: int) -> tuple[Ids, ...]:
        """Return the token ids of each sequence of a sample."""
        first = index * self.sentences
        parts = [self._sentence(position) for position in range(first, first + self.sentences)]
        if self.separator is not None:
            middle = np.array([self.separator], dtype=np.int32)
            parts = [np.concatenate((parts[0], middle, parts[1]))]
        return tuple(part[: self.max_length] for part in parts)

    def lengths(self) -> NDArray[np.int64]:
        """Return the length of each sample, (M,).

        For a separate pair, the longer sentence counts.
        """
        each = np.diff(self.ends.values, prepend=0).reshape(-1, self.sentences)
        joined = each.sum(axis=1) + 1 if self.separator is not None else each.max(axis=1)
        lengths: NDArray[np.int64] = np.minimum(joined, self.max_length)
        return lengths

    def digest(self) -> bytes:
        """Hash all token ids and labels, in order."""
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
    """Task on labeled sentences or pairs.

    A subclass defines `sets`, `read` and `num_classes`.

    Attributes:
        split_note: Origin of the validation split.
        folders: Folders to search, relative to the data folder. One folder contains all files.
        endings: Possible suffixes of the file names.
        subwords: Default vocabulary size for level "subword".
    """

    split_note: str
    subwords: int
    folders: Sequence[str] = (".",)
    endings: Sequence[str] = ("",)

    @abstractmethod
    def sets(self, options: Options) -> Sequence[Mapping[str, str | Sequence[str]]]:
        """Return the file of each part, for each supported naming."""

    @abstractmethod
    def read(self, path: Path, options: Options) -> Iterator[Row]:
        """Read the samples of a file."""

    @abstractmethod
    def num_classes(self, options: Options) -> int:
        """Return the number of classes. Labels are 0 to num_classes - 1."""

    def parts(self, rows: Parts, options: Options) -> Parts:
        """Derive the splits from the rows of the files."""
        return rows

    def plain(self, sentence: str) -> str:
        """Preprocess a sentence for levels "word" and "byte"."""
        return sentence

    def note(self, options: Options) -> str:
        """Describe the origin of the validation split."""
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
        """Return all options that affect the encoded tokens."""
        shapes = [value for name, value in options.items() if name not in ("max_length", "joined")]
        return (shapes,)

    def forms(self, options: Options) -> Sequence[Form]:
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
        """Create the task from the encoded tokens."""
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
    """Encode every split: token ids, ends and labels, and "vocab_size".

    Args:
        parts: Samples of "train", "validation" and "test".
        level: "word" (ids by frequency in the training samples), "subword" (see `Subwords`) or
            "byte" (byte b is id b + 1).
        vocab_size: Maximum number of ids. None keeps all words.

    Raises:
        InputError: Unknown level, or the tokenizers library is missing.
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
    """Convert a sentence to lower-case words and punctuation, separated by spaces."""
    return " ".join(_WORDS.findall(sentence.lower()))


def word_ids(texts: Iterable[Iterable[str]], vocab_size: int | None = None) -> dict[str, int]:
    """Assign ids by decreasing word frequency, then alphabetically.

    Args:
        texts: Words of each text.
        vocab_size: Maximum number of ids, including reserved ids. None keeps all words.
    """
    counts = Counter(word for words in texts for word in words)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    room = None if vocab_size is None else vocab_size - RESERVED
    return {word: index for index, word in enumerate(words[:room], start=RESERVED)}


def words_to_ids(words: Iterable[str], table: Mapping[str, int]) -> Ids:
    """Convert words to ids (N,). Words outside `table` become 1."""
    return np.array([table.get(word, RESERVED - 1) for word in words], dtype=np.int32)


def _encoder(
    trained: Sequence[str], level: str, vocab_size: int | None
) -> tuple[Callable[[str], Ids], int]:
    """Return a function that encodes a sentence, and the number of ids."""
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
