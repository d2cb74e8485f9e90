"""Labelled sentences, or pairs of them, as ids of words or bytes."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import bad_argument, check_choice
from rifflemix.tasks.core.base import SPLITS, Request, Task, TaskCard, check_integer
from rifflemix.tasks.data_io import bounded
from rifflemix.tasks.data_io.files import Array, Arrays, damaged, reading

LEVELS = ("word", "byte")
RESERVED = 2
"""Ids below those of words: 0 is padding, 1 an unknown word."""

JOINED = (
    "joined: the two sentences as one sequence of at most max_length tokens, a token of its own "
    "between them; else a pair, each of at most max_length."
)
"""What the option "joined" of tasks of pairs is, for their cards."""

_PAD_AND_BYTES = 257
_WORDS = re.compile(r"\w+|[^\w\s]")

Ids = NDArray[np.int32]
Row = tuple[tuple[str, ...], int]
"""The sentences of a sample, one or two, their words parted by spaces; and the label."""


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


def sentence_task(
    card: TaskCard,
    request: Request,
    parts: Mapping[str, Sequence[Row]],
    *,
    num_classes: int,
    data_source: str,
    split_note: str,
) -> Task:
    """A task over sentences in memory; see `encode_rows` and `encoded_task`.

    Raises:
        InputError: an option out of range.
    """
    arrays = encode_rows(parts, str(request.options["level"]))
    return encoded_task(
        card,
        request,
        {name: Array(values) for name, values in arrays.items()},
        num_classes=num_classes,
        data_source=data_source,
        split_note=split_note,
    )


def encode_rows(
    parts: Mapping[str, Sequence[Row]], level: str, vocab_size: int | None = None
) -> Arrays:
    """Token ids, ends and labels of every split, and "vocab_size", as `encoded_task` reads them.

    Args:
        parts: samples of "train", "validation" and "test".
        level: "word", ids by frequency in the training samples, or "byte", byte b as b + 1.
        vocab_size: most ids of words; None for as many as there are.

    Raises:
        InputError: an unknown level.
    """
    check_choice("level", level, LEVELS)
    table = None
    if level == "word":
        trained = (sentence.split() for row in parts["train"] for sentence in row[0])
        table = word_ids(trained, vocab_size)
    size = _PAD_AND_BYTES if table is None else len(table) + RESERVED
    arrays: Arrays = {"vocab_size": np.array([size])}
    for name in SPLITS:
        ids = [_ids(sentence, table) for row in parts[name] for sentence in row[0]]
        arrays[f"{name}_tokens"] = np.concatenate([np.zeros(0, np.int32), *ids])
        arrays[f"{name}_ends"] = np.cumsum([len(sentence) for sentence in ids], dtype=np.int64)
        arrays[f"{name}_labels"] = np.array([row[1] for row in parts[name]], dtype=np.int64)
    return arrays


def encoded_task(
    card: TaskCard,
    request: Request,
    arrays: Mapping[str, Array],
    *,
    num_classes: int,
    data_source: str,
    split_note: str,
) -> Task:
    """A task over encoded sentences; options "max_length" and "joined" are read here.

    Args:
        card: of the task.
        request: what was asked for.
        arrays: what `encode_rows` gave.
        num_classes: labels are 0 to num_classes - 1.
        data_source: where the sentences come from.
        split_note: where the validation split comes from.

    Raises:
        InputError: an option out of range.
    """
    max_length = check_integer(request.options, "max_length", 1)
    joined = request.options.get("joined", False)
    if not isinstance(joined, bool):
        raise bad_argument("joined", "true or false", repr(joined))
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
        name=card.name,
        options=dict(request.options),
        input_kind="tokens",
        vocab_size=words + joined,
        num_features=None,
        num_classes=num_classes,
        max_length=max_length,
        padding=True,
        split_note=split_note,
        data_source=data_source,
        splits=splits,
        num_sequences=1 if joined else sentences,
    )


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


def _ids(sentence: str, table: Mapping[str, int] | None) -> Ids:
    if table is None:
        return np.frombuffer(sentence.encode(), dtype=np.uint8).astype(np.int32) + 1
    return words_to_ids(sentence.split(), table)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number, from 1, and text of each line of a UTF-8 file, xz-compressed (.xz) or not."""
    with reading(path):
        for number, line in bounded.read_lines(path):
            text = line.decode("utf-8").rstrip("\r")
            if text.strip():
                yield number, text


def first_set(data_dir: Path, sets: Sequence[Mapping[str, str]]) -> dict[str, Path] | None:
    """Paths by part of the first set of file names of which all are in `data_dir`.

    Raises:
        InputError: there are some of a set, but no set is whole.
    """
    for names in sets:
        paths = {part: data_dir / name for part, name in names.items()}
        if all(path.is_file() for path in paths.values()):
            return paths
    for names in sets:
        paths = {part: data_dir / name for part, name in names.items()}
        present = [path for path in paths.values() if path.is_file()]
        absent = [path for path in paths.values() if not path.is_file()]
        if present:
            raise damaged(absent[0], "the file is missing, its companions are there")
    return None


def checked_rows(path: Path, rows: Iterable[Row]) -> list[Row]:
    """The rows of one file; raises InputError where there is none."""
    found = list(rows)
    if not found:
        raise damaged(path, "it holds no samples")
    return found
