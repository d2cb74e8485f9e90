"""What `rifflemix convert` converts: a model, its batches, and the form of the written model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
class Source:
    """A trained model to convert.

    Attributes:
        model: the model, in evaluation mode.
        batches, validation: batches for `rifflemix.convert`.
        write: writes a converted model to a new folder, and returns more entries of report.json.
        loss, match, score, make_inputs, lengths: arguments of `rifflemix.convert`.
        options: options of the mixer, if it has them.
    """

    model: nn.Module
    batches: Sequence[Any]
    validation: Sequence[Any]
    write: Callable[[ConversionReport, Path], dict[str, Any]]
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

    def save(self, report: ConversionReport, out: Path) -> dict[str, Any]:
        """Write report.json and the converted model to `out`; all files of the model at once.

        Returns:
            The content of report.json.
        """
        written, folder = out / f".{MODEL}", out / MODEL
        shutil.rmtree(written, ignore_errors=True)
        content = {**report.to_dict(), **self.write(report, written), MODEL: str(folder)}
        write_json(out / "report.json", content)
        shutil.rmtree(folder, ignore_errors=True)
        written.rename(folder)
        return content
