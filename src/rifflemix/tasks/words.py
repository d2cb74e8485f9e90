"""Labelled sentences, or pairs of them, as ids of words or bytes."""

from __future__ import annotations

import hashlib
import lzma
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import check_choice
from rifflemix.tasks.base import SPLITS, Request, Task, TaskCard, check_integer
from rifflemix.tasks.files import damaged, reading

LEVELS = ("word", "byte")
RESERVED = 2
"""Ids below those of words: 0 is padding, 1 an unknown word."""

_PAD_AND_BYTES = 257

Ids = NDArray[np.int32]
Row = tuple[tuple[str, ...], int]
"""The sentences of a sample, one or two, their words parted by spaces; and the label."""


@dataclass(frozen=True, eq=False)
class SentenceSplit:
    """Sentences or pairs with labels.

    Attributes:
        samples: token ids of each sample's sentences.
        labels: (M,) int64.
    """

    samples: tuple[tuple[Ids, ...], ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor | tuple[Tensor, ...], int]:
        """The token ids (N,) int64, of a pair two of them, and the label."""
        parts = tuple(torch.from_numpy(ids.astype(np.int64)) for ids in self.samples[index])
        return (parts if len(parts) > 1 else parts[0]), int(self.labels[index])

    def digest(self) -> bytes:
        """Hash of all token ids and labels, in order."""
        total = hashlib.blake2b(self.labels.tobytes(), digest_size=16)
        for sample in self.samples:
            for ids in sample:
                total.update(len(ids).to_bytes(4, "little") + ids.tobytes())
        return total.digest()


def sentence_task(
    card: TaskCard,
    request: Request,
    parts: Mapping[str, Sequence[Row]],
    *,
    num_classes: int,
    data_source: str,
    split_note: str,
) -> Task:
    """A task over sentences; options "level" and "max_length" are read here.

    Args:
        card: of the task.
        request: what was asked for.
        parts: samples of "train", "validation" and "test".
        num_classes: labels are 0 to num_classes - 1.
        data_source: where the sentences come from.
        split_note: where the validation split comes from.

    Raises:
        InputError: an option out of range.
    """
    check_choice("level", request.options["level"], LEVELS)
    max_length = check_integer(request.options, "max_length", 1)
    by_word = request.options["level"] == "word"
    trained = (sentence.split() for row in parts["train"] for sentence in row[0])
    table = word_ids(trained) if by_word else None
    splits = {
        name: SentenceSplit(
            tuple(tuple(_ids(s, table)[:max_length] for s in row[0]) for row in parts[name]),
            np.array([row[1] for row in parts[name]], dtype=np.int64),
        )
        for name in SPLITS
    }
    return Task(
        name=card.name,
        options=dict(request.options),
        input_kind="tokens",
        vocab_size=_PAD_AND_BYTES if table is None else len(table) + RESERVED,
        num_features=None,
        num_classes=num_classes,
        max_length=max_length,
        padding=True,
        split_note=split_note,
        data_source=data_source,
        splits=splits,
        num_sequences=len(parts["train"][0][0]),
    )


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
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        lines = content.decode("utf-8").split("\n")
    yield from ((number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip())


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
