"""Agreement of reproduced values with reported values, and averages over rows."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rifflemix.lab.recipes import (
    Recipe,
    dimension_mixer,
    get_recipe,
    list_recipes,
    mega,
    sliceformer,
    tost_lra,
)
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


_TRANSFORMERS: dict[str, Average] = {
    "Transformer": Average(54.39),
    "LocalAttention": Average(46.06),
    "LinearTrans": Average(50.55),
    "Reformer": Average(50.67),
    "Sinkformer": Average(51.18),
    "SparseTrans": Average(51.24),
    "SinkhornTrans": Average(51.29),
    "Linformer": Average(51.36),
    "Performer": Average(51.41),
    "Synthesizer": Average(52.88),
    "Longformer": Average(53.46),
    "BigBird": Average(55.01),
    "Cosformer": Average(55.23),
}
_CSP_TABLE_4: dict[str, Average] = {
    **_TRANSFORMERS,
    "Transformer using CSP": Average(58.91),
    "CCNN": Average(68.02, failed=2),
    "ETSMLP": Average(83.09),
    "S4": Average(80.48),
    "S5": Average(87.46),
    "SPADE": Average(86.19),
    "MEGA": Average(88.21),
    "MEGA-chunk": Average(85.66),
    "MEGA using CSP": Average(85.89),
}
_SLICEFORMER_TABLE_2: dict[str, Average] = {
    **_TRANSFORMERS,
    "Sliceformer, max-exchange": Average(54.96),
    "Sliceformer, order-interleave": Average(58.28),
    "Sliceformer, ascending": Average(58.91),
}
# The averages of the first four rows count Path-X, which the table does not show, as chance.
_TOST_TABLE_3: dict[str, Average] = {
    "Reformer": Average(50.56, failed=1),
    "BigBird": Average(54.17, failed=1),
    "LinFormer": Average(50.46, failed=1),
    "Performer": Average(51.18, failed=1),
    "Transformer": Average(59.24),
    "ToST": Average(59.90),
    "S4": Average(84.03),
}
_TOST_TABLE_4: dict[str, Average] = {
    "GPT2-Base": Average(4.26),
    "ToST-Base": Average(4.84),
    "ToST-Medium": Average(4.32),
    "ToST-Large": Average(4.02),
}
_DIMENSION_MIXER_TABLE_5: dict[str, Average] = {
    row: Average(printed, without=("Path-X",))
    for row, printed in {
        "Standard": 58.77,
        "Flash-Attn.": 59.8,
        "Reformer": 55.04,
        "Linformer": 55.59,
        "Performer": 53.63,
        "Nystromformer": 58.95,
        "Butterfly": 59.75,
    }.items()
}
_TABLES: dict[tuple[str, str], Mapping[str, Average]] = {
    (mega.PAPER, "Table 4"): _CSP_TABLE_4,
    (sliceformer.PAPER, "Table II"): _SLICEFORMER_TABLE_2,
    (tost_lra.PAPER, "Table 3"): _TOST_TABLE_3,
    (tost_lra.PAPER, "Table 4"): _TOST_TABLE_4,
    (dimension_mixer.PAPER, "Table 5"): _DIMENSION_MIXER_TABLE_5,
}


def printed_averages(paper: str, table: str) -> Mapping[str, Average]:
    """Return row -> average for a table of a paper."""
    return _TABLES.get((paper, table), {})


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
