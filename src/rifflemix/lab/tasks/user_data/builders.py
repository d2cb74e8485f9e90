"""Registered tasks that read user files: csv, jsonl, npz and folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument
from rifflemix.files import user_path
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.core.builder import Request
from rifflemix.lab.tasks.core.card import TaskCard, TaskStatus
from rifflemix.lab.tasks.core.from_user_data import DEFAULT_SPLIT
from rifflemix.lab.tasks.core.kinds import KINDS
from rifflemix.lab.tasks.data_io import columns, safe_readers
from rifflemix.lab.tasks.user_data.choose_kind import UNLABELLED, Origin
from rifflemix.lab.tasks.user_data.folders import from_folder, npz_label, npz_part
from rifflemix.lab.tasks.user_data.parts import from_parts
from rifflemix.lab.tasks.user_data.prepared import showing
from rifflemix.lab.tasks.user_data.rows import ending
from rifflemix.lab.tasks.user_data.tables import data_file, from_csv
from rifflemix.lab.tasks.user_data.tokenizing import BYTES

_SHARED = {
    "data": None,
    "input": None,
    "label": None,
    "group": None,
    "time": None,
    "split": list(DEFAULT_SPLIT),
    "split_seed": 0,
    "folds": None,
    "fold": None,
    "kind": "auto",
    "max_length": None,
    "drop_empty": False,
    "context": None,
    "horizon": None,
    "season": None,
    "known": None,
    "frame": None,
    "hop": None,
    "missing": "error",
    "normalize": False,
    "tokenizer": BYTES,
    "truncate": "head",
}
_OF_IMAGES = {"patch_size": None, "layout": "sequence"}
_COMMON = (
    "kind: " + ", ".join(KINDS) + ", or auto to decide by the labels. Forecasts need context and "
    "horizon; known lists input columns that are known in advance. split: three shares, drawn "
    "with split_seed; a group stays in one split. time is a column of times: the latest samples "
    "are the test. folds makes K splits, and fold selects one of them. drop_empty=true leaves out "
    "empty texts and sequences. tokenizer is bytes, words, bpe:SIZE or a tokenizer file. truncate "
    "keeps the head, the tail or both of sequences over max_length. frame and hop cut series into "
    "vectors, normalize scales channels, missing=mask marks NaN."
)


@dataclass(frozen=True)
class UserFile:
    """Task that reads the file or folder of option `data`.

    Attributes:
        card: Card of the task.
        read: Function that creates the task from the path, its origin and the remaining options.
    """

    card: TaskCard
    read: Callable[[Path, Origin, dict[str, Any]], Task]

    def load(self, request: Request) -> Task:
        options = dict(request.options)
        path = self._path(options.pop("data"), request.data_dir)
        for name in ("input", "label", "group", "time", "lengths"):
            if not isinstance(options.get(name), str | None):
                raise bad_argument(name, "a name", repr(options[name]))
        told = {name: options[name] for name in sorted(request.given - {"data", "seed"})}
        origin = Origin(
            self.card.name,
            title=path.name,
            data_source=path.name,
            options={"data": path.name, **told},
        )
        options["seed"] = check_integer("split_seed", options.pop("split_seed"), 0, 2**63 - 1)
        with showing(request.progress):
            return self.read(path, origin, options)

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Report the task as unavailable until the user names the data."""
        return TaskStatus(self.card.name, False, "name your data with --data")

    def prepared(self, request: Request) -> Path | None:
        return None

    def _path(self, data: Any, data_dir: Path | None) -> Path:
        if data is None:
            hint = "give it with --data, or as task option data"
            raise bad_argument("data", "the path of your data", None, hint)
        path = user_path("data", data)
        return path if data_dir is None else data_dir / path


def _read_table(path: Path, origin: Origin, options: dict[str, Any]) -> Task:
    if ending(data_file("data", path)) not in (endings := _ENDINGS_OF[origin.name]):
        expected = f"a file {' or '.join(endings)} for task {origin.name}, or one as .gz or .xz"
        raise bad_argument("data", expected, path.name, "pandas can write other tables as such")
    needed = ("input",) if options["kind"] in UNLABELLED else ("input", "label")
    for name in needed:
        if options[name] is None:
            raise bad_argument(name, "the name of a column", None, f"give it with --{name}")
    label = options.pop("label")
    return from_csv(
        path,
        input=_columns(options.pop("input")),
        label=None if label is None else _columns(label),
        origin=origin,
        **options,
    )


def _read_fasta(path: Path, origin: Origin, options: dict[str, Any]) -> Task:
    return _read_table(path, origin, {**options, "input": options["input"] or "sequence"})


def _columns(input: str) -> str | list[str]:
    """Split option `input` into column names.

    "a" is one column of texts. "a,b" are columns of numbers, and "a," is one column of numbers.
    """
    return input.removesuffix(",").split(",") if "," in input else input


_ENDINGS_OF = {
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl",),
    "parquet": columns.ENDINGS,
    "fasta": safe_readers.ENDINGS,
}


def _read_npz(path: Path, origin: Origin, options: dict[str, Any]) -> Task:
    x, y = options.pop("input") or "x", npz_label(options.pop("label"), options["kind"])
    group, lengths, time = (options.pop(name) for name in ("group", "lengths", "time"))
    part = npz_part(data_file("data", path), x, y, group, lengths, time)
    return from_parts({"train": part}, origin, options)


def _read_folder(path: Path, origin: Origin, options: dict[str, Any]) -> Task:
    if options["input"] is not None:
        options["input"] = _columns(options["input"])
    if options["label"] is not None:
        options["label"] = _columns(options["label"])
    return from_folder(path, origin=origin, **options)


def _task(name: str, title: str, description: str, read: Any, **options: Any) -> UserFile:
    card = TaskCard(
        name=name,
        title=title,
        source="your own",
        licence="your own data",
        description=f"{description} {_COMMON}",
        needs_data=True,
        options={**_SHARED, **options},
    )
    return UserFile(card, read)


USER_FILES = (
    _task(
        "csv",
        "Table (CSV)",
        "Your own .csv or .tsv with a header. input is a column of texts, read as bytes, or "
        "several columns of numbers, separated by commas (for a single column of numbers: v,). "
        "label is the column of labels.",
        _read_table,
    ),
    _task(
        "jsonl",
        "Table (JSON lines)",
        "Your own file with one JSON object per line. input is a key of texts or lists of numbers.",
        _read_table,
    ),
    _task(
        "parquet",
        "Table (Parquet or Arrow)",
        "Your own .parquet, .arrow or .feather file. input is a column of texts or lists of "
        "numbers.",
        _read_table,
    ),
    _task(
        "fasta",
        "Sequences (FASTA)",
        "Your own FASTA file of DNA, RNA or proteins, read as bytes. A header such as "
        "'>p1 class=promoter' has the label with label=class.",
        _read_fasta,
    ),
    _task(
        "npz",
        "Arrays",
        "Your own .npz of arrays. input (default x): tokens (M, N), vectors (M, N, F) or images "
        "(M, H, W, C). label (default y): the labels. lengths (default: the array of this name, "
        "if any): the numbers of valid tokens.",
        _read_npz,
        lengths=None,
        **_OF_IMAGES,
    ),
    _task(
        "folder",
        "Folder",
        "Your own folder of train, validation and test as .npz, .jsonl or .csv files.",
        _read_folder,
        lengths=None,
        **_OF_IMAGES,
    ),
)
