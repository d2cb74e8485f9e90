"""K-fold splits and splits by time of user data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument, require_packages
from rifflemix.lab.tasks.core.arrays import plain_array
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.user_data.labels import Labels

LEAST_FOLDS, MOST_FOLDS = 3, 100

Rows = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """Splits by folds, by time, or both.

    Attributes:
        shares: Shares of train, validation and test, for splits by time without folds.
        folds: Number of folds. None for one division.
        fold: Fold that is the test split.
        times: (M,) time of each sample. None to draw the folds.
    """

    shares: tuple[float, float, float]
    folds: int | None
    fold: int
    times: NDArray[Any] | None

    def of_rows(self, rows: NDArray[np.int64]) -> SplitPlan:
        """Restrict the plan to some samples."""
        return self if self.times is None else replace(self, times=self.times[rows])

    def divide(self, labels: Labels, groups: NDArray[np.int64] | None, seed: int) -> Rows:
        """Return the rows of each split."""
        if self.times is None:
            return fold_rows(self.folds or 0, self.fold, labels, groups, seed)
        if len(self.times) != len(labels.values):
            raise bad_argument(
                "times", f"{len(labels.values)}, one for each sample", len(self.times)
            )
        return rows_by_time(self.times, self.shares, self.folds, self.fold)

    def note(self, labels: Labels, groups: Any, seed: int) -> str:
        """Describe the origin of the splits."""
        how = "" if self.folds is None else f"fold {self.fold} of {self.folds}"
        if self.times is not None:
            percent = " / ".join(f"{100 * share:g}" for share in self.shares)
            return f"{how or f'{percent} % train / validation / test'}, in the order of time"
        how += ", stratified by class" if labels.are_classes else ""
        how += "" if groups is None else ", whole groups"
        return f"{how}, drawn with seed {seed}; the next fold is the validation split"


def check_folds(folds: Any, fold: Any) -> None:
    """Raise unless `folds` and `fold` are None, or a number of folds and one of these."""
    if folds is not None:
        check_integer("folds", folds, LEAST_FOLDS, MOST_FOLDS)
    if fold is not None:
        if folds is None:
            raise bad_argument("fold", "None without folds", fold)
        check_integer("fold", fold, 0, folds - 1)


def fold_rows(
    folds: int, fold: int, labels: Labels, groups: NDArray[np.int64] | None, seed: int
) -> Rows:
    """Return the rows of each split of one fold.

    Fold `fold` is the test split, the next fold is the validation split, and the others are the
    training split. Folds are stratified by class, and a group stays in one fold.

    Raises:
        InputError: A class or the groups are too few for the folds, or scikit-learn is missing.
    """
    require_packages("folds", "compare", "sklearn")
    from sklearn import model_selection as sklearn

    count, strata = len(labels.values), labels.values if labels.are_classes else None
    _check_sizes(folds, count, strata, groups, labels)
    if strata is None and groups is None:
        splitter = sklearn.KFold(folds, shuffle=True, random_state=seed)
    elif groups is None:
        splitter = sklearn.StratifiedKFold(folds, shuffle=True, random_state=seed)
    elif strata is None:
        splitter = sklearn.GroupKFold(folds, shuffle=True, random_state=seed)
    else:
        splitter = sklearn.StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    parts = [test for _, test in splitter.split(np.zeros(count), strata, groups)]
    return _splits(parts, fold)


def _splits(parts: list[NDArray[np.int64]], fold: int) -> Rows:
    after = (fold + 1) % len(parts)
    rest = [part for index, part in enumerate(parts) if index not in (fold, after)]
    train = np.sort(np.concatenate(rest))
    return {"train": train, "validation": parts[after], "test": parts[fold]}


def _check_sizes(
    folds: int,
    count: int,
    strata: NDArray[np.int64] | None,
    groups: NDArray[np.int64] | None,
    labels: Labels,
) -> None:
    if count < folds:
        raise bad_argument("folds", f"at most the {count} samples", folds)
    if groups is not None and (most := int(groups.max()) + 1) < folds:
        raise bad_argument("folds", f"at most the {most} groups", folds)
    if strata is not None and groups is None:
        sizes = np.bincount(strata)
        rare = int(sizes.argmin())
        if sizes[rare] < folds:
            raise bad_argument(
                "folds", f"at most {sizes[rare]}, the samples of class {labels.classes[rare]!r}",
                folds,
            )  # fmt: skip


def rows_by_time(
    times: NDArray[Any], shares: tuple[float, float, float], folds: int | None, fold: int
) -> Rows:
    """Return the rows of each split, the earliest for training and the latest for the test.

    Samples of one time stay in one split. With folds, the samples are divided into `folds` + 2
    periods: fold k tests on period k + 2, validates on period k + 1 and trains on all earlier
    periods.
    """
    order = np.argsort(times, kind="stable")
    if folds is None:
        ends = np.cumsum(shares)[:2] * len(times)
    else:
        periods = np.arange(1, folds + 2) * len(times) / (folds + 2)
        ends = periods[[fold, fold + 1]]
    places = [_between_times(times[order], round(end)) for end in ends.tolist()]
    stop = len(times)
    if folds is not None:
        last = round((fold + 3) * len(times) / (folds + 2))
        stop = stop if fold == folds - 1 else _between_times(times[order], last)
    cuts = [0, *places, stop]
    return {
        name: order[start:end] for name, start, end in zip(SPLITS, cuts[:-1], cuts[1:], strict=True)
    }


def _between_times(ordered: NDArray[Any], place: int) -> int:
    """Move a place in ordered times to the start of its time."""
    return int(np.searchsorted(ordered, ordered[min(place, len(ordered) - 1)], side="left"))


def read_times(times: Any, count: int) -> NDArray[Any]:
    """Read one time per sample: numbers, or dates such as 2024-01-31 or 2024-01-31T12:30."""
    values = plain_array(times)
    expected = f"{count} numbers or dates such as 2024-01-31, one for each sample"
    if values.shape != (count,):
        raise bad_argument("times", expected, f"shape {values.shape}")
    if values.dtype.kind in "OU":
        texts = [str(value) for value in values.tolist()]
        try:
            values = np.array(texts, dtype=np.float64)
        except ValueError:
            values = _dates(texts, expected)
    if values.dtype.kind not in "iufM":
        raise bad_argument("times", expected, str(values.dtype))
    missing = np.isnat(values) if values.dtype.kind == "M" else ~np.isfinite(values)
    if missing.any():
        raise bad_argument("times", "a time for each sample", f"none for {int(missing.argmax())}")
    if (different := len(np.unique(values))) < len(SPLITS):
        raise bad_argument("times", f"at least {len(SPLITS)} different times", different)
    return values


def _dates(texts: list[str], expected: str) -> NDArray[Any]:
    found = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*timezones")  # NumPy converts them to UTC
        for row, text in enumerate(texts):
            try:
                found.append(np.datetime64(text, "us"))
            except ValueError:
                raise bad_argument("times", expected, f"{text!r} for sample {row}") from None
    return np.array(found)
