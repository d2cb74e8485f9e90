"""Natural language inference on the SICK pairs: does one sentence follow from the other?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from rifflemix.errors import InputError
from rifflemix.tasks.core.base import SPLITS, Request, Task, TaskCard, TaskStatus
from rifflemix.tasks.data_io.files import absent, damaged, missing_data
from rifflemix.tasks.text.words import (
    JOINED,
    Row,
    checked_rows,
    first_set,
    plain_words,
    read_lines,
    sentence_task,
)

_CLASSES = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")
_COLUMNS = ("sentence_A", "sentence_B", "entailment_judgment")
_SETS = tuple(
    dict(zip(SPLITS, names, strict=True))
    for names in (
        ("sick.train.tsv.xz", "sick.trial.tsv.xz", "sick.test.tsv.xz"),
        ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"),
    )
)


class Sick:
    """Sentences Involving Compositional Knowledge, the small relative of SNLI and MultiNLI."""

    card: ClassVar[TaskCard] = TaskCard(
        name="sick",
        title="SICK",
        source="Marelli et al., SemEval-2014 Task 1",
        licence="CC BY-NC-SA 3.0",
        description=(
            "4,500 / 500 / 4,927 pairs of sentences: the first entails the second, contradicts "
            "it, or neither. Lower-cased and parted into words and signs. level word: ids by "
            "frequency in the training split; byte: byte b is b + 1. " + JOINED
        ),
        needs_data=True,
        options={"level": "word", "max_length": 64, "joined": False},
    )

    def load(self, request: Request) -> Task:
        """The task, read from its three tables."""
        paths = None if request.data_dir is None else first_set(request.data_dir, _SETS)
        if paths is None:
            raise self._missing(request.data_dir)
        request.progress("reading SICK", 0, None)
        return sentence_task(
            self.card,
            request,
            {part: checked_rows(path, _read(path)) for part, path in paths.items()},
            num_classes=len(_CLASSES),
            data_source=f"{paths['train'].name} and its companions",
            split_note="validation is the published trial split",
        )

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Whether the three tables are there."""
        paths = None if data_dir is None else first_set(data_dir, _SETS)
        if paths is not None:
            return TaskStatus(self.card.name, True, f"{paths['train'].name} in {data_dir}")
        return absent(self.card, data_dir)

    def prepared(self, request: Request) -> None:
        """Nothing is kept: the files are small."""

    def _missing(self, data_dir: Path | None) -> InputError:
        return missing_data(
            self.card,
            data_dir,
            [names["train"] for names in _SETS],
            "SICK_{train,trial,test_annotated}.txt from https://alt.qcri.org/semeval2014/task1",
        )


def _read(path: Path) -> Iterator[Row]:
    lines = read_lines(path)
    header = next(lines, (0, ""))[1].split("\t")
    if not set(_COLUMNS) <= set(header):
        raise damaged(path, f"its first line does not name the columns {', '.join(_COLUMNS)}")
    positions = [header.index(name) for name in _COLUMNS]
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(header) or fields[positions[2]] not in _CLASSES:
            raise damaged(path, f"line {number} is no pair of sentences with a judgment")
        first, second, judgment = (fields[position] for position in positions)
        yield (plain_words(first), plain_words(second)), _CLASSES.index(judgment)
