"""IMDB sentiment on bytes (task Text of the Long Range Arena), words or subwords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.json_values import parse_json
from rifflemix.lab.tasks.core.base import Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer, content_order
from rifflemix.lab.tasks.core.card import Budget, Shapes, TaskCard
from rifflemix.lab.tasks.data_io.file_task import (
    FileTask,
    Form,
    HubData,
    Options,
    Paths,
    hub_source,
)
from rifflemix.lab.tasks.data_io.files import (
    Array,
    Arrays,
    Source,
    check_ids,
    damaged,
    load_source,
    reading,
    source_folder,
    stat_key,
)
from rifflemix.lab.tasks.data_io.safe_readers import read_lines, read_tar_members
from rifflemix.lab.tasks.data_io.splits import RaggedRows, RaggedSplit, ragged_rows, to_ragged_parts
from rifflemix.lab.tasks.text.encoder import (
    LEAST_SUBWORDS,
    LEVELS,
    RESERVED,
    TextEncoder,
    TextInputs,
    learn_encoder,
)
from rifflemix.lab.tasks.text.words import SUBWORDS, sentence_shapes

RULE = {"word": "reviews", "subword": "none"}
"""Preparation of a review at each level."""


def encode_reviews(
    train: RaggedRows,
    test: RaggedRows,
    kept: NDArray[np.int64],
    vocab_size: int,
    level: str = "word",
) -> Arrays:
    """Encode reviews as ids of words or subwords.

    Args:
        train: Reviews for training and validation, as bytes.
        test: Test reviews, as bytes.
        kept: Rows of `train` for training. The vocabulary is built from these rows.
        vocab_size: Maximum number of ids, including reserved ids.
        level: "word" or "subword".

    Returns:
        "tokens", "ends" and "labels" in the format of `RaggedRows`, with prefixes "train_" and
        "test_", and the arrays of `TextEncoder.to_arrays`.
    """
    trained = (_text(train.row(row).tobytes()) for row in kept)
    encoder = learn_encoder(trained, level, RULE[level], vocab_size)
    arrays = encoder.to_arrays()
    for name, rows in (("train", train), ("test", test)):
        ids = [encoder.ids(_text(review)) for review in rows]
        arrays[f"{name}_tokens"] = np.concatenate(ids)
        arrays[f"{name}_ends"] = np.cumsum([len(review) for review in ids], dtype=np.int64)
        arrays[f"{name}_labels"] = rows.labels.values
    return arrays


def _text(review: bytes) -> str:
    return review.decode("utf-8", errors="replace")


_FOLDER = "aclImdb"
_TAR = "aclImdb_v1.tar.gz"
_LINES = {"train": "imdb_train.jsonl.xz", "test": "imdb_test.jsonl.xz"}
_HUB = HubData(
    "stanfordnlp/imdb",
    "e6281661ce1c48d982bc483cf8a173c1bbeb5d31",
    "plain_text",
    {
        "train": "db47d16b5c297cc0dd625e519c81319c24c9149e70e8496de5475f6fa928342c",
        "test": "b52e26e2f872d282ffac460bf9770b25ac6f102cda0e6ca7158df98c94e8b3da",
    },
)
_CLASSES = ("neg", "pos")
_TEXTS_PER_CLASS = 12_500
_MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/(neg|pos)/[^/]+\.txt")

Rows = Iterable[tuple[bytes, int]]


# Level and maximum length -> root mean square of the number of tokens of a review, rounded.
_MEAN_LENGTHS = {
    ("word", 512): 279,
    ("byte", 1_000): 864,
    ("byte", 2_048): 1_265,
    ("byte", 4_000): 1_557,
    ("byte", 4_096): 1_564,
}


def _shapes(options: Options) -> Shapes:
    mean = _MEAN_LENGTHS.get((options["level"], options["max_length"]))
    lengths = {} if mean is None else {str(options["level"]): mean}
    return sentence_shapes(options, classes=len(_CLASSES), longest={}, mean_length=lengths)


class Text(FileTask):
    """Large Movie Review Dataset, one token per byte, word or subword."""

    card = TaskCard(
        name="text",
        title="IMDB",
        source="Maas et al., Learning Word Vectors for Sentiment Analysis (2011)",
        licence="none stated",
        description=(
            "50,000 film reviews as UTF-8 bytes (byte b is token b + 1, 0 is padding), negative "
            "or positive: the Long Range Arena's Text task. Reviews are cut to their first "
            "max_length bytes: 4,096, its quoted 4K (its configurations say 1,000). level word: "
            "the vocab_size - 2 most frequent words and punctuation marks of the training reviews, "
            "in lower case, with ids from 2 on. Other words have the id 1. "
            + SUBWORDS.format("vocab_size")
            + "validation false: train on all 25,000 training reviews, without a validation split."
        ),
        needs_data=True,
        options={"level": "byte", "max_length": 4096, "vocab_size": 16_000, "validation": True},
        budget=Budget(batch_size=16, evaluations=2),
        shapes=_shapes,
    )

    get_it = f"{_TAR} from https://ai.stanford.edu/~amaas/data/sentiment/"

    def check(self, options: Options) -> None:
        check_integer(options, "max_length", 1)
        check_choice("level", options["level"], LEVELS)
        least = LEAST_SUBWORDS if options["level"] == "subword" else RESERVED + 1
        check_integer(options, "vocab_size", least)
        if not isinstance(options["validation"], bool):
            raise bad_argument("validation", "true or false", repr(options["validation"]))

    def forms(self, options: Options) -> Sequence[Form]:
        """Support the archive, or lines of JSON."""
        return (
            Form(_TAR, {"all": _TAR}, _decode_tar),
            Form("imdb_*.jsonl.xz", _LINES, _decode_lines),
        )

    def find(self, data_dir: Path, options: Options) -> Source | None:
        """Find the folder of reviews, or another format."""
        for folder in (data_dir / _FOLDER, data_dir):
            if (folder / "train" / "pos").is_dir():
                read = partial(_decode_folder, folder)
                return Source(f"{_FOLDER}/", stat_key(_texts(folder)), read)
        return super().find(data_dir, options)

    def looked_for(self, options: Options) -> Sequence[str]:
        return (f"{_FOLDER}/", *super().looked_for(options))

    def remote_source(self, options: Options) -> Source:
        return hub_source(_HUB, _decode_hub, partial(self.missing, options))

    def prepared(self, request: Request) -> Path:
        """Return the folder of decoded reviews, or of their words or subwords."""
        source = self.source(request)
        if request.options["level"] != "byte":
            source = replace(source, key=_encoded_key(source, request.options))
        return source_folder(self.card, source)

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """Create the task from bytes, or encode bytes as words or subwords."""
        max_length, validates = (request.options[name] for name in ("max_length", "validation"))
        train, test = ragged_rows(arrays, "train_"), ragged_rows(arrays, "test_")
        test_order = content_order(list(test), "text: order")
        kept, held_out = _carve(train, validates=validates)
        held_out, dropped = _drop_known(train, held_out, test)
        shared = _drop_known(train, kept, test)[1]
        also_test = f"; {shared} training reviews are test reviews too, as published"
        note = (
            "validation is 10 % of the training reviews, stratified, chosen by a hash of "
            f"their text, without {dropped} of them that are test reviews too (the Long Range "
            "Arena validates on the test reviews)"
            if validates
            else "no validation split: all training reviews are trained on"
        )
        first_id, encoder, level = 1, TextEncoder("byte"), str(request.options["level"])
        if level != "byte":
            encoded = _encoded(source, train, test, kept, request.options)
            arrays = load_source(self.card, encoded, request)
            train, test = ragged_rows(arrays, "train_"), ragged_rows(arrays, "test_")
            first_id, encoder = 0, TextEncoder.from_arrays(level, RULE[level], arrays)
            for part in (train, test):
                folder = source_folder(self.card, encoded)
                check_ids(folder, "tokens", part.tokens.values, len(encoder))
        return Task(
            name=self.card.name,
            # Runs of earlier versions have no option `validation`.
            options={n: v for n, v in request.options.items() if (n, v) != ("validation", True)},
            input_kind="tokens",
            vocab_size=len(encoder),
            num_features=None,
            num_classes=len(_CLASSES),
            max_length=max_length,
            padding=True,
            split_note=note + (also_test if shared else ""),
            data_source=source.description,
            splits={
                "train": RaggedSplit((train,), kept, max_length, first_id),
                "validation": RaggedSplit((train,), held_out, max_length, first_id),
                "test": RaggedSplit((test,), test_order, max_length, first_id),
            },
            inputs=TextInputs(encoder, max_length),
            classes=("negative", "positive"),
        )


def _carve(train: RaggedRows, *, validates: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose and order training and validation rows by text hashes."""
    texts, labels = list(train), np.asarray(train.labels.values)
    # Two hashes: the first selects rows class by class, the second mixes the classes.
    chosen, order = content_order(texts, "text: split"), content_order(texts, "text: order")
    held_out = np.zeros(len(labels), dtype=bool)
    for label in range(len(_CLASSES)) if validates else ():
        members = chosen[labels[chosen] == label]
        held_out[members[: len(members) // 10]] = True
    return order[~held_out[order]], order[held_out[order]]


def _drop_known(
    train: RaggedRows, held_out: NDArray[np.int64], test: RaggedRows
) -> tuple[NDArray[np.int64], int]:
    """Drop held-out rows that are also test reviews.

    Return the rest and the number dropped.
    """
    known = set(test)
    fresh = [row for row in held_out.tolist() if train.row(row).tobytes() not in known]
    return np.array(fresh, dtype=np.int64), len(held_out) - len(fresh)


def _encoded(
    source: Source,
    train: RaggedRows,
    test: RaggedRows,
    kept: NDArray[np.int64],
    options: Options,
) -> Source:
    """Define a source of the reviews as ids of words or subwords."""

    def read(progress: Progress) -> Arrays:
        progress(f"counting {options['level']}s", 0, None)
        return encode_reviews(train, test, kept, options["vocab_size"], options["level"])

    return replace(source, key=_encoded_key(source, options), read=read)


def _encoded_key(source: Source, options: Options) -> str:
    of_all = "" if options["validation"] else "-all"
    level = {"subword": "subword-merges"}.get(options["level"], options["level"])
    return f"{source.key}-{level}-{options['vocab_size']}{of_all}"


def _texts(folder: Path) -> list[Path]:
    return sorted(
        path
        for part in _LINES
        for name in _CLASSES
        for path in (folder / part / name).glob("*.txt")
    )


def _decode_folder(folder: Path, progress: Progress) -> Arrays:
    rows: dict[str, list[tuple[bytes, int]]] = {part: [] for part in _LINES}
    paths = _texts(folder)
    for done, path in enumerate(paths):
        if done % 1000 == 0:
            progress(f"reading {folder.name}", done, len(paths))
        with reading(path):
            rows[path.parts[-3]].append((path.read_bytes(), _CLASSES.index(path.parent.name)))
    return _packed(dict.fromkeys(rows, str(folder)), rows)


def _decode_tar(paths: Paths, progress: Progress) -> Arrays:
    path = paths["all"]
    rows: dict[str, list[tuple[bytes, int]]] = {part: [] for part in _LINES}
    total = 2 * len(_CLASSES) * _TEXTS_PER_CLASS
    members = read_tar_members(path, lambda name: _MEMBER.fullmatch(name) is not None)
    for done, (name, content) in enumerate(members):
        if done % 1000 == 0:
            progress(f"reading {path.name}", done, total)
        part, label = name.split("/")[-3:-1]
        rows[part].append((content, _CLASSES.index(label)))
    return _packed(dict.fromkeys(rows, str(path)), rows)


def _packed(names: Mapping[str, str], parts: Mapping[str, Rows]) -> Arrays:
    """Pack the rows of each part.

    Raise if a part is incomplete; `names` gives its origin.
    """
    return to_ragged_parts(
        {part: _complete(names[part], part, rows) for part, rows in parts.items()}
    )


def _complete(name: str, part: str, rows: Rows) -> list[tuple[bytes, int]]:
    """Return the rows. Raise unless the part has all its reviews."""
    checked = list(_checked(name, rows))
    for label, folder in enumerate(_CLASSES):
        count = sum(row[1] == label for row in checked)
        if count != _TEXTS_PER_CLASS:
            why = f"{count} reviews in {part}/{folder}, expected {_TEXTS_PER_CLASS}"
            raise damaged(Path(name), why)
    return checked


def _decode_lines(paths: Paths, progress: Progress) -> Arrays:
    names = {part: str(path) for part, path in paths.items()}
    return _packed(names, {part: _read_lines(path, progress) for part, path in paths.items()})


def _read_lines(path: Path, progress: Progress) -> Iterator[tuple[bytes, int]]:
    progress(f"decoding {path.name}", 0, None)
    with reading(path):
        for number, line in read_lines(path):
            fields = parse_json(line)
            if not isinstance(fields, list) or len(fields) < 2 or not isinstance(fields[1], str):
                raise damaged(path, f"line {number} is not [label, text, ...]")
            yield fields[1].encode(), fields[0]


def _decode_hub(splits: Any, progress: Progress) -> Arrays:
    progress(f"decoding {_HUB.repository}", 0, None)
    parts: dict[str, Rows] = {}
    for part in _LINES:
        texts = (text.encode() for text in splits[part]["text"])
        parts[part] = zip(texts, splits[part]["label"], strict=True)
    return _packed(dict.fromkeys(parts, _HUB.repository), parts)


def _checked(name: str, rows: Rows) -> Iterator[tuple[bytes, int]]:
    for number, (text, label) in enumerate(rows, start=1):
        if label not in (0, 1):
            raise InputError(f"{name}: review {number} has label {label!r}, expected 0 or 1")
        if not text:
            raise InputError(f"{name}: review {number} is empty")
        yield text, label
