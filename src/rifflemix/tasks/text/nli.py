"""Natural language inference on SNLI and MultiNLI: does one sentence follow from the other?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rifflemix.errors import InputError, check_choice
from rifflemix.files import parse_json
from rifflemix.tasks.core.base import (
    Progress,
    Request,
    Task,
    TaskCard,
    TaskStatus,
    check_integer,
    content_order,
)
from rifflemix.tasks.data_io.files import (
    Arrays,
    Source,
    damaged,
    load_source,
    missing_data,
    reading,
    source_folder,
    source_status,
    stat_key,
)
from rifflemix.tasks.text.words import (
    JOINED,
    RESERVED,
    Row,
    checked_rows,
    encode_rows,
    encoded_task,
    plain_words,
    read_lines,
)

_CLASSES = ("entailment", "neutral", "contradiction")
_NO_MAJORITY = "-"
_OPTIONS = {"level": "word", "vocab_size": None, "max_length": 64, "joined": False}
_TOKENS = (
    "Lower-cased and parted into words and signs; pairs without a gold label are left out. level "
    "word: ids by frequency in the training split, at most vocab_size of them; byte: byte b is "
    "b + 1. "
)
# Of MultiNLI's training pairs one in so many, which makes about as many as either dev set has.
_HELD_OUT = 40

Parts = Mapping[str, list[Row]]


class SNLI:
    """The Stanford corpus: captions of photographs and what follows from them."""

    card: ClassVar[TaskCard] = TaskCard(
        name="snli",
        title="SNLI",
        source="Bowman et al., A large annotated corpus for learning natural language inference "
        "(2015)",
        licence="CC BY-SA 4.0",
        description=(
            "549,367 / 9,842 / 9,824 pairs of sentences: the first entails the second, "
            "contradicts it, or neither. " + _TOKENS + JOINED
        ),
        needs_data=True,
        options=dict(_OPTIONS),
    )
    folder: ClassVar[str] = "snli_1.0"
    files: ClassVar[Mapping[str, str]] = {
        "train": "snli_1.0_train.jsonl",
        "validation": "snli_1.0_dev.jsonl",
        "test": "snli_1.0_test.jsonl",
    }
    home: ClassVar[str] = "https://nlp.stanford.edu/projects/snli"
    split_note: ClassVar[str] = "validation is the published development split"

    def load(self, request: Request) -> Task:
        """The task, its sentences turned into tokens in the cache when first read."""
        check_integer(request.options, "max_length", 1)
        source = self._source(request.data_dir, request.options)
        return encoded_task(
            self.card,
            request,
            load_source(self.card, source, request.progress),
            num_classes=len(_CLASSES),
            data_source=source.description,
            split_note=self.split_note,
        )

    def status(self, data_dir: Path | None) -> TaskStatus:
        """What is found in `data_dir`."""
        found = data_dir is not None and self._find(data_dir) is not None
        source = self._source(data_dir, self.card.options) if found else None
        return source_status(self.card, source, data_dir)

    def prepared(self, request: Request) -> Path:
        """The folder of the tokens."""
        return source_folder(self.card, self._source(request.data_dir, request.options))

    def parts(self, rows: Parts, options: Mapping[str, Any]) -> Parts:
        """The splits from the rows of the files."""
        return rows

    def _source(self, data_dir: Path | None, options: Mapping[str, Any]) -> Source:
        if options["vocab_size"] is not None:
            check_integer(options, "vocab_size", RESERVED + 1)
        paths = None if data_dir is None else self._find(data_dir)
        if paths is None:
            names = list(self.files.values())
            raise missing_data(self.card, data_dir, names, f"{', '.join(names)} from {self.home}")

        def read(progress: Progress) -> Arrays:
            rows = {}
            for done, (part, path) in enumerate(paths.items()):
                progress(f"reading {self.card.title}", done, len(paths))
                rows[part] = checked_rows(path, _read(path))
            parts = self.parts(rows, options)
            return encode_rows(parts, options["level"], options["vocab_size"])

        shape = [value for name, value in options.items() if name not in ("max_length", "joined")]
        return Source(
            f"{paths['train'].name} and its companions", stat_key(paths.values(), shape), read
        )

    def _find(self, data_dir: Path) -> dict[str, Path] | None:
        """The file of each part; None where there is none of any.

        Raises:
            InputError: some files are there and others are not.
        """
        for folder in (data_dir, data_dir / self.folder):
            paths = {part: _there(folder / name) for part, name in self.files.items()}
            absent = [path for path in paths.values() if not path.is_file()]
            if not absent:
                return paths
            if len(absent) < len(paths):
                raise damaged(absent[0], "the file is missing, its companions are there")
        return None


class MultiNLI(SNLI):
    """The multi-genre corpus; its test labels are not published, so its dev sets are the test."""

    card: ClassVar[TaskCard] = TaskCard(
        name="mnli",
        title="MultiNLI",
        source="Williams et al., A Broad-Coverage Challenge Corpus for Sentence Understanding "
        "through Inference (2018)",
        licence="OANC, CC BY-SA 3.0, CC BY 3.0 and public domain, by genre",
        description=(
            "392,702 pairs of sentences of five genres, one in 40 of them kept for validation; "
            "tested on dev_matched (9,815, the same genres), dev_mismatched (9,832, others) or "
            "both (test_on). " + _TOKENS + JOINED
        ),
        needs_data=True,
        options={**_OPTIONS, "test_on": "both"},
    )
    folder: ClassVar[str] = "multinli_1.0"
    files: ClassVar[Mapping[str, str]] = {
        "train": "multinli_1.0_train.jsonl",
        "matched": "multinli_1.0_dev_matched.jsonl",
        "mismatched": "multinli_1.0_dev_mismatched.jsonl",
    }
    home: ClassVar[str] = "https://cims.nyu.edu/~sbowman/multinli"
    split_note: ClassVar[str] = (
        "validation is one in 40 of the training pairs, fixed by a hash of their content; the "
        "published development pairs are the test"
    )

    def load(self, request: Request) -> Task:
        """The task, its sentences turned into tokens in the cache when first read."""
        check_choice("test_on", request.options["test_on"], ("both", "matched", "mismatched"))
        return super().load(request)

    def parts(self, rows: Parts, options: Mapping[str, Any]) -> Parts:
        """The splits: held-out training pairs validate, the dev sets test.

        Raises:
            InputError: a single training pair.
        """
        pairs, chosen = rows["train"], options["test_on"]
        if len(pairs) < 2:
            raise InputError(f"{self.files['train']}: expected at least 2 labelled pairs, got 1")
        order = content_order(["\n".join(row[0]).encode() for row in pairs], "mnli").tolist()
        count = max(1, len(pairs) // _HELD_OUT)
        tested = ("matched", "mismatched") if chosen == "both" else (chosen,)
        return {
            "train": [pairs[index] for index in sorted(order[count:])],
            "validation": [pairs[index] for index in sorted(order[:count])],
            "test": [row for part in tested for row in rows[part]],
        }


def _there(path: Path) -> Path:
    """The file, or its compressed form where only that is there."""
    packed = path.with_name(f"{path.name}.xz")
    return packed if packed.is_file() and not path.is_file() else path


def _read(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path):
        with reading(path):
            row = parse_json(line)
        label, *sentences = (_field(row, name) for name in ("gold_label", "sentence1", "sentence2"))
        if label == _NO_MAJORITY:
            continue
        if label not in _CLASSES or not all(re.search(r"\S", text) for text in sentences):
            raise damaged(path, f"line {number} is no pair of sentences with a gold_label")
        yield (plain_words(sentences[0]), plain_words(sentences[1])), _CLASSES.index(label)


def _field(row: object, name: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    return value if isinstance(value, str) else ""
