"""Kind of a task, chosen by the labels, and the card of user data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.arrays import as_numpy, plain_array
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.core.kinds import (
    CLASSIFICATION,
    KINDS,
    MULTILABEL,
    REGRESSION,
    TOKENS,
    Kind,
)

_BUDGET = Budget()
AUTO = "auto"
UNLABELLED = ("forecast", "next_token", "masked_token")


@dataclass(frozen=True)
class Choice:
    """Kind of a task.

    Attributes:
        kind: The kind.
        reason: Why `auto` chose it. Empty if the user named it.
    """

    kind: Kind
    reason: str = ""


def choose_kind(kind: str, x: Any, y: Any, lengths: Any) -> Choice:
    """Choose the kind of user data.

    Args:
        kind: Name of a kind, or "auto".
        x: Samples, as in `Task.from_arrays`.
        y: Labels, or None.
        lengths: Number of valid tokens of each sample, or None.

    Raises:
        InputError: The name is unknown, the labels are missing or not expected, or several kinds
            are possible.
    """
    check_choice("kind", kind, (AUTO, *KINDS))
    if y is None and kind not in UNLABELLED:
        raise bad_argument(
            "y", f"labels with kind {kind!r}", None,
            f"data without labels needs kind {', '.join(UNLABELLED[:-1])} or {UNLABELLED[-1]}",
        )  # fmt: skip
    if y is not None and kind in UNLABELLED:
        raise bad_argument("y", f"None with kind {kind!r}", "labels", "the inputs are the targets")
    if kind != AUTO:
        return Choice(KINDS[kind])
    given = as_numpy(y)
    is_single = isinstance(given, np.ndarray) and given.ndim == 0
    is_ordered = hasattr(given, "__len__") and not isinstance(given, dict | set)
    if is_single or not is_ordered or len(given) == 0:
        return Choice(CLASSIFICATION)  # `read_labels` raises for it
    values = plain_array(y)
    if values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind in "biuf":
        has_names = hasattr(y, "columns")  # columns of a table are not tokens
        return _of_table(values, None if has_names else x, lengths)
    first = as_numpy(given[0]) if not isinstance(given, np.ndarray) else given[0]
    is_list = isinstance(first, list | tuple) or (isinstance(first, np.ndarray) and first.ndim)
    if is_list and values.shape[1:] != (1,):
        return _of_lists(given, x, lengths)
    if values.dtype.kind == "f":
        return Choice(REGRESSION, "the labels are numbers with a decimal point")
    name = {"b": "bools", "i": "integers", "u": "integers"}.get(values.dtype.kind, "texts")
    return Choice(CLASSIFICATION, f"the labels are {name}")


def _of_table(values: np.ndarray, x: Any, lengths: Any) -> Choice:
    columns, are_binary = values.shape[1], bool(np.isin(values, (0, 1)).all())
    fits_tokens = _fits(x, lengths, np.full(len(values), columns))
    if values.dtype.kind == "f" and not are_binary:
        return Choice(REGRESSION, f"the labels are {columns} columns of numbers")
    if are_binary and (values.sum(axis=1) == 1).all():
        raise bad_argument(
            "kind", "'classification' or 'multilabel'", "'auto' with one 1 in each row of labels",
            "classes are y.argmax(axis=1)",
        )  # fmt: skip
    if are_binary and values.dtype.kind != "f" and not fits_tokens:
        return Choice(MULTILABEL, f"the labels are {columns} columns of 0 and 1")
    if not are_binary and fits_tokens:
        return Choice(TOKENS, "every token has an integer as label")
    possible = (
        "'multilabel' or 'regression'"
        if values.dtype.kind == "f"
        else ("'multilabel' or 'tokens'" if are_binary else "'regression' or 'tokens'")
    )
    got = f"{columns} columns of {'0 and 1' if are_binary else 'integers'}"
    raise bad_argument("kind", possible, f"'auto' with {got} as labels")


def _of_lists(rows: Any, x: Any, lengths: Any) -> Choice:
    counts = np.array([len(row) if hasattr(row, "__len__") else 0 for row in rows])
    if not _fits(x, lengths, counts):
        if not any(isinstance(label, str) for row in rows for label in row):
            raise bad_argument(
                "y", "one label for each sample", "lists of numbers",
                "choose kind 'multilabel', 'tokens' or 'seq2seq'",
            )  # fmt: skip
        return Choice(MULTILABEL, "every sample has a list of names")
    if len(set(counts.tolist())) > 1:
        return Choice(TOKENS, "every token has a label")
    raise bad_argument(
        "kind", "'tokens' or 'multilabel'", f"'auto' with {counts[0]} labels for every sample"
    )


def _fits(x: Any, lengths: Any, counts: np.ndarray) -> bool:
    """Return whether each sample has one label per token, or per word."""
    if lengths is not None:
        found = plain_array(lengths)
        return found.shape == counts.shape and bool((found <= counts).all())
    samples = as_numpy(x)
    if not hasattr(samples, "__len__") or len(samples) != len(counts):
        return False
    sizes = [len(s.split()) if isinstance(s, str) else _length(s) for s in samples]
    return bool((np.array(sizes) == counts).all())


def _length(sample: Any) -> int:
    return len(sample) if hasattr(sample, "__len__") else 0


@dataclass(frozen=True)
class Origin:
    """Origin of user data, for cards and results.

    Attributes:
        name: Task name.
        title: Title in tables. If empty, the name is the title.
        data_source: File, data set or memory that contained the data.
        options: Arguments that affect the data, in addition to the ones `from_arrays` records.
        split_note: Origin of the splits, if `from_arrays` did not draw them.
        columns: Columns of the table that contain the inputs.
        group: Column of the table that contains the groups.
    """

    name: str = "arrays"
    title: str = ""
    data_source: str = "arrays in memory"
    options: Mapping[str, Any] = field(default_factory=dict)
    split_note: str = ""
    columns: tuple[str, ...] = ()
    group: str = ""

    def card(self, kind: Kind, data: str, train: int, *, reason: str = "") -> TaskCard:
        """Return the card of a task.

        Args:
            kind: Kind of the task.
            data: Number and type of the samples.
            train: Number of training samples. A batch is not larger.
            reason: Why `kind="auto"` chose the kind.
        """
        why = f", because {reason}" if reason else ""
        return TaskCard(
            name=self.name,
            title=self.title or self.name,
            source=self.data_source,
            licence="the user's own data",
            description=f"{data}; kind {kind.name}: {kind.target}{why}.",
            needs_data=False,
            output=kind.output,
            backbone=kind.backbone,
            budget=Budget(batch_size=min(_BUDGET.batch_size, train)),
        )


def refuse_options(kind: str, **options: Any) -> None:
    """Raise if an option is set that this kind does not have."""
    for name, value in options.items():
        if value is not None:
            raise bad_argument(name, f"None with kind {kind!r}", repr(value))
