"""Labeled sentences or pairs of sentences, as ids of words, subwords or bytes."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import BYTE_IDS, Shapes, known_ids
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, damaged
from rifflemix.lab.tasks.text.encoder import (
    LEAST_SUBWORDS,
    LEVELS,
    RESERVED,
    Ids,
    TextEncoder,
    TextInputs,
    learn_encoder,
)

_STORED_WITH = "encoder"
"""Part of the keys of caches: older caches have no words."""

SUBWORDS = "level subword: cased byte pairs of the training split, at most {}, and an end token. "
"""Card text for level "subword"."""

JOINED = (
    "joined: both sentences in one sequence of at most max_length tokens, with a separator token. "
    "Without joined: a pair of sequences of at most max_length tokens each."
)
"""Card text for option "joined"."""

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
        inputs: Sentences per sample, and how their ids become sequences.
    """

    tokens: Array
    ends: Array
    labels: Array
    inputs: TextInputs

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
        first = index * self.inputs.texts
        each = range(first, first + self.inputs.texts)
        return self.inputs.sequences([self._sentence(position) for position in each])

    def lengths(self) -> NDArray[np.int64]:
        """Return the length of each sample, (M,).

        For a separate pair, the longer sentence counts.
        """
        each = np.diff(self.ends.values, prepend=0).reshape(-1, self.inputs.texts)
        is_joined = self.inputs.separator is not None
        joined = each.sum(axis=1) + 1 if is_joined else each.max(axis=1)
        return np.minimum(joined, self.inputs.max_length)

    def digest(self) -> bytes:
        """Hash all token ids and labels, in order."""
        total = hashlib.blake2b(self.labels.values.astype("<i8").tobytes(), digest_size=16)
        for index in range(len(self)):
            for ids in self.sample(index):
                total.update(len(ids).to_bytes(4, "little") + ids.astype("<i4").tobytes())
        return total.digest()

    def _sentence(self, position: int) -> Ids:
        start = int(self.ends.values[position - 1]) if position else 0
        return self.tokens.values[start : int(self.ends.values[position])]


def sentence_shapes(
    options: Options,
    *,
    classes: int,
    longest: Mapping[str, int],
    words: int | None = None,
    subwords: int | None = None,
    mean_length: Mapping[str, int] = MappingProxyType({}),
    sentences: int = 1,
) -> Shapes:
    """Return the shapes of labeled sentences or pairs.

    Args:
        options: Resolved options.
        classes: Number of classes.
        longest: Level -> value of `Shapes.longest`.
        words: Number of ids of level "word", if the option `vocab_size` does not set it.
        subwords: Number of ids of level "subword", if the option `vocab_size` does not set it.
        mean_length: Level -> value of `Shapes.mean_length`.
        sentences: Sentences per sample.
    """
    level = str(options["level"])
    size = options.get("vocab_size") or {"word": words, "subword": subwords}.get(level)
    ids = BYTE_IDS if level == "byte" else known_ids(size, level)
    is_joined = bool(options.get("joined"))
    return Shapes(
        input_kind="tokens",
        num_classes=classes,
        max_length=int(options["max_length"]),
        vocab_size=ids + is_joined,
        padding=True,
        num_sequences=1 if is_joined else sentences,
        longest=longest.get(level),
        mean_length=mean_length.get(level),
    )


class SentenceTask(FileTask):
    """Task on labeled sentences or pairs.

    A subclass defines `sets`, `read` and `classes`.

    Attributes:
        split_note: Origin of the validation split.
        rule: Preparation of a sentence for levels "word" and "byte", one of `RULES`.
        folders: Folders to search, relative to the data folder. One folder contains all files.
        endings: Possible suffixes of the file names.
        subwords: Default vocabulary size for level "subword".
    """

    split_note: str
    subwords: int
    rule: str = "none"
    folders: Sequence[str] = (".",)
    endings: Sequence[str] = ("",)

    @abstractmethod
    def sets(self, options: Options) -> Sequence[Mapping[str, str | Sequence[str]]]:
        """Return the file of each part, for each supported naming."""

    @abstractmethod
    def read(self, path: Path, options: Options) -> Iterator[Row]:
        """Read the samples of a file."""

    @abstractmethod
    def classes(self, options: Options) -> tuple[str, ...]:
        """Return the names of the classes."""

    def parts(self, rows: Parts, options: Options) -> Parts:
        """Derive the splits from the rows of the files."""
        return rows

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
        return (shapes,) if options["level"] == "byte" else (shapes, _STORED_WITH)

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
                raise damaged(path, "no samples")
        level, size = options["level"], options.get("vocab_size")
        if level == "subword":
            return encode_rows(self.parts(rows, options), level, size or self.subwords)
        return encode_rows(self.parts(rows, options), level, size, self.rule)

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """Create the task from the encoded tokens."""
        joined = bool(request.options.get("joined", False))
        max_length = int(request.options["max_length"])
        sentences = len(arrays["train_ends"].values) // len(arrays["train_labels"].values)
        level, words = str(request.options["level"]), int(arrays["vocab_size"].values[0])
        inputs = TextInputs(
            TextEncoder.from_arrays(level, "none" if level == "subword" else self.rule, arrays),
            max_length,
            texts=sentences,
            separator=words if joined else None,
        )
        splits = {
            name: SentenceSplit(
                arrays[f"{name}_tokens"], arrays[f"{name}_ends"], arrays[f"{name}_labels"], inputs
            )
            for name in SPLITS
        }
        classes = self.classes(request.options)
        return Task(
            name=self.card.name,
            options=dict(request.options),
            input_kind="tokens",
            vocab_size=words + joined,
            num_features=None,
            num_classes=len(classes),
            max_length=max_length,
            padding=True,
            split_note=self.note(request.options),
            data_source=source.description,
            splits=splits,
            num_sequences=1 if joined else sentences,
            inputs=inputs,
            classes=classes,
        )


def encode_rows(
    parts: Parts, level: str, vocab_size: int | None = None, rule: str = "none"
) -> Arrays:
    """Encode every split: token ids, ends and labels, "vocab_size" and the encoder.

    Args:
        parts: Samples of "train", "validation" and "test".
        level: See `TextEncoder`. Words and subwords come from the training samples.
        vocab_size: Maximum number of ids. None keeps all words.
        rule: Preparation of a sentence.

    Raises:
        InputError: Unknown level, or the tokenizers library is missing.
    """
    trained = [sentence for row in parts["train"] for sentence in row[0]]
    encoder = learn_encoder(trained, level, rule, vocab_size)
    arrays: Arrays = {"vocab_size": np.array([len(encoder)]), **encoder.to_arrays()}
    for name in SPLITS:
        ids = [encoder.ids(sentence) for row in parts[name] for sentence in row[0]]
        arrays[f"{name}_tokens"] = np.concatenate([np.zeros(0, np.int32), *ids])
        arrays[f"{name}_ends"] = np.cumsum([len(sentence) for sentence in ids], dtype=np.int64)
        arrays[f"{name}_labels"] = np.array([row[1] for row in parts[name]], dtype=np.int64)
    return arrays
