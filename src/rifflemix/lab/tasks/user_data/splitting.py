"""Division of samples into training, validation and test splits, without empty samples."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import is_number, shown
from rifflemix.errors import InputError, InputWarning, bad_argument, check_choice
from rifflemix.lab.tasks.core.arrays import as_numpy, plain_array
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.data_io.columns import MOST_IN_MEMORY, Column
from rifflemix.lab.tasks.data_io.splits import duplicates_across_splits
from rifflemix.lab.tasks.user_data.folds import Rows, SplitPlan
from rifflemix.lab.tasks.user_data.labels import Labels


@dataclass(frozen=True, eq=False)
class Division:
    """Rows of each split, and a note on their origin."""

    rows: Rows
    note: str

    def duplicates(self, hashes: NDArray[np.int64], task: str) -> list[str]:
        """Return a note on inputs that are in two splits, and warn. Return none without them.

        Args:
            hashes: (M,) hash of each input.
            task: Name of the task, for the warning.
        """
        found = duplicates_across_splits({n: _in_order(hashes, of) for n, of in self.rows.items()})
        if not found:
            return []
        warnings.warn(f"task {task}: {found}", InputWarning, stacklevel=7)
        return [found]


def _in_order(values: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the values of some rows in the order of `values`, faster than in another order."""
    is_chosen = np.zeros(len(values), dtype=bool)
    is_chosen[rows] = True
    return values[is_chosen]


def divide(split: Any, labels: Labels, groups: Any, seed: int) -> Division:
    """Divide the samples into splits, with the errors of `Task.from_arrays`."""
    count = len(labels.values)
    members = None if groups is None else _group_numbers(groups, count)
    if isinstance(split, SplitPlan):
        rows = split.divide(labels, members, seed)
        division = Division(rows, split.note(labels, groups, seed))
    elif isinstance(split, Mapping):
        rows = _given_rows(split, count)
        division = Division(rows, "the splits were given by their indices")
    elif _are_names(split):
        division = Division(_named_rows(split, count), "the splits were given, sample by sample")
    else:
        division = _draw(check_shares(split), labels, members, seed)
    _check(division.rows, labels, members)
    return division


def given_rows(split: Any, count: int) -> Rows | None:
    """Return the rows of splits that are given by indices or names. Return None for others."""
    if isinstance(split, Mapping):
        return _given_rows(split, count)
    return _named_rows(split, count) if _are_names(split) else None


def split_of_rows(split: Any, rows: NDArray[np.int64], count: int) -> Any:
    """Restrict a split of `count` samples to the samples `rows`."""
    if isinstance(split, SplitPlan):
        return split.of_rows(rows)
    if isinstance(split, Mapping):
        place = np.full(count, -1)
        place[rows] = np.arange(len(rows))
        given = {name: place[of] for name, of in _given_rows(split, count).items()}
        return {name: of[of >= 0] for name, of in given.items()}
    if _are_names(split):
        named = _named_rows(split, count)
        return split_of_rows(named, rows, count)
    return split


def _are_names(split: Any) -> bool:
    values = as_numpy(split)
    is_one = isinstance(values, str) or (isinstance(values, np.ndarray) and values.ndim == 0)
    return not is_one and hasattr(values, "__len__") and any(
        isinstance(value, str) for value in values
    )  # fmt: skip


def _given_rows(split: Mapping[Any, Any], count: int) -> Rows:
    for name in split:
        check_choice("split", name, SPLITS)
    rows: Rows = {}
    for name in SPLITS:
        given = plain_array(split.get(name, []))
        if given.dtype == bool and given.shape == (count,):
            given = np.flatnonzero(given)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise bad_argument(f"split {name}", "a list of indices", shown(split.get(name)))
        given = given.astype(np.int64)
        if given.size and not 0 <= given.min() <= given.max() < count:
            raise bad_argument(
                f"split {name}", f"indices from 0 to {count - 1}", f"{given.min()} to {given.max()}"
            )
        rows[name] = given
    every = Counter(np.concatenate(list(rows.values())).tolist()).most_common(1)
    row, times = every[0] if every else (0, 0)  # without any rows, `_check` reports the empty split
    if times > 1:
        raise bad_argument("split", "every sample at most once", f"sample {row} {times} times")
    return rows


def _named_rows(split: Any, count: int) -> Rows:
    names = list(as_numpy(split))
    if len(names) != count:
        raise bad_argument("split", f"{count} names, one for each sample", len(names))
    for name in names:
        check_choice("split", name, SPLITS)
    of = np.array([SPLITS.index(name) for name in names])
    return {name: np.flatnonzero(of == code) for code, name in enumerate(SPLITS)}


def check_shares(split: Any) -> tuple[float, float, float]:
    """Return the shares of train, validation and test, or raise."""
    what = "three shares above 0 that sum to 1 (train, validation, test)"
    shares = as_numpy(split)
    is_one = isinstance(shares, str) or (isinstance(shares, np.ndarray) and shares.ndim == 0)
    if is_one or not isinstance(shares, Sequence | np.ndarray) or len(shares) != 3:
        raise bad_argument("split", what, shown(split))
    if not all(is_number(share) and share > 0 for share in shares):
        raise bad_argument("split", what, shown(split))
    if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
        raise bad_argument("split", what, f"{shown(split)} with the sum {sum(shares):g}")
    train, validation, test = (float(share) for share in shares)
    return train, validation, test


def _group_numbers(groups: Any, count: int) -> NDArray[np.int64]:
    values = plain_array(groups)
    if values.shape != (count,) or values.dtype.kind not in "biuUSO":
        raise bad_argument(
            "groups", f"{count} integers or texts, one for each sample",
            f"{values.dtype} of shape {values.shape}",
        )  # fmt: skip
    if values.dtype.kind == "O":
        values = np.array([str(value) for value in values])
    numbers = np.unique(values, return_inverse=True)[1].astype(np.int64).reshape(-1)
    if numbers.max() < len(SPLITS) - 1:
        raise bad_argument("groups", f"at least {len(SPLITS)} groups", int(numbers.max()) + 1)
    return numbers


def _draw(
    shares: tuple[float, float, float],
    labels: Labels,
    groups: NDArray[np.int64] | None,
    seed: int,
) -> Division:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise bad_argument("seed", "an integer from 0 to 2**63 - 1", shown(seed))
    random = np.random.default_rng(seed)
    strata = labels.values if labels.are_classes else np.zeros(len(labels.values), dtype=np.int64)
    if groups is None:
        of = _with_every_class(_by_sample(shares, strata, random), labels)
    else:
        of = _by_group(shares, strata, groups, random)
    order = random.permutation(len(of))
    percent = " / ".join(f"{100 * share:g}" for share in shares)
    how = ", stratified by class" if labels.are_classes else ""
    how += "" if groups is None else ", whole groups"
    note = f"{percent} % train / validation / test{how}, drawn with seed {seed}"
    codes = of[order]
    return Division({name: order[codes == c] for c, name in enumerate(SPLITS)}, note)


def _by_sample(
    shares: tuple[float, float, float],
    strata: NDArray[np.int64],
    random: np.random.Generator,
) -> NDArray[np.int8]:
    """Assign each sample to a split, stratified by class.

    Every class keeps at least one training sample.
    """
    of = np.zeros(len(strata), dtype=np.int8)
    owed = np.zeros(2)  # rounding error of validation and test, carried to the next class
    for ordered in _rows_of_classes(strata):
        rows = random.permutation(ordered)
        exact = np.array(shares[1:]) * len(rows) + owed
        held_out = [max(round(count), 1) for count in exact.tolist()]
        while sum(held_out) >= len(rows):  # keep a training sample of every class
            beyond = [(held_out[i] - exact[i], i) for i in range(2) if held_out[i]]
            held_out[max(beyond)[1]] -= 1
        owed = np.clip(exact - held_out, -0.5, 0.5)
        of[rows[: held_out[0]]] = 1
        of[rows[held_out[0] : sum(held_out)]] = 2
    return of


def _rows_of_classes(strata: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rows of each class that occurs, in order."""
    counts = np.bincount(strata)
    small = strata.astype(np.uint16) if len(counts) <= 1 << 16 else strata  # a faster sort
    rows = np.split(np.argsort(small, kind="stable"), np.cumsum(counts)[:-1])
    return [of_class for of_class in rows if len(of_class)]


def _with_every_class(of: NDArray[np.int8], labels: Labels) -> NDArray[np.int8]:
    """Move samples of classes without a training sample to the training split."""
    if not labels.classes:
        return of
    known = labels.occurring(np.flatnonzero(of == 0))
    for row in np.flatnonzero(of):
        if known.all():
            break
        found = labels.occurring(np.array([row]))
        if (found & ~known).any():
            of[row], known = 0, known | found
    return of


def _by_group(
    shares: tuple[float, float, float],
    strata: NDArray[np.int64],
    groups: NDArray[np.int64],
    random: np.random.Generator,
) -> NDArray[np.int8]:
    """Assign each sample to a split by group.

    Groups are placed by size, the largest first, in the split that lacks most of their classes.
    """
    num_groups, num_strata = int(groups.max()) + 1, int(strata.max()) + 1
    counts = np.zeros((num_groups, num_strata))
    np.add.at(counts, (groups, strata), 1.0)
    total = counts.sum(axis=0)
    missing = np.array(shares)[:, None] * total  # missing samples per split and class
    order = random.permutation(num_groups)
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    split_of_group = np.zeros(num_groups, dtype=np.int8)
    sizes = np.zeros(len(SPLITS))
    for position, group in enumerate(order.tolist()):
        # Missing samples of the group's classes, relative to the size of the split.
        lack = (missing * counts[group]).sum(axis=1) / (np.array(shares) * len(strata))
        if num_groups - position <= int((sizes == 0).sum()):
            lack[sizes > 0] = -np.inf  # the last groups go to empty splits
        chosen = int(np.argmax(lack))
        split_of_group[group] = chosen
        missing[chosen] -= counts[group]
        sizes[chosen] += 1
    return split_of_group[groups]


def _check(rows: Rows, labels: Labels, groups: NDArray[np.int64] | None) -> None:
    """Raise for empty splits, shared groups and untrained classes."""
    for name in SPLITS:
        if len(rows[name]) == 0:
            raise bad_argument(
                "split", f"at least one sample for {name}", "none", "it takes more samples"
            )
    if groups is not None:
        for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
            both = np.intersect1d(groups[rows[one]], groups[rows[other]])
            if len(both):
                row = next(r for r in rows[other].tolist() if groups[r] == both[0])
                raise InputError(
                    f"groups: expected each group in one split, got the group of sample {row} in "
                    f"{one} and in {other}"
                )
    if labels.classes:
        known = labels.occurring(rows["train"])
        for name in SPLITS[1:]:
            unknown = labels.occurring(rows[name]) & ~known
            if unknown.any():
                index = int(unknown.argmax())
                row = next(r for r in rows[name] if labels.occurring(np.array([r]))[index])
                raise InputError(
                    f"split: expected training samples of each class, got none of class "
                    f"{labels.classes[index]!r} in {name} (sample {row}). Merge or remove rare "
                    "classes, or change the split."
                )


@dataclass(frozen=True, eq=False)
class Given:
    """Arguments of `Task.from_arrays` that have one value per sample.

    Attributes:
        x, y, lengths, groups, split: Same as in `Task.from_arrays`.
        dropped: Number of removed samples.
    """

    x: Any
    y: Any
    lengths: Any
    groups: Any
    split: Any
    dropped: int = 0

    def without_empty(self) -> Given:
        """Remove empty texts, empty sequences and samples of length 0."""
        x = as_numpy(self.x)
        if isinstance(x, Column):
            raise bad_argument(
                "drop_empty", f"False with more than {MOST_IN_MEMORY:,} samples on disk", True,
                "remove empty samples from the file",
            )  # fmt: skip
        if isinstance(x, str | bytes | dict) or not hasattr(x, "__len__"):
            return self  # `read_samples` raises for it
        if self.lengths is not None:
            empty = plain_array(self.lengths) == 0
        else:
            empty = np.array([_is_empty(sample) for sample in x], dtype=bool)
        rows = np.flatnonzero(~empty)
        if empty.shape != (len(x),) or len(rows) == len(x):
            return self
        if not len(rows):
            raise bad_argument("x", "at least one sample with a token", f"{len(x)} empty samples")

        def kept(name: str, values: Any) -> Any:
            return None if values is None else _rows_of(name, as_numpy(values), rows, len(x))

        return Given(
            kept("x", x),
            kept("y", self.y),
            kept("lengths", self.lengths),
            kept("groups", self.groups),
            split_of_rows(self.split, rows, len(x)),
            len(x) - len(rows),
        )


def _is_empty(sample: Any) -> bool:
    return hasattr(sample, "__len__") and getattr(sample, "ndim", 1) > 0 and len(sample) == 0


def _rows_of(name: str, values: Any, rows: NDArray[np.int64], count: int) -> Any:
    if not hasattr(values, "__len__") or len(values) != count:
        got = len(values) if hasattr(values, "__len__") else type(values).__name__
        raise bad_argument(name, f"{count} values, one for each sample", got)
    if isinstance(values, np.ndarray):
        return values[rows]
    return [values[row] for row in rows.tolist()]
