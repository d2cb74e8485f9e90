"""The record of a finished run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.files import read_json, write_json
from rifflemix.json_values import check_seal, sealed
from rifflemix.lab.decode import decode
from rifflemix.lab.runs.environment import Environment
from rifflemix.lab.train import TrainResult

FORMAT = "rifflemix.run/1"
RECORD_FILE = "record.json"
_ADVICE = "remove its folder to train this run again"


@dataclass(frozen=True)
class Utilisation:
    """Model FLOP utilisation (MFU) of a training step.

    Attributes:
        flops_per_step: FLOPs of matrix products, convolutions and attention, forward and backward,
            with samples padded as in training.
        flops_per_second: FLOPs per second at the measured speed, over all processes.
        matmul_flops_per_second: speed of a large matrix product on this device and dtype.
        share: the first rate divided by the second.
    """

    flops_per_step: int
    flops_per_second: float
    matmul_flops_per_second: float
    share: float


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The outcome of one run.

    Attributes:
        name: folder of the run below the experiment, such as "csp/seed0".
        subject: label of the mixer, or name of the recipe.
        seed: seed of the run.
        settings: settings that differ from the other runs of the experiment.
        error: why training diverged; None if it did not.
        result: outcome of the training; None if it diverged.
        train_curve: step and mean training loss of each log line.
        wall_seconds: time of the training, over all processes that worked on it.
        peak_memory_bytes: memory of a training step; None if it was not measured.
        utilisation: use of the processor; None if it was not measured.
        started_from: name of the run that this run continued; its time is part of `wall_seconds`.
        environment: command, versions and hardware of the process that finished the run.
    """

    name: str
    subject: str
    seed: int
    settings: dict[str, Any]
    error: str | None
    result: TrainResult | None
    train_curve: list[dict[str, int | float]]
    wall_seconds: float
    peak_memory_bytes: int | None
    utilisation: Utilisation | None
    started_from: str | None
    environment: Environment

    @property
    def trained(self) -> TrainResult:
        """The result of a run that did not diverge."""
        if self.result is None:
            raise ValueError(f"{self.name} diverged: {self.error}")
        return self.result

    def chosen_validation(self) -> dict[str, float]:
        """Return the metrics of the best evaluation; empty without a validation split."""
        result = self.trained
        return next((at for at in result.validation if at["step"] == result.best_step), {})


def write_record(folder: Path, record: RunRecord) -> None:
    """Write the record of a run into its folder."""
    write_json(folder / RECORD_FILE, sealed({"format": FORMAT, **asdict(record)}))


def read_record(folder: Path) -> RunRecord | None:
    """Read the record of a run, or return None if the folder has none.

    Raises:
        InputError: the file cannot be read, was changed, or has another format.
    """
    path = folder / RECORD_FILE
    if not path.exists():
        return None
    value = read_json(path, _ADVICE)
    try:
        check_seal(value)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        record = decode(RunRecord, value)
        if (record.result is None) == (record.error is None):
            raise ValueError("expected a result or an error")
        if record.result is not None:
            record.result.check()
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; {_ADVICE}") from error
    return record


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write a file that is derived from records, unless it has this content already."""
    with contextlib.suppress(InputError):
        if path.exists() and read_json(path) == json.loads(json.dumps(summary)):
            return
    write_json(path, summary)


def newest_environment(records: Mapping[str, RunRecord]) -> Environment | None:
    """Return the environment of the run that finished last; None without runs."""
    environments = [record.environment for record in records.values()]
    return max(environments, key=lambda at: at["time"], default=None)
