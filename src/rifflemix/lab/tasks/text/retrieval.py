"""Document retrieval: does one paper cite the other? (Task Retrieval of the Long Range Arena.)"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.json_values import parse_json
from rifflemix.lab.tasks.core.base import SPLITS, Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer, content_order
from rifflemix.lab.tasks.core.card import BYTE_IDS, Shapes, TaskCard
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import (
    Array,
    Arrays,
    Source,
    check_ids,
    damaged,
    reading,
    source_folder,
)
from rifflemix.lab.tasks.data_io.safe_readers import read_lines
from rifflemix.lab.tasks.data_io.splits import RaggedRows, ragged_rows, to_ragged
from rifflemix.lab.tasks.text.encoder import TextEncoder, TextInputs

_TSV = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
_FOLDERS = (".", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
_DOCUMENTS = "aan_docs.jsonl.xz"
_PAIRS = {
    "train": "aan_pairs.train.tsv",
    "validation": "aan_pairs.valid.tsv",
    "test": "aan_pairs.test.tsv",
}
_LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}

Pair = tuple[bytes, bytes, int]
"""Two documents and the label."""


def _shapes(options: Options) -> Shapes:
    return Shapes(
        input_kind="tokens",
        num_classes=2,
        max_length=int(options["max_length"]),
        vocab_size=BYTE_IDS,
        padding=True,
        num_sequences=2,
    )


class Retrieval(FileTask):
    """Pairs of papers, one token per byte."""

    card = TaskCard(
        name="retrieval",
        title="Retrieval",
        source=(
            "ACL Anthology Network (Radev et al., 2013), paired for the Long Range Arena (Tay et "
            "al., 2021)"
        ),
        licence="CC BY (ACL Anthology)",
        description=(
            "Pairs of papers as UTF-8 bytes (byte b is token b + 1, 0 is padding); label 1 if "
            "one cites the other. Each paper is cut to its first max_length bytes. Read from the "
            "Long Range Arena's new_aan_pairs.*.tsv (label, two ids, two texts), or from "
            f"{_DOCUMENTS} (lines of an id and a text) with aan_pairs.*.tsv (label, two ids)."
        ),
        needs_data=True,
        options={"max_length": 4000},
        shapes=_shapes,
    )

    get_it = (
        "new_aan_pairs.*.tsv of the Long Range Arena from "
        "https://github.com/google-research/long-range-arena"
    )

    def check(self, options: Options) -> None:
        check_integer(options, "max_length", 1)

    def forms(self, options: Options) -> Sequence[Form]:
        """Support Long Range Arena pairs, or separate files of texts and pairs."""
        apart = {"documents": _DOCUMENTS, **_PAIRS}
        name, note = f"{_DOCUMENTS} and aan_pairs.*.tsv", "not the Long Range Arena's pairs"
        return (
            Form("new_aan_pairs.*.tsv", _TSV, _decode_tsv, _FOLDERS),
            Form(name, apart, _decode_documents, note=note),
        )

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """Create the task from pairs of documents."""
        max_length = int(request.options["max_length"])
        documents = ragged_rows(arrays)
        for name in SPLITS:
            folder = source_folder(self.card, source)
            check_ids(folder, f"{name} pairs", arrays[f"{name}_pairs"].values, len(documents))
            check_ids(folder, f"{name} labels", arrays[f"{name}_labels"].values, 2)
        splits = {
            name: PairSplit(
                documents, arrays[f"{name}_pairs"], arrays[f"{name}_labels"], max_length
            )
            for name in SPLITS
        }
        return Task(
            name=self.card.name,
            options=dict(request.options),
            **_shapes(request.options).for_task(),
            split_note="validation is the data's own" + _shared(arrays),
            data_source=source.description,
            splits=splits,
            inputs=TextInputs(TextEncoder("byte"), max_length, texts=2),
            classes=("no citation", "citation"),
        )


def _shared(arrays: Mapping[str, Array]) -> str:
    """Describe the share of test papers that also occur in training pairs."""
    train, test = (np.unique(arrays[f"{name}_pairs"].values) for name in ("train", "test"))
    share = float(np.isin(test, train, assume_unique=True).mean())
    return f"; {100 * share:.0f} % of the test papers are in training pairs too" if share else ""


@dataclass(frozen=True, eq=False)
class PairSplit:
    """Pairs of documents.

    Attributes:
        documents: Distinct documents.
        pairs: (M, 2) positions in `documents`.
        labels: (M,) uint8.
        max_length: Maximum length. Longer documents are cut.
    """

    documents: RaggedRows
    pairs: Array
    labels: Array
    max_length: int

    def __len__(self) -> int:
        return len(self.labels.values)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], int]:
        """Return both documents as ids (N1,) and (N2,) int64, and the label."""
        first, second = (self._tokens(int(position)) for position in self.pairs.values[index])
        return (first, second), int(self.labels.values[index])

    def digest(self) -> bytes:
        """Hash the documents and labels of the pairs, in order."""
        known: dict[int, bytes] = {}
        total = hashlib.blake2b(digest_size=16)
        for pair, label in zip(self.pairs.values.tolist(), self.labels.values, strict=True):
            for position in pair:
                if position not in known:
                    row = self.documents.row(position)[: self.max_length]
                    known[position] = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
                total.update(known[position])
            total.update(bytes([label]))
        return total.digest()

    def _tokens(self, position: int) -> Tensor:
        row = self.documents.row(position)[: self.max_length]
        return torch.from_numpy(row.astype(np.int64) + 1)


def _decode_tsv(paths: Paths, progress: Progress) -> Arrays:
    return _pack({split: _read_tsv(path, progress) for split, path in paths.items()})


def _read_tsv(path: Path, progress: Progress) -> Iterator[Pair]:
    for number, fields in _tsv_lines(path, 5, progress):
        label, _, _, first, second = fields
        yield _checked(path, number, label, first, second)


def _decode_documents(paths: Paths, progress: Progress) -> Arrays:
    texts = _read_documents(paths["documents"], progress)
    return _pack({split: _read_pairs(paths[split], texts, progress) for split in SPLITS})


def _read_documents(path: Path, progress: Progress) -> dict[bytes, bytes]:
    progress(f"decoding {path.name}", 0, None)
    texts: dict[bytes, bytes] = {}
    with reading(path):
        for number, line in read_lines(path):
            fields = parse_json(line)
            if not (isinstance(fields, list) and [type(f) for f in fields] == [str, str]):
                raise damaged(path, f"line {number} is not [id, text]")
            if fields[0].encode() in texts:
                raise damaged(path, f"line {number}: paper {fields[0]} occurs twice")
            texts[fields[0].encode()] = fields[1].encode()
    return texts


def _read_pairs(path: Path, texts: Mapping[bytes, bytes], progress: Progress) -> Iterator[Pair]:
    for number, (label, *names) in _tsv_lines(path, 3, progress):
        for name in names:
            if name not in texts:
                raise damaged(
                    path, f"line {number}: no paper {name.decode(errors='replace')} is known"
                )
        yield _checked(path, number, label, texts[names[0]], texts[names[1]])


def _tsv_lines(path: Path, count: int, progress: Progress) -> Iterator[tuple[int, list[bytes]]]:
    """Read number and fields of each line.

    Raise unless a line has `count` fields.
    """
    for number, line in read_lines(path):
        if number % 1000 == 0:
            progress(f"reading {path.name}", number, None)
        fields = line.rstrip(b"\r").split(b"\t")
        if len(fields) != count:
            raise damaged(path, f"line {number} has {len(fields)} fields, expected {count}")
        yield number, fields


def _checked(path: Path, number: int, label: bytes, first: bytes, second: bytes) -> Pair:
    value = _LABELS.get(label.decode(errors="replace"))
    if value is None:
        raise damaged(path, f"line {number}: label {label[:20]!r}, expected 0 or 1")
    if not first or not second:
        raise damaged(path, f"line {number}: a text is empty")
    return first, second, value


def _pack(parts: Mapping[str, Iterator[Pair]]) -> Arrays:
    """Store every document once, and shuffled pairs of document positions per split."""
    positions: dict[bytes, int] = {}
    arrays: Arrays = {}
    for split, rows in parts.items():
        pairs: list[tuple[int, int]] = []
        labels: list[int] = []
        keys: list[bytes] = []
        for first, second, label in rows:
            pair = tuple(positions.setdefault(text, len(positions)) for text in (first, second))
            pairs.append((pair[0], pair[1]))
            labels.append(label)
            keys.append(_key(first) + _key(second))
        if not labels:
            raise InputError(
                f"pairs of papers: expected at least one {split} pair, got none; get fresh files"
            )
        order = content_order(keys, "retrieval: order")
        arrays[f"{split}_pairs"] = np.array(pairs, dtype=np.int64)[order]
        arrays[f"{split}_labels"] = _labels(labels)[order]
    return {**arrays, **to_ragged((text, 0) for text in positions)}


def _key(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _labels(labels: list[int]) -> NDArray[np.uint8]:
    return np.array(labels, dtype=np.uint8)
