"""Subjects, samples and findings of analyses: sentences, a table, numbers and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from rifflemix.checks import check_integer
from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.tasks import Progress, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_SAMPLES = 4096


@dataclass(frozen=True)
class View:
    """Samples, data and settings for an analysis.

    Attributes:
        samples: number of samples, from the validation split or random for a preset.
        batch_size: number of samples per batch.
        seed: seed of a preset's weights and random inputs.
        mixers: mixers to build a preset with; empty for its default mixer.
        settings: settings of a preset.
        tokens: length of a preset's random inputs, if the preset supports any length.
        data_dir: folder of the task's data files.
        data: current path of the data file, for a run on user data.
        task: the loaded task, for a run on user data in memory.
        progress: called with the progress of loading data.

    Example:
        >>> import rifflemix as rm
        >>> view = rm.analysis.View(samples=2, mixers=("csp", "softmax"))
        >>> [subject.label for subject in rm.analysis.find_subjects("encoder", view)]
        ['csp', 'softmax']
    """

    samples: int = 32
    batch_size: int = 16
    seed: int = 0
    mixers: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None
    tokens: int = 64
    data_dir: Path | None = None
    data: Path | None = None
    task: Task | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_integer("samples", self.samples, 1, _MOST_SAMPLES)
        check_integer("batch_size", self.batch_size, 1, _MOST_SAMPLES)
        check_integer("tokens", self.tokens, 1, 65_536)
        check_integer("seed", self.seed, 0, 2**63 - 1)


T = TypeVar("T")
Tick = Callable[[str, int, int], None]
"""Progress callback, called with the current subject, the finished steps and all steps."""


@dataclass(frozen=True)
class SweepPoint:
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
        sweep_point: result of a sweep with these settings; None for other models.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("csp", 64)
        >>> subject = rm.analysis.Subject("csp", mixer, [torch.randn(2, 16, 64)])
        >>> subject.label, len(subject.batches)
        ('csp', 1)
    """

    label: str
    model: nn.Module
    batches: Sequence[Any]
    task: Task | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    moments: Mapping[int, Path] = field(default_factory=dict)
    sweep_point: SweepPoint | None = None


@dataclass(frozen=True, eq=False)
class Finding:
    """Result of an analysis.

    Attributes:
        summary: sentences with the results, numbers included.
        headers: headers of the table.
        rows: texts of the table.
        caption: explanation of the figure.
        data: all numbers, as JSON values.
        figure: the figure.
        arrays: name -> array, for data that is too large for JSON.
        kind: name of the `Analysis`; set by `analyze`.
        title: its title.
        source: its source.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.create_model("encoder", vocab_size=10, mixer="csp")
        >>> finding = rm.analysis.analyze("collapse", model, [torch.randint(10, (4, 16))])
        >>> len(finding.rows), finding.kind
        (12, 'collapse')
    """

    summary: tuple[str, ...]
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    data: Mapping[str, Any]
    figure: Figure
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    kind: str = ""
    title: str = ""
    source: str = ""

    @property
    def seen(self) -> tuple[str, ...]:
        """Former name of `summary`."""
        return self.summary


Kind = Callable[[Sequence[Subject], Tick], Finding]
"""Function that analyzes the models of a target and reports its progress."""


@dataclass(frozen=True)
class Analysis:
    """Kind of analysis.

    Attributes:
        name: name in commands and files.
        title: heading of its section.
        source: figure or section of the paper that the analysis reproduces.
        run: the function.

    Example:
        >>> import rifflemix as rm
        >>> analysis = rm.analysis.get_analysis("permutation")
        >>> analysis.name, analysis.title
        ('permutation', 'Permutations of the tokens')
    """

    name: str
    title: str
    source: str
    run: Kind


@dataclass(frozen=True)
class Column:
    """Number of a layer: a column of the table, an entry of the data, or both.

    Attributes:
        header: heading in the table; empty if only the data contains the number.
        key: name in the data; empty if only the table contains the number.
        spec: format in the table.
        value: attribute of the layer's record, by default `key`, or a function of the record. The
            number is the mean of an attribute that is a list.
        scale: factor in the table, such as 100 for percent.

    Example:
        >>> import rifflemix as rm
        >>> from types import SimpleNamespace
        >>> column = rm.analysis.Column("Share, %", key="share", spec=".1f", scale=100)
        >>> column.text(SimpleNamespace(share=0.25))
        '25.0'
    """

    header: str
    key: str = ""
    spec: str = ".3f"
    value: str | Callable[[Any], Any] = ""
    scale: int = 1

    def of(self, layer: Any) -> Any:
        """Read the value of the column from the record of a layer.

        Args:
            layer: record of the layer.

        Returns:
            The number without `scale`, or another JSON value.
        """
        if callable(self.value):
            return self.value(layer)
        found = getattr(layer, self.value or self.key)
        return float(np.mean(found)) if isinstance(found, list) else found

    def text(self, layer: Any) -> str:
        """Format the value of a layer for the table.

        Args:
            layer: record of the layer.

        Returns:
            The number times `scale` in the format `spec`, or the value itself if it is a string.
        """
        value = self.of(layer)
        return value if isinstance(value, str) else format(self.scale * value, self.spec)


def layer_finding(
    found: Mapping[str, Sequence[Any]],
    columns: Sequence[Column],
    *,
    sentence: Callable[[str, Sequence[Any]], str],
    caption: str,
    figure: Figure,
    arrays: Callable[[Any], Mapping[str, NDArray[Any]]] = lambda layer: {},
) -> Finding:
    """Create a finding with one table row per layer of each model.

    Args:
        found: label -> records of the layers, with an attribute `name`.
        columns: numbers of a record.
        sentence: function from a label and its records to a sentence of the summary.
        caption: explanation of the figure.
        figure: the figure.
        arrays: function from a record to its arrays, by a suffix for their names.

    Returns:
        The finding.

    Example:
        >>> import rifflemix as rm
        >>> from types import SimpleNamespace
        >>> from rifflemix.lab.analysis.drawing import new_figure
        >>> layers = [SimpleNamespace(name=f"layer {n}", share=n / 4) for n in range(2)]
        >>> finding = rm.analysis.layer_finding(
        ...     {"csp": layers},
        ...     [rm.analysis.Column("Share", "share")],
        ...     sentence=lambda label, records: f"{label} has {len(records)} layers.",
        ...     caption="An empty figure.",
        ...     figure=new_figure(1.0),
        ... )
        >>> finding.summary, finding.rows[0]
        (('csp has 2 layers.',), ('csp', 'layer 0', '0.000'))
    """
    shown = [column for column in columns if column.header]
    stored = [column for column in columns if column.key]
    pairs = [(label, layer) for label, layers in found.items() for layer in layers]
    return Finding(
        summary=tuple(sentence(label, layers) for label, layers in found.items()),
        headers=("Model", "Layer", *(column.header for column in shown)),
        rows=tuple((label, of.name, *(c.text(of) for c in shown)) for label, of in pairs),
        caption=caption,
        data={
            "models": {
                label: [{"layer": of.name, **{c.key: c.of(of) for c in stored}} for of in layers]
                for label, layers in found.items()
            }
        },
        figure=figure,
        arrays={
            f"{label}/{of.name}{suffix}": array
            for label, of in pairs
            for suffix, array in arrays(of).items()
        },
    )


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
