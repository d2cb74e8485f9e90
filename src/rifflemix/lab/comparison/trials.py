"""The trials of a comparison. Successive halving may stop the worse half of them early.

Source: K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", AISTATS 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rifflemix.errors import bad_argument
from rifflemix.lab.experiments import PlannedRun, Records
from rifflemix.lab.runs.status import Point, ranked_points
from rifflemix.lab.train.config import TrainConfig

SCORE = "mean over seeds of the best {metric} on the validation split so far"


@dataclass(frozen=True)
class Rung:
    """A comparison of the settings of one mixer during training.

    Attributes:
        step: completed updates of the trials.
        kept: number of settings that continue.
    """

    step: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class EarlyStops:
    """The rule that stopped trials: successive halving.

    Attributes:
        rungs, score: rungs in order, and the score in words that ranks settings at a rung.
    """

    rungs: list[Rung]
    score: str


def plan_rungs(settings: int, train: TrainConfig) -> tuple[Rung, ...]:
    """Plan the rungs for a number of settings.

    Each rung keeps half of the settings, rounded up, until one is left. The last rung is at half of
    the updates, the rung before at a quarter, and so on. Each is rounded up to the next evaluation.
    Of several rungs at one evaluation, the last counts.

    Raises:
        InputError: there are fewer than two settings, or no evaluation is early enough.
    """
    if settings < 2:
        raise bad_argument(
            "stop_early", "several learning rates", settings, "give two values of lr"
        )
    kept = [settings]
    while kept[-1] > 1:
        kept.append(-(-kept[-1] // 2))
    every = train.eval_every or train.max_steps
    found: dict[int, Rung] = {}
    for number, count in enumerate(kept[1:], start=1):
        step = -(-train.max_steps // (every * 2 ** (len(kept) - number))) * every
        if step < train.max_steps:
            found[step] = Rung(step, count)
    if not found:
        raise bad_argument(
            "stop_early", "an evaluation in the first half of the updates", "none",
            f"set eval_every to at most {max(1, train.max_steps // 2)}",
        )  # fmt: skip
    return tuple(found.values())


@dataclass(frozen=True)
class Trial:
    """The training of one mixer with one setting and one seed.

    Attributes:
        mixer, point, seed: mixer, settings and seed of the trial.
        names: names of its runs: up to each rung, and the whole training.
    """

    mixer: str
    point: Point
    seed: int
    names: Sequence[str]

    def newest(self, records: Records) -> str | None:
        """Return the name of its last finished run, or None."""
        return next((name for name in reversed(self.names) if name in records), None)


@dataclass(frozen=True)
class Trials:
    """The trials of a comparison. Rungs may stop some of them.

    Attributes:
        all: the trials in the order of the first runs; empty without tuning.
        rungs: the rungs; empty if no trial is stopped.
        max_steps: updates of a whole training.
        metric, higher_is_better: metric of the validation split that ranks settings.
    """

    all: Sequence[Trial]
    rungs: Sequence[Rung]
    max_steps: int
    metric: str
    higher_is_better: bool

    @cached_property
    def by_mixer(self) -> Mapping[str, list[Trial]]:
        """The trials of each mixer."""
        found: dict[str, list[Trial]] = {}
        for trial in self.all:
            found.setdefault(trial.mixer, []).append(trial)
        return found

    def planned(self, records: Records) -> list[PlannedRun]:
        """List the runs that can be made: all up to the first rung, then the kept ones."""
        found = []
        for stage in range(len(self.rungs) + 1):
            kept = {mixer: self.kept(records, mixer, stage) or () for mixer in self.by_mixer}
            found += [
                self._run(trial, stage)
                for trial in self.all
                if trial.point in kept[trial.mixer] and _may_start(records, trial, stage)
            ]
        return found

    def kept(self, records: Records, mixer: str, stage: int) -> list[Point] | None:
        """Return the settings of a mixer that `stage` rungs kept; None if a rung is undecided."""
        own = self.by_mixer[mixer]
        points = [trial.point for trial in own if trial.seed == own[0].seed]
        for passed, rung in enumerate(self.rungs[:stage]):
            runs = [
                trial
                for trial in own
                if trial.point in points and _may_start(records, trial, passed)
            ]
            if any(trial.names[passed] not in records for trial in runs):
                return None
            order = self._ranked(records, runs, points, passed)
            points = [point for point in points if point in order[: rung.kept]]
        return points

    def chosen(self, records: Records, mixer: str) -> Point | None:
        """Return the best settings of a mixer; None until its trials ended.

        If all trials diverged, these are the first settings.
        """
        own = self.by_mixer[mixer]
        if not all(self.has_ended(records, trial) for trial in own):
            return None
        points = self.kept(records, mixer, len(self.rungs)) or []
        order = self._ranked(records, own, points, len(self.rungs))
        return [*order, *points, own[0].point][0]

    def has_ended(self, records: Records, trial: Trial) -> bool:
        """Check whether a trial finished, diverged or was stopped."""
        name = trial.newest(records)
        if name is None:
            return False
        if name == trial.names[-1] or records[name].error is not None:
            return True
        kept = self.kept(records, trial.mixer, trial.names.index(name) + 1)
        return kept is not None and trial.point not in kept

    def stopped_at(self, name: str) -> int | None:
        """Return the step of the rung at which a run ends; None for a whole training."""
        return self._steps.get(name)

    def later_trainings(self, records: Records) -> Mapping[str, float]:
        """Return mixer -> work of runs that wait for a rung, in whole trainings."""
        found = dict[str, float]()
        for mixer, stage in self.undecided(records):
            count = self.rungs[stage - 1].kept * len({trial.seed for trial in self.all})
            work = count * (self.share(stage) - self.share(stage - 1))
            found[mixer] = found.get(mixer, 0.0) + work
        return found

    def undecided(self, records: Records) -> list[tuple[str, int]]:
        """List (mixer, stage) of the stages whose settings no rung has kept yet, from stage 1."""
        return [
            (mixer, stage)
            for mixer in self.by_mixer
            for stage in range(1, len(self.rungs) + 1)
            if self.kept(records, mixer, stage) is None
        ]

    def step_of(self, name: str) -> int:
        """Return the step at which a run ends."""
        return self._steps.get(name, self.max_steps)

    def share(self, stage: int) -> float:
        """Return the part of the training after which the runs of a stage end."""
        return self.rungs[stage].step / self.max_steps if stage < len(self.rungs) else 1.0

    def _ranked(
        self, records: Records, trials: Sequence[Trial], points: Sequence[Point], stage: int
    ) -> list[Point]:
        """Return the settings with a score at a stage, the best first."""
        scores = [
            [
                records[trial.names[stage]].chosen_validation()[self.metric]
                for trial in trials
                if trial.point == point and _is_done(records, trial.names[stage])
            ]
            for point in points
        ]
        order = ranked_points(scores, higher_is_better=self.higher_is_better)
        return [points[index] for index in order if scores[index]]

    @cached_property
    def _steps(self) -> Mapping[str, int]:
        return {
            name: rung.step
            for trial in self.all
            for name, rung in zip(trial.names, self.rungs, strict=False)
        }

    def _run(self, trial: Trial, stage: int) -> PlannedRun:
        return PlannedRun(
            trial.names[stage],
            trial.mixer,
            trial.seed,
            trial.point,
            tests=False,
            start=trial.names[stage - 1] if stage else None,
            share=self.share(stage),
        )


def _may_start(records: Records, trial: Trial, stage: int) -> bool:
    return stage == 0 or _is_done(records, trial.names[stage - 1])


def _is_done(records: Records, name: str) -> bool:
    return name in records and records[name].error is None
