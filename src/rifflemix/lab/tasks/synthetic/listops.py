"""ListOps: nested list operations, generated with the Long Range Arena's grammar or read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import SPLITS, PreparationStopped, Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import Budget, Shapes, TaskCard, TaskStatus
from rifflemix.lab.tasks.core.generated import GeneratedTask, refuse_generator_options
from rifflemix.lab.tasks.data_io.file_task import Form, Paths, find_source
from rifflemix.lab.tasks.data_io.files import (
    Arrays,
    Source,
    cache_root,
    cached_arrays,
    damaged,
    load_source,
    source_folder,
)
from rifflemix.lab.tasks.data_io.safe_readers import read_lines
from rifflemix.lab.tasks.data_io.splits import (
    RaggedRows,
    RaggedSplit,
    ragged_rows,
    to_ragged,
    to_ragged_parts,
)
from rifflemix.lab.tasks.synthetic.grammar import (
    TOKENS,
    ExpressionInputs,
    Grammar,
    evaluate,
    expression_hash,
    from_source,
    unique_rows,
)

FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
"""File of each split."""

_FOLDERS = (".", "listops-1000", "lra_release/listops-1000")


def find_tsv(data_dir: Path | None) -> Source | None:
    """Find the three files of the Long Range Arena.

    They are in `data_dir`, or in a subfolder as in the Long Range Arena's archive.

    Raises:
        InputError: Some of the three files are missing.
    """
    form = Form("basic_*.tsv", FILES, _decode, _FOLDERS)
    return None if data_dir is None else find_source((form,), data_dir)


def _decode(paths: Paths, progress: Progress) -> Arrays:
    return to_ragged_parts({split: _read(path, progress) for split, path in paths.items()})


def _read(path: Path, progress: Progress) -> Iterator[tuple[bytes, int]]:
    lines = read_lines(path)
    if next(lines, (0, b""))[1].rstrip(b"\r") != b"Source\tTarget":
        raise damaged(path, "its first line is not Source<tab>Target")
    for number, line in lines:
        if number % 1000 == 0:
            progress(f"reading {path.name}", number, None)
        source, _, target = line.rstrip(b"\r").partition(b"\t")
        yield _expression(source, target, path, number)


def _expression(source: bytes, target: bytes, path: Path, number: int) -> tuple[bytes, int]:
    try:
        row = from_source(source)
        value = evaluate(row)
    except ValueError as error:
        raise damaged(path, f"line {number}: {error}") from None
    if target != b"%d" % value:
        raise damaged(path, f"line {number}: the target is not the value of the source")
    return row, value


_SHARD = 4000
_REPORT_EVERY = 500
_WHAT = "generating ListOps, {}"
# Part of the cache folder name. Increase it when the generator changes its output.
_VERSION = 1
_GRAMMAR_OPTIONS = ("min_length", "max_depth", "max_args")

Parts = dict[str, tuple[RaggedRows, ...]]


def _shapes(options: Mapping[str, Any]) -> Shapes:
    return Shapes(
        input_kind="tokens",
        num_classes=10,
        max_length=int(options["max_length"]),
        vocab_size=len(TOKENS),
        padding=True,
        longest=1_850,
        mean_length=1_100,
    )


class ListOps(GeneratedTask):
    """ListOps of the Long Range Arena."""

    card = TaskCard(
        name="listops",
        title="ListOps",
        source=(
            "generated; grammar and settings of the Long Range Arena (Tay et al., 2021) after "
            "Nangia and Bowman (2018)"
        ),
        licence="generated, free of rights",
        description=(
            "Nested MIN, MAX, MED and SM (sum modulo 10) of digits, 10 classes; more than "
            "min_length and fewer than max_length tokens, without round brackets. If --data-dir "
            "contains the Long Range Arena's basic_train.tsv, basic_val.tsv and basic_test.tsv, "
            "they are read instead, at most num_train, num_validation and num_test lines."
        ),
        needs_data=False,
        options={
            "min_length": 500,
            "max_length": 2000,
            "max_depth": 10,
            "max_args": 10,
            "num_train": 96_000,
            "num_validation": 2_000,
            "num_test": 2_000,
        },
        budget=Budget(batch_size=16, evaluations=2),
        shapes=_shapes,
    )

    def load(self, request: Request) -> Task:
        """Create the task. An interrupted generation continues."""
        counts = _counts(request)
        source = find_tsv(request.data_dir)
        if source is None:
            options = {**request.options, "seed": request.seed}
            parts = _generate_all(request, _grammar(request.options), counts)
        else:
            options = {
                name: value
                for name, value in request.options.items()
                if name not in _GRAMMAR_OPTIONS
            }
            parts = self._read(source, request)
        max_length = int(options["max_length"])
        rows = {name: min(counts[name], sum(map(len, parts[name]))) for name in SPLITS}
        return Task(
            name=self.card.name,
            options=options,
            **_shapes(options).for_task(),
            split_note="validation is a split of its own, drawn apart from training and test",
            data_source=source.description if source else "generated",
            splits={
                name: RaggedSplit(parts[name], np.arange(rows[name]), max_length) for name in SPLITS
            },
            inputs=ExpressionInputs(max_length),
        )

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Report the task as available, from files or generated."""
        source = find_tsv(data_dir)
        if source is not None:
            return TaskStatus(self.card.name, True, f"{source.description} in {data_dir}")
        return self.status_of_kept(cache_root() / self.card.name)

    def prepared(self, request: Request) -> Path:
        """Return the folder of generated or decoded expressions."""
        source = find_tsv(request.data_dir)
        if source is not None:
            return source_folder(self.card, source)
        return _folder(request.seed, _grammar(request.options), _counts(request))

    def _read(self, source: Source, request: Request) -> Parts:
        refuse_generator_options(request, _GRAMMAR_OPTIONS)
        arrays = load_source(self.card, source, request)
        parts: Parts = {name: (ragged_rows(arrays, f"{name}_"),) for name in SPLITS}
        for name, (rows,) in parts.items():
            _check_file(name, rows, request)
        return parts


def _grammar(options: Mapping[str, Any]) -> Grammar:
    min_length = check_integer(options, "min_length", 1)
    return Grammar(
        min_length=min_length,
        max_length=check_integer(options, "max_length", min_length + 2),
        max_depth=check_integer(options, "max_depth", 2),
        max_args=check_integer(options, "max_args", 2),
    )


def _counts(request: Request) -> dict[str, int]:
    return {name: request.count(name) for name in SPLITS}


def _check_file(name: str, rows: RaggedRows, request: Request) -> None:
    count = request.options[f"num_{name}"]
    max_length = check_integer(request.options, "max_length", 1)
    if len(rows) == 0 or (f"num_{name}" in request.given and count > len(rows)):
        raise bad_argument(f"num_{name}", f"at most the {len(rows)} lines of {FILES[name]}", count)
    if rows.longest() > max_length:
        raise bad_argument(
            "max_length", f"at least {rows.longest()}, the longest of {FILES[name]}", max_length
        )


def _folder(seed: int, grammar: Grammar, counts: Mapping[str, int]) -> Path:
    return (
        cache_root()
        / ListOps.card.name
        / (
            f"generated-v{_VERSION}-seed{seed}"
            f"-length{grammar.min_length}-{grammar.max_length}"
            f"-depth{grammar.max_depth}-args{grammar.max_args}"
            f"-rows{'-'.join(str(counts[name]) for name in SPLITS)}"
        )
    )


def _generate_all(request: Request, grammar: Grammar, counts: Mapping[str, int]) -> Parts:
    folder = _folder(request.seed, grammar, counts)
    return {
        name: _generate(folder, request, grammar, name, counts[name]) for name in reversed(SPLITS)
    }


def _generate(
    folder: Path, request: Request, grammar: Grammar, split: str, count: int
) -> tuple[RaggedRows, ...]:
    """Generate the expressions of a split. Reuse stored shards.

    Every shard has its own random stream.
    """
    shards: list[RaggedRows] = []

    def make() -> Arrays:
        # Hashes of this split are enough, because `_belongs` separates the splits.
        seen = {expression_hash(row) for shard in shards for row in shard}
        stream = SPLITS.index(split) << 32 | len(shards)
        rows = unique_rows(request.seed, stream, grammar, partial(_belongs, split), seen)
        return to_ragged(_count_rows(rows, split, len(shards) * _SHARD, count, request.progress))

    while (done := len(shards) * _SHARD) < count:
        part = folder / f"{split}-{len(shards):05d}"
        is_new = not part.is_dir()
        shards.append(ragged_rows(cached_arrays(part, make, must_keep=request.must_keep)))
        what, done = _WHAT.format(split), min(done + _SHARD, count)
        is_stopped = is_new and request.progress(what, done, count) is True
        if is_stopped and done < count and part.is_dir():
            raise PreparationStopped(what, done, count)
    return tuple(shards)


def _belongs(split: str, digest: bytes) -> bool:
    """Return whether the hash assigns an expression to a split.

    Validation and test get an eighth of the expressions each.
    """
    return {0: "test", 1: "validation"}.get(digest[0] % 8, "train") == split


def _count_rows(
    rows: Iterator[tuple[bytes, int]], split: str, done: int, total: int, progress: Progress
) -> Iterator[tuple[bytes, int]]:
    """Iterate over the rows of the shard from row `done` on.

    Raise if rows are missing.
    """
    end = min(done + _SHARD, total)
    for row in itertools.islice(rows, end - done):
        if done % _REPORT_EVERY == 0:
            progress(_WHAT.format(split), done, total)
        done += 1
        yield row
    if done < end:
        raise bad_argument(
            f"num_{split}",
            f"no more than the {done} distinct expressions found for this split",
            total,
            "ask for fewer, or change min_length, max_length, max_depth or max_args",
        )
