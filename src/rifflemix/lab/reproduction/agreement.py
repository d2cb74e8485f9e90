"""Agreement of reproduced values with reported values, and averages over rows."""

from __future__ import annotations

import csv
import functools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.report.units import is_share
from rifflemix.lab.reproduction.records import Reproduction
from rifflemix.lab.tasks import list_tasks, task_card

_CHANCE = 50.0


@dataclass(frozen=True)
class Average:
    """A reported average, in percent or in the unit of its columns.

    Attributes:
        printed: the number.
        failed: columns of two classes with FAIL, which count as chance in the average.
        without: columns with a number that the average leaves out.
    """

    printed: float
    failed: int = 0
    without: tuple[str, ...] = ()

    def average(self, values: Mapping[str, float]) -> float:
        """Average values by column in the same way."""
        counted = [value for column, value in values.items() if column not in self.without]
        return (sum(counted) + self.failed * _CHANCE) / (len(counted) + self.failed)


@functools.cache
def _averages() -> dict[tuple[str, str], dict[str, Average]]:
    """Read row -> average by paper and table.

    The first four rows of ToST's Table 3 count Path-X as chance, although the table leaves it out.
    """
    found: dict[tuple[str, str], dict[str, Average]] = {}
    file = Path(__file__).parent / "files" / "averages.csv"
    with file.open(encoding="utf-8", newline="") as text:
        for line in csv.DictReader(text):
            without = tuple(filter(None, line["without"].split(";")))
            average = Average(float(line["average"]), int(line["failed"] or 0), without)
            found.setdefault((line["paper"], line["table"]), {})[line["row"]] = average
    return found


def printed_averages(paper: str, table: str) -> Mapping[str, Average]:
    """Return row -> average for a table of a paper."""
    return _averages().get((paper, table), {})


OTHER_DATA = "other data"
OTHER_SETTINGS = "other settings"
# Fields without an effect on a run, and settings that the command line changes.
_NOT_SETTINGS = (
    "name", "paper", "table", "row", "column", "printed", "notes", "planned_steps",
    "not_comparable",
)  # fmt: skip
_OF_A_RUN = ("seed", "compile", "num_workers", "precision", "batch_size")


@dataclass(frozen=True)
class Agreement:
    """Difference between a reproduced and a reported value.

    Attributes:
        difference: reproduced minus reported, in the reported unit.
        reproduced_error: standard error of the reproduced value that its test samples give, None
            if unknown.
        reported_error: standard error of the reported value, None if unknown.
    """

    difference: float
    reproduced_error: float | None
    reported_error: float | None

    @property
    def error(self) -> float | None:
        """Standard error of the difference from the known errors, None if no error is known."""
        known = [e for e in (self.reproduced_error, self.reported_error) if e is not None]
        return math.hypot(*known) if known else None

    @property
    def is_beyond(self) -> bool:
        """Whether the difference is larger than two standard errors."""
        return self.error is not None and abs(self.difference) > 2 * self.error

    @property
    def unknown(self) -> str:
        """The value without a known standard error, or an empty string."""
        names = {"the reproduced value": self.reproduced_error, "print": self.reported_error}
        return " or ".join(name for name, error in names.items() if error is None)


def agreement(runs: Sequence[Reproduction]) -> Agreement | None:
    """Compare the mean over runs of one recipe with the reported value.

    Returns:
        None without a reported value or a finished run, for runs that are reduced or have other
        data or settings than the recipe, and for recipes that are not comparable with print.
    """
    first = runs[0]
    reported, ours = first.recipe.printed, [run.ours for run in runs]
    values = [value for value in ours if value is not None]
    if reported is None or len(values) < len(runs) or any(map(is_reduced, runs)):
        return None
    if any(map(changed_settings, runs)) or _is_not_comparable(first.recipe.name):
        return None
    value = statistics.fmean(values)
    return Agreement(
        value - reported,
        standard_error(replace(first, ours=value)),
        _share_error(first.recipe.metric, reported, count_test_samples(first)),
    )


def count_test_samples(result: Reproduction) -> int | None:
    """Return the samples of the test split that a result is of, None if unknown.

    The reported value is assumed to have the same number: the task's test split is the paper's.
    """
    task, metric = result.task, result.recipe.metric
    sizes = task.sizes
    if sizes is None:  # files of earlier versions
        found = task.options.get("num_test")
        return found if isinstance(found, int) else None
    further = [name for name in sizes if metric.startswith(f"{name}_")]
    return int(sizes[further[0] if further else "test"])


def standard_error(result: Reproduction) -> float | None:
    """Return the standard error of `ours` that the test samples give, None if unknown."""
    samples = count_test_samples(result)
    if is_share(result.recipe.metric):
        return _share_error(result.recipe.metric, result.ours, samples)
    return _measured_error(result, samples)


def _share_error(metric: str, percent: float | None, samples: int | None) -> float | None:
    """Return the standard error of a share of the samples, in percent."""
    if percent is None or samples is None or samples < 1 or not is_share(metric):
        return None
    share = percent / 100
    return 100 * math.sqrt(max(share * (1 - share), 0.0) / samples)


def _measured_error(result: Reproduction, samples: int | None) -> float | None:
    """Return the standard error of a metric from its deviation over the samples."""
    deviation = (result.result.test or {}).get(f"{result.recipe.metric}_deviation")
    if deviation is None or samples is None or samples < 1:
        return None
    return float(deviation) / math.sqrt(samples)


def is_reduced(result: Reproduction) -> bool:
    """Return whether a run has fewer steps, smaller batches or less width than its recipe."""
    return min(shares(result)) < 1


def shares(result: Reproduction) -> tuple[float, float, float]:
    """Return the shares of the recipe's width, updates and batch that a run has."""
    batch, planned = batch_sizes(result)
    steps = result.steps / result.steps_planned
    return result.recipe.width, steps, min(1.0, batch / planned)


def batch_sizes(result: Reproduction) -> tuple[int, int]:
    """Return the samples per update of a run and of its recipe."""
    batch, listed = result.recipe.train.batch_size, _listed(result.recipe.name)
    own = batch if listed is None else listed.train.batch_size  # files of earlier versions
    return batch, result.batch_size_planned or own


def changed_settings(result: Reproduction) -> str:
    """Return "other data" or "other settings" if a run differs from its recipe, else "".

    A reduced run has other settings by design, so only its data are compared.
    """
    today = _listed(result.recipe.name)
    if today is None:
        return ""
    if data_of(result) != _data(today.task, today.task_options):
        return OTHER_DATA
    if is_reduced(result):
        return ""
    return "" if settings_of(result) == _settings(today) else OTHER_SETTINGS


def data_of(result: Reproduction) -> str:
    """Return a name of a run's task and its options; equal names are equal data."""
    return _data(result.task.name, result.task.options)


def settings_of(result: Reproduction) -> str:
    """Return a name of a run's model and training; equal names are equal settings."""
    return _settings(result.recipe)


def _data(task: str, options: Mapping[str, Any]) -> str:
    """Return task and options. Options that a stored run lacks have their defaults."""
    defaults = task_card(task).options if task in list_tasks() else {}
    return json.dumps([task, {**defaults, **options}], sort_keys=True, default=list)


def _settings(recipe: Recipe) -> str:
    """Return model and training of a recipe, without settings of the command line."""
    values = recipe.to_dict()
    for name in (*_NOT_SETTINGS, "task_options"):
        del values[name]
    for name in _OF_A_RUN:
        del values["train"][name]
    return json.dumps(values, sort_keys=True, default=list)


def _is_not_comparable(name: str) -> bool:
    today = _listed(name)
    return today is not None and bool(today.not_comparable)


def _listed(name: str) -> Recipe | None:
    return get_recipe(name) if name in list_recipes() else None
