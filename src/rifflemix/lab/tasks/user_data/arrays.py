"""Tasks from samples and labels in memory, with splits by folds and by time."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from rifflemix.checks import check_bool, check_integer
from rifflemix.errors import bad_argument, check_choice
from rifflemix.lab.tasks.core.arrays import TRUNCATIONS, Truncate, plain_array
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.core.from_user_data import DEFAULT_SPLIT
from rifflemix.lab.tasks.core.kinds import FORECAST, MASKED_TOKEN, NEXT_TOKEN, SEQ2SEQ
from rifflemix.lab.tasks.images.pixels import LAYOUTS
from rifflemix.lab.tasks.user_data.choose_kind import Origin, choose_kind, refuse_options
from rifflemix.lab.tasks.user_data.folds import SplitPlan, check_folds, read_times
from rifflemix.lab.tasks.user_data.forecasts import forecast_task
from rifflemix.lab.tasks.user_data.labelled import labelled_task
from rifflemix.lab.tasks.user_data.samples import count_samples
from rifflemix.lab.tasks.user_data.series_options import SeriesOptions, read_paths
from rifflemix.lab.tasks.user_data.splits import ImageOptions
from rifflemix.lab.tasks.user_data.splitting import Given, check_shares
from rifflemix.lab.tasks.user_data.token_targets import pairs_task, unlabelled_task
from rifflemix.lab.tasks.user_data.tokenizing import BYTES, TextOptions, check_tokenizer

_MOST_LENGTH = 1 << 32  # longer than any sample in memory


def from_arrays_once(
    x: Any,
    y: Any = None,
    *,
    lengths: Any = None,
    split: Any = DEFAULT_SPLIT,
    seed: int = 0,
    kind: str = "auto",
    groups: Any = None,
    max_length: int | None = None,
    drop_empty: bool = False,
    patch_size: int | None = None,
    layout: str = "sequence",
    frame: int | None = None,
    hop: int | None = None,
    missing: str = "error",
    normalize: bool = False,
    tokenizer: str = BYTES,
    truncate: Truncate = "head",
    context: int | None = None,
    horizon: int | None = None,
    season: int | None = None,
    known: Any = None,
    name: str = "arrays",
    origin: Origin | None = None,
) -> Task:
    """Implement `Task.from_arrays`. File readers describe the data with `origin`."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise bad_argument("name", "a printable text", repr(name))
    check_choice("layout", layout, LAYOUTS)
    if max_length is not None:
        max_length = min(check_integer("max_length", max_length, 1), _MOST_LENGTH)
    check_bool("drop_empty", drop_empty)
    check_choice("truncate", truncate, TRUNCATIONS)
    texts = TextOptions(max_length, truncate, check_tokenizer(tokenizer))
    origin, images = origin or Origin(name), ImageOptions(patch_size, layout)
    x, rate = read_paths(x)
    series = SeriesOptions(frame, hop, missing, normalize, rate).checked()
    choice = choose_kind(kind, x, y, lengths)
    if choice.kind in (FORECAST, NEXT_TOKEN, MASKED_TOKEN, SEQ2SEQ):
        series.check_unused(f"kind {choice.kind.name!r}")
    if choice.kind is FORECAST:
        refuse_options(kind, lengths=lengths, max_length=max_length)
        texts.check_no_texts()
        texts.check_whole(kind)
        images.check_unused("a series")
        return forecast_task(x, groups, split, (context, horizon, season), known, origin)
    refuse_options(kind, context=context, horizon=horizon, season=season, known=known)
    given = Given(x, y, lengths, groups, split)
    if drop_empty:
        given = given.without_empty()
    if choice.kind in (NEXT_TOKEN, MASKED_TOKEN):
        images.check_unused("sequences")
        texts.check_whole(kind)
        return unlabelled_task(given, choice.kind, texts, seed, origin)
    if choice.kind is SEQ2SEQ:
        images.check_unused("pairs of sequences")
        return pairs_task(given, texts, seed, origin)
    return labelled_task(given, choice, images, texts, series, seed, origin)


def from_arrays(
    x: Any,
    y: Any = None,
    *,
    split: Any = DEFAULT_SPLIT,
    folds: int | None = None,
    fold: int | None = None,
    times: Any = None,
    groups: Any = None,
    **options: Any,
) -> Task:
    """Implement `Task.from_arrays`."""
    if folds is None and fold is None and times is None:
        return from_arrays_once(x, y, split=split, groups=groups, **options)
    check_folds(folds, fold)
    if times is not None:
        if groups is not None:
            raise bad_argument("groups", "None with times", "values")
        times = read_times(times, count_samples(x))
    if folds is not None and plain_array(split).tolist() != list(DEFAULT_SPLIT):
        raise bad_argument("split", "no option with folds", "one", "folds make the splits")
    shares = check_shares(split)
    make = functools.partial(_fold, x, y, shares, folds, times, groups, options)
    if folds is None or fold is not None:
        return make(fold)
    first = make(0)
    options = {name: value for name, value in first.options.items() if name != "fold"}
    return replace(first, options=options, make_fold=make)


def _fold(
    x: Any,
    y: Any,
    shares: tuple[float, float, float],
    folds: int | None,
    times: Any,
    groups: Any,
    options: dict[str, Any],
    fold: int | None,
) -> Task:
    plan = SplitPlan(shares, folds, fold or 0, times)
    task = from_arrays_once(x, y, split=plan, groups=groups, **options)
    if folds is None:
        return task
    return replace(task, options={**task.options, "folds": folds, "fold": fold})
