"""What models are looked at with."""

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
    """What to look at a model with.

    Attributes:
        samples: of the validation split, or random ones of a preset.
        batch_size: samples in a batch: what is held at a time.
        seed: of a preset's weights and random inputs.
        mixers: of a preset that takes any; empty for its own.
        settings: of a preset.
        tokens: of a preset's random inputs, where it takes sequences of any length.
        data_dir: folder of the task's data files.
        data: of a run on a file of your own: where it is now.
        task: of a run on data of your own: the very data, loaded.
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
        """Check the numbers."""
        check_integer("samples", self.samples, 1, _MOST_SAMPLES)
        check_integer("batch_size", self.batch_size, 1, _MOST_SAMPLES)
        check_integer("tokens", self.tokens, 1, 65_536)
        check_integer("seed", self.seed, 0, 2**63 - 1)
