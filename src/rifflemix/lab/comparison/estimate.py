"""Estimate of how long a comparison takes, from a few updates of each mixer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from rifflemix.compat import evaluation_mode
from rifflemix.lab.comparison.config import CompareConfig, trial_label
from rifflemix.lab.comparison.models import build_model, first_parts, outputs_of, update
from rifflemix.lab.comparison.plan import ComparePlan
from rifflemix.lab.experiments import Records, RunStore
from rifflemix.lab.report.units import format_duration
from rifflemix.lab.runs.environment import using_threads
from rifflemix.lab.runs.measure import Call, median, seconds_of
from rifflemix.lab.runs.status import OnStatus, RunStatus, ShouldStop, never
from rifflemix.lab.tasks import Task
from rifflemix.lab.train.data import further_tests
from rifflemix.lab.train.optim import build_optimizer
from rifflemix.lab.train.protocols import Batch, MeasuresWriting

_TIMINGS = 3
_LONG_SECONDS = 1.0

RunKey = tuple[str, int, str]
"""Mixer, seed, and the label of a trial or an empty text.

The settings that a rung will keep are unknown. The labels of their trials start with `_KEPT`.
"""
_KEPT = "kept"


@dataclass(frozen=True)
class Estimate:
    """Remaining runs of a comparison, and their time.

    Attributes:
        steps: updates of a run.
        trials: runs that tune a setting.
        seconds: run -> its estimated time, trials included; runs that have ended are left out.
        is_writing: the test writes sequences token by token. The estimate leaves out their time.
    """

    steps: int
    trials: int
    seconds: Mapping[RunKey, float]
    is_writing: bool = False

    def __str__(self) -> str:
        """Return one sentence for a terminal."""
        runs = len(self.seconds) - self.trials
        trials = f"{self.trials} trials and " if self.trials else ""
        rest = " without the sequences that the test writes" if self.is_writing else ""
        return (
            f"{trials}{runs} run{'s' if runs != 1 else ''} of {self.steps:,} updates: about "
            f"{format_duration(sum(self.seconds.values()))} in all{rest}, estimated from "
            f"{_TIMINGS} updates of each mixer (within a factor of 2 as a rule)"
        )


@dataclass(frozen=True)
class _Cost:
    """Seconds of all updates and evaluations of a run, and of its test."""

    training: float
    test: float


def estimate_comparison(
    plan: ComparePlan, records: Records, on_status: OnStatus, should_stop: ShouldStop
) -> Estimate | None:
    """Time a few updates of every mixer that has not finished.

    Args:
        plan: the comparison.
        records: the finished runs.
        on_status: called before each mixer.
        should_stop: polled before each mixer.

    Returns:
        The estimate, or None if `should_stop` returned True.
    """
    config, task, costs = plan.config, plan.task, dict[str, _Cost]()
    shares = _trial_shares(plan, records)
    ended = plan.finished_runs(records).ended
    runs = [(seed, mixer) for seed, mixer in plan.runs if (mixer, seed) not in ended]
    device = torch.device(config.device)
    parts = first_parts(config, task, device)
    # Loading processes make batches while the model computes.
    is_hidden = config.train.num_workers > 0
    data = 0.0 if is_hidden else _seconds(lambda: first_parts(config, task, device), device)
    for seed, mixer in runs:
        if should_stop():
            return None
        if mixer not in costs:
            on_status(RunStatus(mixer, seed, "estimating", 0, config.train.max_steps))
            costs[mixer] = _run_cost(config, task, mixer, parts, data)
    # A tuned run is one of the trials. Only its test is left.
    own = {mixer: 0.0 if config.tuned else cost.training for mixer, cost in costs.items()}
    seconds = {
        **{key: share * costs[key[0]].training for key, share in shares.items() if key[0] in costs},
        **{(mixer, seed, ""): own[mixer] + costs[mixer].test for seed, mixer in runs},
    }
    is_writing = isinstance(task, MeasuresWriting)
    return Estimate(config.train.max_steps, len(seconds) - len(runs), seconds, is_writing)


def _trial_shares(plan: ComparePlan, records: Records) -> dict[RunKey, float]:
    """Return trial -> part of a whole training that is left, also for unknown kept settings."""
    trials, found = plan.trials, dict[RunKey, float]()
    for run in trials.planned(records):
        if run.name not in records:
            step = trials.stopped_at(run.name)
            key = run.subject, run.seed, trial_label(dict(run.settings), step)
            done = 0.0 if run.start is None else trials.step_of(run.start) / trials.max_steps
            found[key] = run.share - done
    for mixer, stage in trials.undecided(records):
        rung = trials.rungs[stage - 1]
        step = trials.rungs[stage].step if stage < len(trials.rungs) else None
        for seed in plan.config.seeds:
            for number in range(1, rung.kept + 1):
                label = trial_label({_KEPT: f"{number}of{rung.kept}"}, step)
                found[mixer, seed, label] = trials.share(stage) - trials.share(stage - 1)
    return found


def suite_seconds(plans: Iterable[ComparePlan], on_status: OnStatus) -> list[float]:
    """Estimate the time of every run and trial that remains in comparisons."""
    seconds: list[float] = []
    for plan in plans:
        with using_threads(plan.config.threads):
            estimate = estimate_comparison(plan, RunStore(plan).records(), on_status, never)
        seconds += [] if estimate is None else estimate.seconds.values()
    return seconds


class TimeLeft:
    """Adds the time until the end of the whole comparison to every status.

    The estimates of later runs are scaled by the pace of the runs that ended here.

    Args:
        estimate: estimate of the whole comparison.
        on_status: called with the statuses.
    """

    def __init__(self, estimate: Estimate, on_status: OnStatus) -> None:
        self._left = dict(estimate.seconds)
        self._on_status = on_status
        self._run: RunKey | None = None
        self._start = self._spent = self._expected = 0.0

    def __call__(self, status: RunStatus) -> None:
        """Pass a status on."""
        run, now = (status.mixer, status.seed, status.trial), time.monotonic()
        if run != self._run:
            self._name(run)
            self._run, self._start = run, now
        if status.state in ("done", "diverged") and run in self._left:
            expected = self._left.pop(run)
            if status.state == "done":
                self._spent += now - self._start
                self._expected += expected
        pace = self._spent / self._expected if self._expected else 1.0
        own = pace * self._left.get(run, 0.0) * (1 - status.step / status.max_steps)
        if status.seconds_left is not None and run in self._left:
            own = status.seconds_left
        others = math.fsum(seconds for key, seconds in self._left.items() if key != run)
        self._on_status(replace(status, seconds_left_in_all=own + pace * others))

    def _name(self, run: RunKey) -> None:
        """Give the estimate for an unknown kept setting to a trial that a rung kept."""
        mixer, seed, label = run
        if run in self._left or not label:
            return
        for other in self._left:
            is_kept = other[2].startswith(f"{_KEPT}=") and other[:2] == (mixer, seed)
            if is_kept and other[2].partition("/")[2] == label.partition("/")[2]:
                self._left[run] = self._left.pop(other)
                return


def _run_cost(
    config: CompareConfig, task: Task, mixer: str, parts: list[Batch], data: float
) -> _Cost:
    """Measure a run on batches of these parts. Making such a batch takes `data` seconds."""
    device, train = torch.device(config.device), config.train
    model = build_model(config, task, mixer, config.seeds[0]).to(device).train()
    optimizer = build_optimizer(model, train)

    def evaluate() -> None:
        with torch.no_grad(), evaluation_mode(model):
            task.metrics(outputs_of(model, config, parts[0]), parts[0])

    def batches(split: str) -> int:
        return math.ceil(len(task.split(split)) / train.batch_size * len(parts))

    one = _seconds(lambda: update(model, optimizer, config, task, parts), device) + data
    batch = _seconds(evaluate, device) + data / len(parts)
    evaluations = 1 if train.eval_every is None else math.ceil(train.max_steps / train.eval_every)
    tests = sum(batches(split) for split in ("test", *further_tests(task)))
    return _Cost(train.max_steps * one + evaluations * batches("validation") * batch, tests * batch)


def _seconds(call: Call, device: torch.device) -> float:
    """Return the median time of calls after the first, or the time of a long first call."""
    first = seconds_of(call, device)
    if first >= _LONG_SECONDS:
        return first
    return median([seconds_of(call, device) for _ in range(_TIMINGS)])
