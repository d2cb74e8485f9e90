"""Natural language inference on SNLI, MultiNLI and SICK: does one sentence follow another?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from rifflemix.errors import InputError, check_choice
from rifflemix.json_values import parse_json
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.core.builder import content_order
from rifflemix.lab.tasks.core.card import TaskCard
from rifflemix.lab.tasks.data_io.file_task import Options
from rifflemix.lab.tasks.data_io.files import damaged, reading
from rifflemix.lab.tasks.data_io.safe_readers import read_text_lines
from rifflemix.lab.tasks.text.encoder import LEVELS
from rifflemix.lab.tasks.text.words import (
    JOINED,
    SUBWORDS,
    Parts,
    Row,
    SentenceTask,
    sentence_shapes,
)

_CLASSES = ("entailment", "neutral", "contradiction")
_NO_MAJORITY = "-"
_OPTIONS = {"level": "word", "vocab_size": None, "max_length": 64, "joined": False}
_TOKENS = (
    "Lower-cased, and split into words and punctuation. Pairs without a gold label are left out. "
    "level word: ids by frequency in the training split, at most vocab_size; byte: byte b is "
    "b + 1. " + SUBWORDS.format("vocab_size, 32,768 if unset")
)
# The length of the longest pair in a batch is a guess.
_SHAPES = partial(
    sentence_shapes,
    classes=len(_CLASSES),
    longest=dict.fromkeys(LEVELS, 55),
    subwords=2**15,
    sentences=2,
)
# Validation gets 1 in 40 MultiNLI training pairs, about the size of a development set.
_HELD_OUT = 40


class SNLI(SentenceTask):
    """Stanford corpus: photo captions and hypotheses about them."""

    card = TaskCard(
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
        shapes=_SHAPES,
    )
    files: ClassVar[Mapping[str, str]] = {
        "train": "snli_1.0_train.jsonl",
        "validation": "snli_1.0_dev.jsonl",
        "test": "snli_1.0_test.jsonl",
    }
    folders = (".", "snli_1.0")
    endings = ("", ".xz")
    get_it = "snli_1.0_{train,dev,test}.jsonl from https://nlp.stanford.edu/projects/snli"
    split_note = "validation is the published development split"
    subwords = 2**15
    rule = "plain"

    def classes(self, options: Options) -> tuple[str, ...]:
        return _CLASSES

    def sets(self, options: Options) -> Sequence[Mapping[str, str]]:
        return (self.files,)

    def read(self, path: Path, options: Options) -> Iterator[Row]:
        """Read lines of JSON. Skip pairs without an agreed label."""
        for number, line in read_text_lines(path):
            with reading(path):
                row = parse_json(line)
            label, first, second = (
                _field(row, n) for n in ("gold_label", "sentence1", "sentence2")
            )
            if label == _NO_MAJORITY:
                continue
            if label not in _CLASSES or not first.strip() or not second.strip():
                raise damaged(path, f"line {number} needs two sentences and a gold_label")
            yield (first, second), _CLASSES.index(label)


class MultiNLI(SNLI):
    """Multi-genre corpus.

    The test labels are unpublished, so the development sets are the test split.
    """

    card = TaskCard(
        name="mnli",
        title="MultiNLI",
        source="Williams et al., A Broad-Coverage Challenge Corpus for Sentence Understanding "
        "through Inference (2018)",
        licence="OANC, CC BY-SA 3.0, CC BY 3.0 and public domain, by genre",
        description=(
            "392,702 pairs of sentences of five genres. One in 40 is for validation. test_on "
            "selects the test pairs: dev_matched (9,815 of the same genres), dev_mismatched "
            "(9,832 of other genres) or both. " + _TOKENS + JOINED
        ),
        needs_data=True,
        options={**_OPTIONS, "test_on": "both"},
        shapes=_SHAPES,
    )
    files: ClassVar[Mapping[str, str]] = {
        "train": "multinli_1.0_train.jsonl",
        "matched": "multinli_1.0_dev_matched.jsonl",
        "mismatched": "multinli_1.0_dev_mismatched.jsonl",
    }
    folders = (".", "multinli_1.0")
    get_it = (
        "multinli_1.0_{train,dev_matched,dev_mismatched}.jsonl from "
        "https://cims.nyu.edu/~sbowman/multinli"
    )
    split_note = (
        "validation is one in 40 of the training pairs, fixed by a hash of their content; the "
        "published development pairs are the test"
    )

    def check(self, options: Options) -> None:
        check_choice("test_on", options["test_on"], ("both", "matched", "mismatched"))
        super().check(options)

    def parts(self, rows: Parts, options: Options) -> Parts:
        """Hold out training pairs for validation.

        The development sets are the test split.

        Raises:
            InputError: There is only one training pair.
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


def _field(row: object, name: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    return value if isinstance(value, str) else ""


_SICK_CLASSES = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")
_COLUMNS = ("sentence_A", "sentence_B", "entailment_judgment")
_SETS = tuple(
    dict(zip(SPLITS, names, strict=True))
    for names in (
        ("sick.train.tsv.xz", "sick.trial.tsv.xz", "sick.test.tsv.xz"),
        ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"),
    )
)


class Sick(SentenceTask):
    """Sentences Involving Compositional Knowledge, a smaller alternative to SNLI and MultiNLI."""

    card = TaskCard(
        name="sick",
        title="SICK",
        source="Marelli et al., SemEval-2014 Task 1",
        licence="CC BY-NC-SA 3.0",
        description=(
            "4,500 / 500 / 4,927 pairs of sentences: the first entails the second, contradicts "
            "it, or neither. Lower-cased, and split into words and punctuation. level word: ids by "
            "frequency in the training split; byte: byte b is b + 1. "
            + SUBWORDS.format("8,192")
            + JOINED
        ),
        needs_data=True,
        options={"level": "word", "max_length": 64, "joined": False},
        shapes=partial(
            sentence_shapes,
            classes=len(_SICK_CLASSES),
            longest={"word": 43, "byte": 43, "subword": 25},
            mean_length=dict.fromkeys(LEVELS, 21),
            words=2_177,
            subwords=4_346,
            sentences=2,
        ),
    )

    get_it = "SICK_{train,trial,test_annotated}.txt from https://alt.qcri.org/semeval2014/task1"
    split_note = "validation is the published trial split"
    subwords = 2**13
    rule = "plain"

    def classes(self, options: Options) -> tuple[str, ...]:
        return _SICK_CLASSES

    def sets(self, options: Options) -> Sequence[Mapping[str, str]]:
        """Return the compressed files with rifflemix names, or the original files."""
        return _SETS

    def read(self, path: Path, options: Options) -> Iterator[Row]:
        """Read a table with column names in the first line."""
        lines = read_text_lines(path)
        header = next(lines, (0, ""))[1].split("\t")
        if not set(_COLUMNS) <= set(header):
            raise damaged(path, f"its first line does not name the columns {', '.join(_COLUMNS)}")
        positions = [header.index(name) for name in _COLUMNS]
        for number, line in lines:
            fields = line.split("\t")
            if len(fields) != len(header) or fields[positions[2]] not in _SICK_CLASSES:
                raise damaged(path, f"line {number} needs two sentences and a judgment")
            first, second, judgment = (fields[position] for position in positions)
            yield (first, second), _SICK_CLASSES.index(judgment)
