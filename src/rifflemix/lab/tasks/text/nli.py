"""Natural language inference on SNLI and MultiNLI: does one sentence follow from the other?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rifflemix.errors import InputError, check_choice
from rifflemix.json_values import parse_json
from rifflemix.lab.tasks.core.base import TaskCard, content_order
from rifflemix.lab.tasks.data_io.bounded import read_text_lines
from rifflemix.lab.tasks.data_io.file_task import Options
from rifflemix.lab.tasks.data_io.files import damaged, reading
from rifflemix.lab.tasks.text.words import JOINED, SUBWORDS, Parts, Row, SentenceTask, plain_words

_CLASSES = ("entailment", "neutral", "contradiction")
_NO_MAJORITY = "-"
_OPTIONS = {"level": "word", "vocab_size": None, "max_length": 64, "joined": False}
_TOKENS = (
    "Lower-cased and parted into words and signs; pairs without a gold label are left out. level "
    "word: ids by frequency in the training split, at most vocab_size of them; byte: byte b is "
    "b + 1. " + SUBWORDS.format("vocab_size, 32,768 if unset")
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

    def plain(self, sentence: str) -> str:
        return plain_words(sentence)

    def num_classes(self, options: Options) -> int:
        """Return 3: entailment, neutral and contradiction."""
        return len(_CLASSES)

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
                raise damaged(path, f"line {number} is no pair of sentences with a gold_label")
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
            "392,702 pairs of sentences of five genres, one in 40 of them kept for validation; "
            "tested on dev_matched (9,815, the same genres), dev_mismatched (9,832, others) or "
            "both (test_on). " + _TOKENS + JOINED
        ),
        needs_data=True,
        options={**_OPTIONS, "test_on": "both"},
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
