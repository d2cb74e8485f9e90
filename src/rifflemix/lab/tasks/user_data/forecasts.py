"""Forecast tasks from series in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rifflemix.checks import check_integer, shown
from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.arrays import as_numpy, plain_array
from rifflemix.lab.tasks.core.base import SPLITS, Task
from rifflemix.lab.tasks.core.forecasts import ForecastTask, Series, SeriesInputs, WindowsOfSeries
from rifflemix.lab.tasks.core.kinds import FORECAST
from rifflemix.lab.tasks.user_data.choose_kind import Origin
from rifflemix.lab.tasks.user_data.folds import Rows, SplitPlan
from rifflemix.lab.tasks.user_data.splitting import check_shares, given_rows


@dataclass(frozen=True, eq=False)
class SeriesTable:
    """Several series, and the rows of `x` that they come from.

    Attributes:
        values: Values of each series.
        rows: Rows of `x` of each series. None if `x` is a list of series.
        names: Name of each series, for messages.
    """

    values: list[Series]
    rows: list[NDArray[np.int64]] | None
    names: list[str]


def forecast_task(
    x: Any,
    groups: Any,
    split: Any,
    sizes: tuple[int | None, int | None, int | None],
    known: Any,
    origin: Origin,
) -> Task:
    """Create a task from series.

    Each series is divided by time. Targets of a split are steps of this split. The steps before
    them may be in the split before. No window contains steps of two series.

    Args:
        x: One series (time,) or (time, channels), or several.
        groups: (time,) name of the series of each step, or None.
        split: Shares of train, validation and test, or the steps of each, or folds. With K folds,
            each series is divided into K + 2 periods, see `rows_by_time`.
        sizes: context, horizon and season, see `Task.from_arrays`.
        known: Channels that are known in advance: numbers, or names of columns.
        origin: Origin of the data.
    """
    context, horizon, season = _sizes(*sizes)
    table = _by_group(read_series(x), groups)
    series = table.values
    ends, note = _ends(split, table)
    for name, values, end in zip(table.names, series, ends, strict=True):
        _check_ends(name, len(values), end, context + horizon, horizon)
    train = [values[: end[0]] for values, end in zip(series, ends, strict=True)]
    steps = np.concatenate(train)
    mean, std = steps.mean(axis=0), steps.std(axis=0)
    std = np.where(std > 0, std, 1.0)
    channels = series[0].shape[1]
    ahead = _known_channels(known, channels, origin.columns)
    inputs = SeriesInputs(
        context, tuple(mean.tolist()), tuple(std.tolist()), origin.columns, origin.group, ahead,
        horizon if ahead else 0,
    )  # fmt: skip
    targets = list(inputs.targets)
    windows = {
        name: WindowsOfSeries(series, _starts(ends, place, context, horizon), context, horizon,
                              inputs)
        for place, name in enumerate(SPLITS)
    }  # fmt: skip
    data = f"{len(series):,} series of {channels} channels, {sum(map(len, series)):,} steps"
    return ForecastTask(
        name=origin.name,
        options={
            **origin.options, "kind": FORECAST.name, "context": context, "horizon": horizon,
            "season": season, **({"known": list(ahead)} if ahead else {}),
        },
        input_kind="vectors",
        vocab_size=None,
        num_features=channels,
        num_classes=horizon * len(targets),
        max_length=inputs.steps,
        padding=False,
        split_note=origin.split_note or note,
        data_source=origin.data_source,
        splits=windows,
        card=origin.card(FORECAST, data, len(windows["train"])),
        metric=FORECAST.metric,
        higher_is_better=False,
        inputs=inputs,
        target_mean=tuple(mean[targets].tolist()),
        target_std=tuple(std[targets].tolist()),
        horizon=horizon,
        season=season,
        naive_errors=tuple(
            _naive_errors(name, values, season, targets)
            for name, values in zip(table.names, train, strict=True)
        ),
    )  # fmt: skip


def _sizes(context: int | None, horizon: int | None, season: int | None) -> tuple[int, int, int]:
    for name, value in (("context", context), ("horizon", horizon)):
        if value is None:
            raise bad_argument(name, "a number of steps with kind 'forecast'", None)
    steps = check_integer("context", context, 1), check_integer("horizon", horizon, 1)
    return *steps, check_integer("season", 1 if season is None else season, 1, steps[0])


def read_series(x: Any) -> list[Series]:
    """Read one series, or a list of series with the same channels.

    Raises:
        InputError: Values are no finite numbers, or the channels differ.
    """
    values = plain_array(x)
    if values.dtype.kind == "O" and values.ndim == 2:
        values = _as_floats(values)
    is_list = isinstance(x, list | tuple) and all(getattr(one, "ndim", 0) for one in x)
    is_one = values.dtype.kind in "biuf" and values.ndim in (1, 2) and not is_list
    given = [values] if is_one else as_numpy(x)
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) == 0:
        raise bad_argument("x", "a series (time, channels) or a list of them", shown(x))
    found = [_one_series(row, number) for number, row in enumerate(given)]
    for number, row in enumerate(found):
        if row.shape[1] != found[0].shape[1]:
            got = f"{found[0].shape[1]} and {row.shape[1]} (series {number})"
            raise bad_argument("x", "the same number of channels in every series", got)
    return found


def _as_floats(values: NDArray[Any]) -> NDArray[Any]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return values


def _one_series(row: Any, number: int) -> Series:
    values = plain_array(row)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.dtype.kind not in "biuf" or values.size == 0:
        got = f"{values.dtype} of shape {values.shape} as series {number}"
        raise bad_argument("x", "numbers (time, channels)", got)
    values = values.astype(np.float64)
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        step, channel = wrong[0].tolist()
        raise bad_argument(
            "x", "finite numbers",
            f"{values[step, channel]} at step {step}, channel {channel} of series {number}",
            "fill or remove missing steps",
        )  # fmt: skip
    return values


def _by_group(series: list[Series], groups: Any) -> SeriesTable:
    """Divide a table of steps into the series of its groups, in the order of their names."""
    if groups is None:
        rows = [np.arange(len(series[0]))] if len(series) == 1 else None
        return SeriesTable(series, rows, [str(number) for number in range(len(series))])
    names = plain_array(groups)
    if len(series) == 1 and names.shape == (len(series[0]),):
        found, numbers = np.unique(names.astype(str), return_inverse=True)
        rows = [np.flatnonzero(numbers.reshape(-1) == number) for number in range(len(found))]
        return SeriesTable([series[0][of] for of in rows], rows, found.tolist())
    if len(series) > 1 and names.shape == (len(series),):
        return SeriesTable(series, None, names.astype(str).tolist())
    expected = "one name of a series for each step"
    raise bad_argument("groups", expected, f"shape {names.shape}")


Ends = tuple[int, int, int]
"""End of the training, validation and test steps of a series."""


def _ends(split: Any, table: SeriesTable) -> tuple[list[Ends], str]:
    """Return the ends of the splits in each series, and a note on them."""
    given = given_rows(split, sum(map(len, table.values)))
    if given is not None:
        return _given_periods(given, table), "consecutive periods, as given"
    borders, note = _borders(split)
    return [_rounded(len(values), borders) for values in table.values], note


def _rounded(steps: int, borders: tuple[float, float, float]) -> Ends:
    first, second, third = (round(steps * border) for border in borders)
    return first, second, third


def _given_periods(given: Rows, table: SeriesTable) -> list[Ends]:
    """Return the ends of the given splits in each series. They must be consecutive periods."""
    found = []
    if table.rows is not None:
        split_of = np.full(sum(map(len, table.values)), len(SPLITS))
        for place, name in enumerate(SPLITS):
            split_of[given[name]] = place
        for name, rows in zip(table.names, table.rows, strict=True):
            places = split_of[rows]
            if (np.diff(places) < 0).any() or (places == len(SPLITS)).any():
                raise bad_argument(
                    "split", "consecutive periods of each series: train, validation, test",
                    f"another order or steps without a split in series {name}",
                )  # fmt: skip
            first, second, third = np.searchsorted(places, (1, 2, 3)).tolist()
            found.append((first, second, third))
        return found
    raise bad_argument(
        "split", "three shares with a list of series", "steps",
        "join the series in one table, and name them with groups",
    )  # fmt: skip


def _borders(split: Any) -> tuple[tuple[float, float, float], str]:
    """Return the ends of the splits as shares of a series, and a note on them."""
    if isinstance(split, SplitPlan):
        if split.times is not None or split.folds is None:
            hint = "sort the rows of each series by time"
            raise bad_argument("times", "None with kind 'forecast'", "times", hint)
        first, second, third = ((split.fold + end) / (split.folds + 2) for end in (1, 2, 3))
        return (first, second, third), (
            f"fold {split.fold} of {split.folds}: each series has {split.folds + 2} periods; the "
            f"test is period {split.fold + 2} (from 0), the validation the period before it, and "
            "training has all earlier periods"
        )
    train, validation, test = check_shares(split)
    percent = " / ".join(f"{100 * share:g}" for share in (train, validation, test))
    return (train, train + validation, 1.0), (
        f"{percent} % of the steps of each series for train / validation / test, in the order of "
        "time"
    )


def _check_ends(name: str, steps: int, ends: Ends, window: int, horizon: int) -> None:
    """Raise unless each split of a series has a window."""
    first, second, third = ends
    sizes = {"train": (first, window), "validation": (second - first, horizon)}
    sizes["test"] = (third - second, horizon)
    for split, (found, least) in sizes.items():
        if found < least:
            what = "context + horizon" if split == "train" else "horizon"
            raise bad_argument(
                what, f"at most the {found} {split} steps of series {name}", least,
                f"the series has {steps} steps; shorten the windows, or leave the series out",
            )  # fmt: skip


def _starts(ends: Sequence[Ends], place: int, context: int, horizon: int) -> NDArray[np.int64]:
    found = []
    for number, end in enumerate(ends):
        first = 0 if place == 0 else end[place - 1] - context
        starts = np.arange(max(first, 0), end[place] - context - horizon + 1)
        found.append(np.stack([np.full(len(starts), number), starts], axis=1))
    return np.concatenate(found).astype(np.int64)


def _known_channels(known: Any, channels: int, columns: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the known channels. At least one channel is not known."""
    if known is None:
        return ()
    given = known.split(",") if isinstance(known, str) else np.atleast_1d(as_numpy(known)).tolist()
    places = {name: place for place, name in enumerate(columns)}
    found = tuple(sorted({places.get(one, one) for one in given}))
    names = ", ".join(columns) if columns else f"numbers from 0 to {channels - 1}"
    if not all(isinstance(c, int | np.integer) and 0 <= c < channels for c in found):
        raise bad_argument("known", f"some of the channels, {names}", shown(known))
    if not 0 < len(found) < channels:
        raise bad_argument("known", f"at least one channel, but not all of {names}", shown(known))
    return tuple(map(int, found))


def _naive_errors(
    name: str, train: Series, season: int, targets: Sequence[int]
) -> tuple[float, ...]:
    """Return the mean absolute error of the seasonal naive forecast of each target."""
    errors = np.abs(train[season:] - train[:-season]).mean(axis=0)[targets]
    if not (errors > 0).all():
        channel = targets[int(np.flatnonzero(errors <= 0)[0])]
        raise bad_argument(
            "x", f"channels that change in {season} steps",
            f"channel {channel} of series {name} without a change",
            "its season is exact, so that 'mase' has no unit; choose another season, or leave the "
            "series out",
        )  # fmt: skip
    return tuple(errors.tolist())
