"""Natural language inference on SICK: does one sentence follow from the other?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rifflemix.lab.tasks.core.base import SPLITS, TaskCard
from rifflemix.lab.tasks.data_io.bounded import read_text_lines
from rifflemix.lab.tasks.data_io.file_task import Options
from rifflemix.lab.tasks.data_io.files import damaged
from rifflemix.lab.tasks.text.words import JOINED, SUBWORDS, Row, SentenceTask, plain_words

_CLASSES = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")
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
            "it, or neither. Lower-cased and parted into words and signs. level word: ids by "
            "frequency in the training split; byte: byte b is b + 1. "
            + SUBWORDS.format("8,192")
            + JOINED
        ),
        needs_data=True,
        options={"level": "word", "max_length": 64, "joined": False},
    )

    get_it = "SICK_{train,trial,test_annotated}.txt from https://alt.qcri.org/semeval2014/task1"
    split_note = "validation is the published trial split"
    subwords = 2**13

    def plain(self, sentence: str) -> str:
        return plain_words(sentence)

    def num_classes(self, options: Options) -> int:
        """Return 3: entailment, neutral and contradiction."""
        return len(_CLASSES)

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
            if len(fields) != len(header) or fields[positions[2]] not in _CLASSES:
                raise damaged(path, f"line {number} is no pair of sentences with a judgment")
            first, second, judgment = (fields[position] for position in positions)
            yield (first, second), _CLASSES.index(judgment)
