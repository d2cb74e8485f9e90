"""Passage retrieval: are two passages from the same paper? A smaller variant of Retrieval."""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import SPLITS, Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer, content_order
from rifflemix.lab.tasks.core.card import TaskCard
from rifflemix.lab.tasks.data_io.file_task import Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source, check_ids, source_folder
from rifflemix.lab.tasks.data_io.splits import RaggedRows, ragged_rows
from rifflemix.lab.tasks.text.encoder import (
    RESERVED,
    TextEncoder,
    TextInputs,
    content_words,
    count_words,
)
from rifflemix.lab.tasks.text.retrieval import Retrieval

_COUNTS = {"num_train": 32_000, "num_validation": 2_000, "num_test": 2_000}
# Papers that share a fifth of their 8-word runs are drafts of each other or reuse text. Only one
# run in 16 is compared. Runs in more than 20 papers, such as copyright notices, are ignored.
_RUN, _ONE_IN, _MANY, _SHARE = 8, 16, 20, 0.2

Words = Sequence[str]


class Passages(Retrieval):
    """Pairs of passages, one token per word."""

    takes_seed = True
    card = TaskCard(
        name="passages",
        title="Passages",
        source="papers of the ACL Anthology, as task retrieval has them; paired here",
        licence="CC BY (ACL Anthology)",
        description=(
            "Pairs of passages of max_length words. Label 1: both passages are from one paper and "
            "do not overlap (half of the pairs). Words are in lower case and have at least three "
            "letters. The skip_common most frequent words of the training papers are left out. "
            "The other words have ids from 2 on by their frequency in the training papers, and "
            "unknown words have the id 1. One paper in ten is for validation, and one in ten for "
            "the test. Papers that share a fifth of their text are in the same split, and never a "
            "pair with label 0. The files are those of task retrieval, without its own pairs."
        ),
        needs_data=True,
        options={"max_length": 128, "vocab_size": 4096, "skip_common": 150, **_COUNTS},
    )

    def check(self, options: Options) -> None:
        check_integer(options, "vocab_size", RESERVED + 1)
        check_integer(options, "skip_common", 0)
        for name in ("max_length", *_COUNTS):
            check_integer(options, name, 1)

    def key(self, options: Options) -> tuple[object, ...]:
        return (*(options[name] for name in ("vocab_size", "skip_common")), "encoder")

    def forms(self, options: Options) -> Sequence[Form]:
        """Use the files of task retrieval, and encode words instead of bytes."""

        def words_of(form: Form) -> Form:
            def read(paths: Paths, progress: Progress) -> Arrays:
                arrays = form.read(paths, progress)
                papers = list(ragged_rows({name: Array(arrays[name]) for name in arrays}))
                progress("counting words", 0, None)
                return encode_papers(papers, options["vocab_size"], options["skip_common"])

            return replace(form, read=read)

        return [words_of(form) for form in super().forms(options)]

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """Draw the pairs and create the task."""
        max_length = int(request.options["max_length"])
        num_ids = int(arrays["vocab_size"].values[0])
        splits = {}
        for number, name in enumerate(SPLITS):
            papers = ragged_rows(arrays, f"{name}_")
            folder = source_folder(self.card, source)
            check_ids(folder, f"{name} words", papers.tokens.values, num_ids)
            random = np.random.default_rng((request.seed, number))
            splits[name] = _draw(papers, name, request.options[f"num_{name}"], max_length, random)
        return Task(
            name=self.card.name,
            options={**request.options, **({"seed": request.seed} if request.seed else {})},
            input_kind="tokens",
            vocab_size=num_ids,
            num_features=None,
            num_classes=2,
            max_length=max_length,
            padding=False,
            split_note="papers are split by a hash of their text, those that share text together",
            data_source=source.description,
            splits=splits,
            num_sequences=2,
            inputs=TextInputs(
                TextEncoder.from_arrays("word", "content", arrays),
                max_length,
                fixed=True,
                texts=2,
            ),
            classes=("different papers", "one paper"),
        )


@dataclass(frozen=True, eq=False)
class PassageSplit:
    """Pairs of passages.

    Attributes:
        papers: Papers as word ids.
        chosen: (M, 2) paper of each passage.
        starts: (M, 2) start of each passage in its paper.
        labels: (M,) 1 if both passages are from one paper, else 0.
        max_length: Words per passage.
    """

    papers: RaggedRows
    chosen: NDArray[np.int64]
    starts: NDArray[np.int64]
    labels: NDArray[np.int64]
    max_length: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], int]:
        """Return the ids of both passages, (max_length,) int64 each, and the label."""
        first, second = (torch.from_numpy(ids.astype(np.int64)) for ids in self._pair(index))
        return (first, second), int(self.labels[index])

    def digest(self) -> bytes:
        """Hash all passages and labels, in order."""
        total = hashlib.blake2b(self.labels.astype("<i8").tobytes(), digest_size=16)
        for index in range(len(self)):
            for ids in self._pair(index):
                total.update(ids.astype("<i4").tobytes())
        return total.digest()

    def _pair(self, index: int) -> Iterable[NDArray[np.int32 | np.uint8]]:
        for paper, start in zip(self.chosen[index], self.starts[index], strict=True):
            yield self.papers.row(int(paper))[start : start + self.max_length]


def encode_papers(papers: Sequence[bytes], vocab_size: int, skip_common: int) -> Arrays:
    """Encode papers as word ids and divide them into splits.

    Args:
        papers: Distinct UTF-8 texts.
        vocab_size: Maximum number of ids, including the unknown word and the unused padding id.
        skip_common: Number of most frequent training words to skip.

    Returns:
        "tokens", "ends" and "labels" of each split in the format of `RaggedRows`, the number of ids
        in use as "vocab_size", and the arrays of `TextEncoder.to_arrays`. The label of a paper is
        its family, see `families`.
    """
    texts = [_words_of(paper) for paper in papers]
    family = families(texts)
    parts = _split(content_order(papers, "passages: split"), family)
    trained = (" ".join(texts[paper]) for paper in parts["train"])
    words = count_words(trained, vocab_size + skip_common)
    encoder = TextEncoder(
        "word", "content", tuple(words[skip_common:]), skipped=tuple(words[:skip_common])
    )
    arrays: Arrays = {"vocab_size": np.array([len(encoder)]), **encoder.to_arrays()}
    for name, members in parts.items():
        ids = [encoder.word_ids(texts[paper]) for paper in members]
        arrays[f"{name}_tokens"] = np.concatenate([np.zeros(0, np.int32), *ids])
        arrays[f"{name}_ends"] = np.cumsum([len(paper) for paper in ids], dtype=np.int64)
        arrays[f"{name}_labels"] = family[members]
    return arrays


def families(papers: Sequence[Words]) -> NDArray[np.int64]:
    """Assign papers that share a fifth of their text to one family.

    Two copies or versions of a paper in training and test would reveal the answer to a model.
    """
    marks = [_marks(paper) for paper in papers]
    holders = defaultdict(list)
    for paper, mark in enumerate(marks):
        for run in mark:
            holders[run].append(paper)
    few = (held for held in holders.values() if len(held) <= _MANY)
    shared = Counter(chain.from_iterable(combinations(held, 2) for held in few))
    head = list(range(len(papers)))

    def find(paper: int) -> int:
        while head[paper] != paper:
            paper = head[paper]
        return paper

    for (first, second), count in shared.items():
        if count >= _SHARE * min(len(marks[first]), len(marks[second])):
            head[find(second)] = find(first)
    return np.array([find(paper) for paper in range(len(papers))], dtype=np.int64)


def _marks(paper: Words) -> set[int]:
    """Return checksums of sampled word runs.

    Sampling depends on the checksum only, so two papers sample the same common runs.
    """
    runs = (" ".join(paper[start : start + _RUN]) for start in range(len(paper) - _RUN + 1))
    return {mark for run in runs if (mark := zlib.crc32(run.encode())) % _ONE_IN == 0}


def _words_of(paper: bytes) -> list[str]:
    words = content_words(paper.decode("utf-8", errors="replace")).split()
    return list(map(sys.intern, words))


def _split(order: NDArray[np.int64], family: NDArray[np.int64]) -> dict[str, list[int]]:
    """Divide families into splits.

    Validation and test get about a tenth of the papers each.
    """
    members = defaultdict(list)
    for paper in order.tolist():
        members[int(family[paper])].append(paper)
    parts: dict[str, list[int]] = {name: [] for name in SPLITS}
    tenth = len(order) // 10
    for papers in members.values():
        name = next((n for n in ("validation", "test") if len(parts[n]) < tenth), "train")
        parts[name] += papers
    return parts


def _draw(
    papers: RaggedRows, split: str, count: int, max_length: int, random: np.random.Generator
) -> PassageSplit:
    """Draw pairs of passages from the papers of a split.

    Raises:
        InputError: Fewer than two unrelated papers are long enough for two passages.
    """
    lengths = np.diff(papers.ends.values, prepend=0)
    long = np.flatnonzero(lengths >= 2 * max_length)
    family = np.asarray(papers.labels.values)
    if len(np.unique(family[long])) < 2:
        raise InputError(
            f"task passages: expected at least 2 {split} papers of {2 * max_length} words that "
            f"share no text, got {len(np.unique(family[long]))}; choose a smaller max_length"
        )
    labels = random.integers(2, size=count)
    chosen = random.choice(long, (count, 2))
    chosen[labels == 1, 1] = chosen[labels == 1, 0]
    while (alike := (labels == 0) & (family[chosen[:, 0]] == family[chosen[:, 1]])).any():
        chosen[alike, 1] = random.choice(long, int(alike.sum()))
    room = lengths[chosen] - max_length
    starts = random.integers(room + 1)
    # Draw two sorted starts in the room left by both passages. Shift the second one behind the
    # first passage, so that the passages do not overlap. Then shuffle the order of the pair.
    within = np.sort(random.integers(room[:, :1] - max_length + 1, size=(count, 2)), axis=1)
    within[:, 1] += max_length
    within = random.permuted(within, axis=1)
    starts[labels == 1] = within[labels == 1]
    return PassageSplit(papers, chosen, starts, labels, max_length)
