"""The runs of an experiment; some depend on the records of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
        share: part of the training after which the run ends; 1 for a whole training.
    """

    name: str
    subject: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    tests: bool = True
    start: str | None = None
    share: float = 1.0


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


@runtime_checkable
class PlansInStages(Protocol):
    """An experiment whose later runs are known by their number only."""

    def later_trainings(self, records: Records) -> Mapping[str, float]:
        """Return subject -> work that `planned` will add, in whole trainings."""
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


@dataclass(frozen=True)
class Shard:
    """One of several disjoint parts of the runs of an experiment.

    The parts divide the mixers if settings are tuned, since the choice depends on all trials of a
    mixer. Otherwise they divide the runs. The run of an experiment with one run is in every part.

    Attributes:
        number: number of the part, from 1.
        count: number of parts.
    """

    number: int = 1
    count: int = 1

    def contains(self, experiment: Experiment, run: PlannedRun) -> bool:
        """Check whether a run belongs to this part."""
        first = [] if self.count == 1 else experiment.planned({})
        if len(first) < 2:
            return True
        if all(each.tests for each in first):
            return [each.name for each in first].index(run.name) % self.count == self.number - 1
        subjects = list(dict.fromkeys(each.subject for each in first))
        return subjects.index(run.subject) % self.count == self.number - 1


ALL_RUNS = Shard()
"""The part that contains every run."""


def unfinished(experiment: Experiment, records: Records) -> list[PlannedRun]:
    """List the runs that can start now."""
    return [run for run in experiment.planned(records) if run.name not in records]
