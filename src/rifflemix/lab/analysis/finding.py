"""What an analysis gives: sentences, a table, numbers and a picture, and the subjects it is of."""

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
"""Called with what is being looked at, how much is done, and of how much."""


@dataclass(frozen=True)
class Trial:
    """What a sweep reached at one point of its grid.

    Attributes:
        settings: the point.
        metric: with its unit, such as "accuracy, %".
        split: that it was measured on.
        mean, std: over seeds; no deviation of one.
        seeds: how many.
    """

    settings: Mapping[str, Any]
    metric: str
    split: str
    mean: float
    std: float | None
    seeds: int


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and the data that it is looked at with.

    Attributes:
        label: its name in tables and pictures.
        model: any module.
        batches: what `trace` takes; can be gone through as often as one likes.
        task: where the batches come from; None for other data.
        about: what results say of it, as JSON values: folder, mixer, seed, step ...
        moments: step -> file of the weights that its run kept then, see `over_training`.
        trial: what a sweep reached with its settings; None for other models.
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
    """What was found.

    Attributes:
        kind: the name of the analysis.
        title: the heading of its section.
        source: the figure or section of the paper that it makes again.
        seen: sentences with what was found, numbers included.
        headers, rows: a table of texts.
        caption: how to read the picture.
        data: all numbers, as JSON values.
        arrays: what is too large for JSON.
        figure: the picture.
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
    """A `Tick` that shows nothing."""


def progress(subject: Subject, items: Iterable[Any], tick: Tick) -> Iterable[Any]:
    """The items, one for each batch of a subject, with a tick before the first and after each."""
    total = len(subject.batches)
    tick(subject.label, 0, total)
    for done, item in enumerate(items, start=1):
        yield item
        tick(subject.label, done, total)


def of_those_that_have(subjects: Sequence[Subject], look: Callable[[Subject], T]) -> dict[str, T]:
    """What is found in each subject, by its label; without those that have nothing to look into.

    Raises:
        InputError: none has; of every subject it says why.
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
    """Numbers or a tensor as float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)
