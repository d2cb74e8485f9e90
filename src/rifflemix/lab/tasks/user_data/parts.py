"""User data with one file or data set per split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rifflemix.checks import shown
from rifflemix.errors import InputError, bad_argument, unknown_name
from rifflemix.lab.tasks.core.arrays import as_numpy, plain_array
from rifflemix.lab.tasks.core.base import SPLITS, Task
from rifflemix.lab.tasks.core.from_user_data import DEFAULT_SPLIT
from rifflemix.lab.tasks.core.kinds import CLASSIFICATION, FORECAST, MULTILABEL, TOKENS
from rifflemix.lab.tasks.data_io.columns import Column, JoinedColumn
from rifflemix.lab.tasks.user_data.arrays import from_arrays
from rifflemix.lab.tasks.user_data.choose_kind import Origin, choose_kind
from rifflemix.lab.tasks.user_data.labels import Labels, cut_to_lengths, read_labels, without_labels
from rifflemix.lab.tasks.user_data.samples import is_images
from rifflemix.lab.tasks.user_data.splitting import divide

NAMES = {
    **{name: name for name in SPLITS},
    "val": "validation", "valid": "validation", "dev": "validation",
}  # fmt: skip
"""Split names in files and data sets -> rifflemix split."""

_HELD_OUT = 0.2  # share of the training samples for a missing split


@dataclass(frozen=True, eq=False)
class Part:
    """Samples of one split.

    Attributes:
        x, y, lengths, groups, times: Same as in `from_arrays`.
        source: Name of the source file, or empty.
    """

    x: Any
    y: Any
    lengths: Any = None
    groups: Any = None
    source: str = ""
    times: Any = None


def from_parts(parts: Mapping[str, Part], origin: Origin, options: Mapping[str, Any]) -> Task:
    """Create a task from the available parts.

    If "train" is the only part, `from_arrays` splits it. Otherwise a missing validation or test
    split is drawn from the training samples.

    Args:
        parts: Parts by split name.
        origin: Origin of the data.
        options: Options of `from_arrays`.

    Raises:
        InputError: The training part is missing, parts have different types, option `split` is set
            although splits are given, or any case of `from_arrays`.
    """
    if "train" not in parts:
        raise InputError(f"{origin.data_source}: expected a train split, got {', '.join(parts)}")
    given = [name for name in SPLITS if name in parts]
    by_source = {parts[name].source or name: parts[name] for name in given}
    _check_alike(by_source, options)
    _check_sizes(by_source)
    _check_same(by_source)
    whole = {
        name: _joined([getattr(parts[part], name) for part in given])
        for name in ("x", "y", "lengths", "groups", "times")
    }
    options = dict(options)
    if len(given) > 1:
        _check_counts(by_source)
        split = options.get("split", DEFAULT_SPLIT)
        if plain_array(split).tolist() != list(DEFAULT_SPLIT):
            raise InputError(
                f"split: expected no option with the splits of {origin.data_source}, got "
                f"{shown(split)}"
            )
        sizes = [len(parts[name].x) for name in given]
        rows = _rows(given, sizes)
        missing = [name for name in SPLITS if name not in given]
        note = f"{' and '.join(given)} as given"
        if missing:
            labels = _labels_of(whole, sum(sizes), options.get("kind", "auto"))
            if labels.kind is FORECAST:
                rows |= _latest(rows["train"], missing[0], whole["groups"])
            else:
                rows |= _held_out(rows["train"], missing[0], labels, whole["groups"], options)
            note += f", {missing[0]} is {100 * _HELD_OUT:g} % of the training samples"
        for name in ("folds", "fold", "times"):
            if (whole["times"] if name == "times" else options.get(name)) is not None:
                raise InputError(
                    f"{name}: expected none with the splits of {origin.data_source}. Give one file."
                )
        options["split"] = rows
        origin = replace(origin, split_note=note)
    return from_arrays(
        whole["x"], whole["y"], lengths=whole["lengths"], groups=whole["groups"],
        times=whole["times"], **{**options, "name": origin.name}, origin=origin,
    )  # fmt: skip


def _labels_of(whole: Mapping[str, Any], count: int, kind: str) -> Labels:
    """Return the labels. A drawn split keeps training samples of each class."""
    y, lengths = whole["y"], whole["lengths"]
    chosen = choose_kind(kind, whole["x"], y, lengths).kind
    if chosen is TOKENS and lengths is not None:
        y = cut_to_lengths(y, plain_array(lengths))
    if chosen in (CLASSIFICATION, MULTILABEL, TOKENS):
        return read_labels(y, count, chosen)
    return without_labels(chosen, count)


def split_name(name: str) -> str:
    """Return the split for the name of a file or data set."""
    if name not in NAMES:
        raise unknown_name("split", name, NAMES)
    return NAMES[name]


def _check_same(parts: Mapping[str, Part]) -> None:
    """Raise if only some parts have lengths or groups."""
    for name in ("lengths", "groups", "times"):
        lack = [where for where, part in parts.items() if getattr(part, name) is None]
        if 0 < len(lack) < len(parts):
            raise bad_argument(name, "one array in every part or in none", f"none in {lack[0]}")


def _check_counts(parts: Mapping[str, Part]) -> None:
    """Raise unless every part has one label, length and group per sample.

    Joining the parts would otherwise assign these values to the wrong samples.
    """
    for where, part in parts.items():
        for name in ("y", "lengths", "groups"):
            values = getattr(part, name)
            if values is not None and len(values) != len(part.x):
                raise bad_argument(
                    name, f"{len(part.x)} in {where}, one for each sample", len(values)
                )


def _check_alike(parts: Mapping[str, Part], options: Mapping[str, Any]) -> None:
    """Raise if parts mix integers (tokens or pixels) and floats."""
    asked = ("x", "y") if options.get("kind", "auto") == "auto" else ("x",)
    for name in asked:
        types = {where: _type(getattr(part, name)) for where, part in parts.items()}
        known = {where: type for where, type in types.items() if type}
        first = next(iter(known), "")
        for where, type in known.items():
            if type != known[first]:
                raise bad_argument(
                    name, "one type in all parts",
                    f"{known[first]} in {first} and {type} in {where}",
                    "save them alike" + (", or set the kind of the labels" if name == "y" else ""),
                )  # fmt: skip


def _check_sizes(parts: Mapping[str, Part]) -> None:
    """Raise if the images of two parts differ in size."""
    arrays = {where: as_numpy(part.x) for where, part in parts.items()}
    sizes = {
        where: x.shape[1:]
        for where, x in arrays.items()
        if isinstance(x, np.ndarray) and x.size and is_images(x)
    }
    first = next(iter(sizes), "")
    for where, size in sizes.items():
        if size != sizes[first]:
            got = f"{sizes[first]} in {first} and {size} in {where}"
            raise bad_argument("x", "images of one size in all parts", got)


def _type(values: Any) -> str:
    """Return the type of the values, or "" for mixed types.

    Other checks report mixed types.
    """
    values = as_numpy(values)
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return _TYPES.get(values.dtype.kind, "")
    found = {
        "texts" if isinstance(value, str) else _TYPES.get(plain_array(value).dtype.kind, "")
        for value in (values if hasattr(values, "__iter__") else ())
    }
    if found == {"integers", "floats"}:  # a float may be written without a decimal point
        return "floats"
    return found.pop() if len(found) == 1 else ""


_TYPES = {"b": "bools", "i": "integers", "u": "integers", "f": "floats", "U": "texts"}


def _rows(names: Sequence[str], sizes: Sequence[int]) -> dict[str, Any]:
    ends = np.cumsum(sizes)
    return {
        name: np.arange(end - size, end)
        for name, size, end in zip(names, sizes, ends.tolist(), strict=True)
    }


def _held_out(
    train: Any, missing: str, labels: Labels, groups: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the rows of "train" and of the missing split."""
    some = replace(labels, values=labels.values[train])
    members = None if groups is None else np.asarray(groups)[train]
    shares = (1 - _HELD_OUT, _HELD_OUT / 2, _HELD_OUT / 2)
    drawn = divide(shares, some, members, options.get("seed", 0)).rows
    held_out = np.concatenate([drawn["validation"], drawn["test"]])
    return {"train": train[drawn["train"]], missing: train[held_out]}


def _latest(train: Any, missing: str, groups: Any) -> dict[str, Any]:
    """Return the rows of "train" without the latest ones of each series, and these ones."""
    names = np.zeros(len(train)) if groups is None else np.asarray(groups).astype(str)[train]
    is_late = np.zeros(len(train), dtype=bool)
    for name in np.unique(names):
        of = np.flatnonzero(names == name)
        is_late[of[round(len(of) * (1 - _HELD_OUT)) :]] = True
    return {"train": train[~is_late], missing: train[is_late]}


def _joined(values: Sequence[Any]) -> Any:
    """Join arrays of one type into an array.

    Join other values into a list.
    """
    if any(value is None for value in values):
        return None
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, Column) for value in values):
        return JoinedColumn(values)
    if all(hasattr(value, "columns") for value in values):  # several labels per sample
        return replace(values[0], values=np.concatenate([value.values for value in values]))
    arrays = all(isinstance(value, np.ndarray) for value in values)
    if arrays and len({(v.shape[1:], v.dtype.kind) for v in values}) == 1:
        return np.concatenate(values)
    return [sample for value in values for sample in value]
