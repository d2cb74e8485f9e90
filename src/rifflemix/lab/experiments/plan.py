"""The runs of an experiment; some depend on the records of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rifflemix.lab.experiments.records import RunRecord

Records = Mapping[str, RunRecord]
"""Name of a finished run -> its record."""


@dataclass(frozen=True)
class PlannedRun:
    """One training of an experiment.

    Attributes:
        name: folder of the run below the experiment, such as "csp/seed0".
        subject: label of the mixer, or name of the recipe.
        seed: seed of the run.
        settings: settings that differ from the other runs of the experiment.
        tests: evaluate the chosen weights on the test split; a trial of tuning does not.
        start: name of a finished run that this run continues.
    """

    name: str
    subject: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    tests: bool = True
    start: str | None = None


class Experiment(Protocol):
    """A plan of runs with one folder.

    Attributes:
        out: folder of the experiment.
        settings: identity of the experiment, stored in config.json.
        free: dotted names of settings that may change when the experiment continues.
    """

    @property
    def out(self) -> Path: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def free(self) -> Collection[str]: ...

    def planned(self, records: Records) -> Sequence[PlannedRun]:
        """List the runs that can be made once these runs have finished, in order.

        The list only grows: a run that depends on others appears when their records exist.
        """
        ...


ONLY_RUN = "run"
"""Name of the run of an experiment that has one run."""


@dataclass(frozen=True)
class OneRun:
    """An experiment that consists of one run.

    Attributes:
        out: folder of the experiment.
        subject: label of the mixer, or name of the recipe.
        seed: seed of the run.
        settings: identity of the experiment, stored in config.json.
        free: dotted names of settings that may change when the run continues.
    """

    out: Path
    subject: str
    seed: int
    settings: Mapping[str, Any]
    free: Collection[str] = ()

    def planned(self, records: Records) -> list[PlannedRun]:
        """List the run."""
        return [PlannedRun(ONLY_RUN, self.subject, self.seed)]


def unfinished(experiment: Experiment, records: Records) -> list[PlannedRun]:
    """List the runs that can start now."""
    return [run for run in experiment.planned(records) if run.name not in records]
