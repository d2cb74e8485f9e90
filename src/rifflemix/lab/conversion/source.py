"""What `rifflemix convert` converts: a model, its batches, and the form of the written model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from rifflemix.files import write_json
from rifflemix.lab.conversion.outputs import Match, TaskLoss
from rifflemix.lab.conversion.report import ConversionReport
from rifflemix.mixers import mixer_options

MODEL = "model"
"""Folder of the converted model, in the folder of the conversion."""


@dataclass(frozen=True)
class Scores:
    """Metric of a run on the splits "validation" and "test", before and after a conversion."""

    metric: str
    before: dict[str, float]
    after: dict[str, float]


@dataclass(frozen=True)
class Saved:
    """A written conversion.

    Attributes:
        report: report of the conversion.
        model: folder of the converted model.
        scores: scores of a run; None for other models.
    """

    report: ConversionReport
    model: Path
    scores: Scores | None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of report.json."""
        scores = {} if self.scores is None else asdict(self.scores)
        return {**self.report.to_dict(), **scores, "model": str(self.model)}


@dataclass(frozen=True)
class Source:
    """A trained model to convert.

    Attributes:
        model: the model, in evaluation mode.
        batches, validation: batches for `rifflemix.convert`.
        write: writes a converted model to a new folder, and returns its scores if it is a run.
        loss, match, score, make_inputs, lengths: arguments of `rifflemix.convert`.
        options: options of the mixer, if it has them.
    """

    model: nn.Module
    batches: Sequence[Any]
    validation: Sequence[Any]
    write: Callable[[ConversionReport, Path], Scores | None]
    loss: TaskLoss | None = None
    match: Match = "auto"
    score: Callable[[nn.Module], float] | None = None
    make_inputs: Callable[[int], Any] | None = None
    lengths: Sequence[int] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def options_of(self, mixer: str) -> dict[str, Any]:
        """Return the options that a mixer has."""
        known = mixer_options(mixer)
        return {name: value for name, value in self.options.items() if name in known}

    def save(self, report: ConversionReport, out: Path) -> Saved:
        """Write report.json and the converted model to `out`; all files of the model at once."""
        written, folder = out / f".{MODEL}", out / MODEL
        shutil.rmtree(written, ignore_errors=True)
        saved = Saved(report, folder, self.write(report, written))
        write_json(out / "report.json", saved.to_dict())
        shutil.rmtree(folder, ignore_errors=True)
        written.rename(folder)
        return saved
