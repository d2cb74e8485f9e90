"""Subjects and findings of analyses: sentences, a table, numbers and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Tick = Callable[[str, int, int], None]
"""Progress callback, called with the current subject, the finished steps and all steps."""


@dataclass(frozen=True)
class Trial:
    """Result of a sweep at one point of its grid.

    Attributes:
        settings: settings of the point.
        metric: name of the metric with its unit, such as "accuracy, %".
        split: split of the task on which the metric was measured.
        mean, std: mean and standard deviation over seeds; std is None for a single seed.
        seeds: number of seeds.
    """

    settings: Mapping[str, Any]
    metric: str
    split: str
    mean: float
    std: float | None
    seeds: int


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and the data to analyze it with.

    Attributes:
        label: name in tables and figures.
        model: any module.
        batches: batches for `trace`; must allow repeated iteration.
        task: task of the batches; None for other data.
        about: description for results, as JSON values: folder, mixer, seed, step ...
        moments: step -> file with the weights that the run kept, see `over_training`.
        trial: result of a sweep with these settings; None for other models.
    """

    label: str
    model: nn.Module
    batches: Sequence[Any]
    task: Task | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    moments: Mapping[int, Path] = field(default_factory=dict)
    trial: Trial | None = None


@dataclass(frozen=True, eq=False)
class Finding:
    """Result of an analysis.

    Attributes:
        kind: name of the analysis.
        title: heading of its section.
        source: figure or section of the paper that the analysis reproduces.
        seen: sentences with the results, numbers included.
        headers, rows: table of texts.
        caption: explanation of the figure.
        data: all numbers, as JSON values.
        figure: the figure.
        arrays: name -> array, for data that is too large for JSON.
    """

    kind: str
    title: str
    source: str
    seen: tuple[str, ...]
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    data: Mapping[str, Any]
    figure: Figure
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def silent(text: str, done: int, total: int) -> None:
    """Ignore the progress (a `Tick`)."""


def progress(subject: Subject, items: Iterable[Any], tick: Tick) -> Iterable[Any]:
    """Yield one item per batch and report the progress.

    The callback runs before the first item and after each item.
    """
    total = len(subject.batches)
    tick(subject.label, 0, total)
    for done, item in enumerate(items, start=1):
        yield item
        tick(subject.label, done, total)


def of_those_that_have(subjects: Sequence[Subject], look: Callable[[Subject], T]) -> dict[str, T]:
    """Return the result for each subject by label.

    Subjects without suitable layers are skipped.

    Raises:
        InputError: no subject is suitable; the message contains the reason for each subject.
    """
    found: dict[str, T] = {}
    reasons: dict[str, list[str]] = {}
    for subject in subjects:
        try:
            found[subject.label] = look(subject)
        except RunFailed:
            raise
        except InputError as error:
            reason = str(error).removeprefix(f"{subject.label}: ")
            reasons.setdefault(reason, []).append(subject.label)
    if not found:
        raise InputError("; ".join(f"{', '.join(of)}: {why}" for why, of in reasons.items()))
    return found


def as_array(values: Any) -> NDArray[np.float64]:
    """Convert numbers or a tensor to float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)
