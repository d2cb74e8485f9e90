"""Samples, data and settings for an analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rifflemix.checks import check_integer
from rifflemix.lab.tasks import Progress, Task

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
