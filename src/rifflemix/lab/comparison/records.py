"""The records of results.json of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rifflemix.errors import InputError, RunFailed, bad_argument
from rifflemix.files import read_json
from rifflemix.json_values import ABSENT, check_seal, content_hash, decode, encode
from rifflemix.lab.comparison.config import FORMAT
from rifflemix.lab.comparison.plan import RUNS_ARE_KEPT
from rifflemix.lab.comparison.trials import EarlyStops
from rifflemix.lab.runs.environment import Environment
from rifflemix.lab.runs.status import Point, Protocol, Summary
from rifflemix.lab.train.run_folder import Metrics


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """A finished run or trial.

    Attributes:
        mixer: label of the mixer.
        seed: seed of the run.
        folder: folder of the run, relative to the results.
        started_from: folder of the trial that the run continued; its time is part of
            `wall_seconds`.
        settings: settings of a trial; None for a run.
        stopped_at: rung that stopped a trial; None for a run, and for a whole training.
        steps, best_step: updates, and the step of the chosen weights.
        parameters: trainable parameters.
        processes: processes that trained together.
        steps_per_second, tokens_per_second: None if the speed was not measured.
        wall_seconds, seconds: time in total, and by activity.
        validation, test: metrics of the chosen weights; trials are not tested.
        validation_curve, train_curve: every evaluation, and every log line.
        environment: command, versions and hardware.
        beside: maximum number of other trainings on the same device or processor; None if it was
            not recorded.
        confusion: number of test samples by true class (rows) and predicted class; None without
            such a table.
        measured_apart: whether the speed was measured again, without other trainings.
        sha256: checksum of the other entries.
    """

    mixer: str
    seed: int
    folder: str
    started_from: str | None = None
    settings: Point | None = field(default=None, metadata=ABSENT)
    stopped_at: int | None = field(default=None, metadata=ABSENT)
    steps: int
    best_step: int | None
    parameters: int
    processes: int = 1
    steps_per_second: float | None
    tokens_per_second: float | None
    wall_seconds: float
    seconds: dict[str, float]
    validation: Metrics
    test: Metrics | None
    validation_curve: list[Metrics]
    train_curve: list[Metrics]
    environment: Environment
    beside: int | None = field(default=None, metadata=ABSENT)
    confusion: list[list[int]] | None = field(default=None, metadata=ABSENT)
    measured_apart: bool | None = field(default=None, metadata=ABSENT)
    sha256: str | None = field(default=None, metadata=ABSENT)

    @property
    def has_shared_speed(self) -> bool:
        """Whether the speed is too low because of other trainings."""
        is_shared = bool(self.beside) and not self.measured_apart
        return is_shared and self.steps_per_second is not None

    def metrics(self, split: str) -> Metrics:
        """Return the metrics of the chosen weights on the test or the validation split."""
        return self.validation if split == "validation" else self.test or {}


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run or trial that diverged.

    Attributes:
        mixer, seed, folder, settings: as in `RunEntry`.
        error: why training diverged.
        wall_seconds: time of a trial; None for a run.
    """

    mixer: str
    seed: int
    folder: str
    error: str
    settings: Point | None = field(default=None, metadata=ABSENT)
    wall_seconds: float | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The trials of a comparison.

    Attributes:
        grid: setting -> values.
        trials_planned: number of trials.
        early_stops: the rule that stopped trials; None if all were trained to the end.
        trials, failed_trials: finished trials, and trials that diverged.
    """

    grid: dict[str, list[Any]]
    trials_planned: int
    early_stops: EarlyStops | None = field(default=None, metadata=ABSENT)
    trials: list[RunEntry]
    failed_trials: list[FailedRun]

    @property
    def all_trials(self) -> list[RunEntry | FailedRun]:
        """All trials that ended."""
        return [*self.trials, *self.failed_trials]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Settings that a mixer tried.

    Attributes:
        settings: the settings.
        validation: the metric over seeds; None if all trials diverged.
        diverged: number of trials that diverged.
        stopped_at: rung that stopped the trials; None for whole trainings.
    """

    settings: Point
    validation: Summary | None
    diverged: int
    stopped_at: int | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class MixerTuning:
    """Tuning of one mixer.

    Attributes:
        tried: all settings.
        chosen: the settings that validation chose; None until all trials ended.
        wall_seconds: time of all trials.
    """

    tried: list[Tried]
    chosen: Point | None
    wall_seconds: float


@dataclass(frozen=True, kw_only=True)
class ChosenMetric:
    """The metric that chose the weights, over seeds.

    Attributes:
        name, higher_is_better: name and direction of the metric.
        validation, test: summaries; None without a finished run.
    """

    name: str
    higher_is_better: bool
    validation: Summary | None
    test: Summary | None


@dataclass(frozen=True, kw_only=True)
class MixerSummary:
    """The runs of one mixer, summarized.

    Attributes:
        name, title, paper, complexity: label of the mixer, and entries of its card.
        parameters: trainable parameters of the model.
        validation, test: accuracy over seeds; None if the task has no accuracy.
        metric: the metric that chose the weights; None if it is accuracy.
        steps_per_second: median over seeds.
        peak_memory_bytes: memory of a training step.
        state_size: numbers that a stream keeps per sequence at the maximum length, all layers;
            see `Model.state_size`. None in older results.
        tuning: the trials; None if nothing is tuned.
    """

    name: str
    title: str
    paper: str
    complexity: str
    parameters: int
    validation: Summary | None = None
    test: Summary | None = None
    metric: ChosenMetric | None = None
    steps_per_second: float | None = None
    peak_memory_bytes: int | None
    state_size: int | None = field(default=None, metadata=ABSENT)
    tuning: MixerTuning | None = field(default=None, metadata=ABSENT)

    @property
    def chosen(self) -> ChosenMetric:
        """The metric that chose the weights."""
        return self.metric or ChosenMetric(
            name="accuracy", higher_is_better=True, validation=self.validation, test=self.test
        )

    @property
    def choice(self) -> Point | None:
        """The settings that validation chose, if any."""
        return None if self.tuning is None else self.tuning.chosen


@dataclass(frozen=True, kw_only=True)
class TaskSummary:
    """The task of a comparison.

    Attributes:
        name, title, source, licence, options: entries of the task's card, and its options.
        data_source, fingerprint: origin and checksum of the data.
        num_classes, max_length: shape of the samples.
        sizes: split -> number of samples.
        majority_share: split -> accuracy of an answer that ignores the input; None if unknown.
        solved_at: test accuracy from which the task counts as solved; None for most tasks.
        blind_answer: description of this answer, unless it is the most frequent class.
        kind: name of the kind; None for older results.
        classes: names of the classes; None if there is no confusion matrix.
        reference: split -> metrics of a simple prediction; None if the task has none.
        reference_answer: description of this prediction.
    """

    name: str
    title: str
    source: str
    licence: str
    options: dict[str, Any]
    data_source: str
    fingerprint: str
    num_classes: int
    max_length: int
    sizes: dict[str, int]
    majority_share: dict[str, float] | None = None
    blind_answer: str | None = field(default=None, metadata=ABSENT)
    kind: str | None = field(default=None, metadata=ABSENT)
    classes: list[str] | None = field(default=None, metadata=ABSENT)
    reference: dict[str, dict[str, float]] | None = field(default=None, metadata=ABSENT)
    reference_answer: str | None = field(default=None, metadata=ABSENT)
    solved_at: float | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class TrainSetup:
    """Training settings of all runs; `lr` is None if it is tuned."""

    max_steps: int
    batch_size: int
    precision: str
    lr: float | None = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings of a comparison, see `CompareConfig`."""

    model: str
    dim: int
    num_layers: int
    num_heads: int
    device: str
    mixers: list[str]
    train: TrainSetup
    train_options: dict[str, Any] = field(default_factory=dict)
    mixer_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MergedPart:
    """A comparison that was merged: its folder and command."""

    folder: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Results:
    """Content of results.json.

    Attributes:
        status: "complete", or "partial" after a stop.
        runs_done: number of finished runs.
        runs_planned: number of runs.
        command: command line of the newest run.
        config: settings as in config.json.
        seeds: seeds of each mixer.
        task: the task of all runs.
        protocol: the training protocol of all runs.
        environment: environment of the newest run.
        wall_seconds: time of all runs and trials.
        peak_memory_bytes: largest memory of a mixer.
        mixers: summaries in the order of the table.
        runs: finished runs.
        failed_runs: runs that diverged.
        tuning: the trials; None if nothing is tuned.
        merged: the comparisons that were merged.
        sha256: checksum of the other entries.

    Example:
        >>> import rifflemix as rm
        >>> results = rm.compare("digits", ["csp"], max_steps=5, dim=16, seeds=2).record
        >>> results.status, [run.seed for run in results.runs]
        ('complete', [0, 1])
    """

    format: str
    status: str
    runs_done: int
    runs_planned: int
    command: str
    config: dict[str, Any]
    seeds: list[int]
    task: TaskSummary
    protocol: Protocol
    environment: Environment
    wall_seconds: float
    peak_memory_bytes: int | None = None
    mixers: list[MixerSummary]
    runs: list[RunEntry]
    failed_runs: list[FailedRun]
    tuning: Tuning | None = field(default=None, metadata=ABSENT)
    merged: list[MergedPart] | None = field(default=None, metadata=ABSENT)
    sha256: str | None = field(default=None, metadata=ABSENT)

    @cached_property
    def setup(self) -> Setup:
        """The settings as a record."""
        return decode(Setup, self.config)

    @property
    def is_complete(self) -> bool:
        """Whether all planned runs ended."""
        return self.status == "complete"

    def check_any_finished(self) -> None:
        """Check that at least one run finished.

        Raises:
            RunFailed: every run failed.
        """
        if self.failed_runs and not self.runs:
            raise RunFailed(f"every run failed; the first: {self.failed_runs[0].error}")


Record = TypeVar("Record", Results, RunEntry)
Run = TypeVar("Run", RunEntry, FailedRun)


def with_checksum(record: Record) -> Record:
    """Add the checksum of its entries to a record."""
    return replace(record, sha256=content_hash(encode(record)))


def of_mixer(runs: Iterable[Run], mixer: str) -> list[Run]:
    return [run for run in runs if run.mixer == mixer]


def decode_results(value: dict[str, Any]) -> Results:
    """Convert the parsed content of results.json to a record.

    Raises:
        ValueError: an entry is missing, has another type, or was changed.
    """
    results = decode(Results, value)
    trials = (value.get("tuning") or {}).get("trials", ())
    for entry in (*value["runs"], *trials, value):
        check_seal(entry)
    decode(Setup, results.config)
    if not results.mixers or any(run.test is None for run in results.runs):
        raise ValueError("expected a mixer, and tests of all runs")
    if results.runs_done != len(results.runs) + len(results.failed_runs):
        raise ValueError(f"expected {results.runs_done} runs, got {len(results.runs)}")
    return results


def read_results(path: Path) -> Results:
    """Read results.json of a comparison.

    Raises:
        InputError: the file is damaged, or belongs to something else.
    """
    value = read_json(path, RUNS_ARE_KEPT)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise bad_argument("folder", "results of a comparison", f"those of {path}")
    try:
        return decode_results(value)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; {RUNS_ARE_KEPT}") from error
