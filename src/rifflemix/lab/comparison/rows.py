"""The rows of a comparison, the decisions between them, and ranks over several comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from rifflemix.lab.comparison.decisions import BASELINE, Decision, Decisions
from rifflemix.lab.comparison.plan import folds_of, overlap_of_folds
from rifflemix.lab.comparison.records import MixerSummary, Results, RunEntry, TaskSummary, of_mixer
from rifflemix.lab.comparison.statistics import Score, pooled_spread, seed_spread
from rifflemix.lab.runs.status import Point, Summary

SPLITS = ("test", "validation")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Numbers of one mixer. Scores and speeds are None without a finished run.

    Attributes:
        name, title, complexity: label, title and complexity of the mixer.
        parameters: trainable parameters of its model.
        test, validation: scores by the metric that chose the weights.
        steps_per_second, peak_memory_bytes: speed and memory of training.
        state_size: numbers that a stream keeps per sequence; None if unknown.
        solved: number of seeds that solved the task; None for tasks that count no solutions.
        metric, higher_is_better: name and direction of the metric.
        test_accuracy, validation_accuracy: accuracies, if another metric chose the weights.
        slowest, fastest: steps per second of the slowest and the fastest seed; None for one seed.
        has_shared_speed: a speed was measured next to other trainings and is too low.
        chance: test accuracy of an answer that ignores the input, usually the most frequent class.
            If it is unknown, one divided by the number of classes. None if accuracy does not
            choose the weights, or if samples do not have one class each.
        is_tuned: whether settings were tuned.
        chosen: the settings that validation chose; None before all trials ended.
        tuning_seconds: time of all trials.
    """

    name: str
    title: str
    complexity: str
    parameters: int
    test: Score | None
    validation: Score | None
    steps_per_second: float | None
    peak_memory_bytes: int | None
    state_size: int | None = None
    solved: int | None = None
    metric: str = "accuracy"
    higher_is_better: bool = True
    test_accuracy: Score | None = None
    validation_accuracy: Score | None = None
    slowest: float | None = None
    fastest: float | None = None
    has_shared_speed: bool = False
    chance: float | None = None
    is_tuned: bool = False
    chosen: Point | None = None
    tuning_seconds: float | None = None

    def is_slower(self, other: Row) -> bool:
        """Return whether every seed trained slower than every seed of another mixer.

        False for one seed, and for speeds next to other trainings.
        """
        if self.fastest is None or other.slowest is None:
            return False
        if self.has_shared_speed or other.has_shared_speed:
            return False
        return self.fastest < other.slowest


@dataclass(frozen=True)
class RowDifference:
    """Test score of a mixer minus the score of softmax attention, and the decision about it."""

    row: Row
    decision: Decision


class Table:
    """The rows of a comparison in the order of the registry, and the decisions between them.

    Args:
        results: results of the comparison.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        scores = _Scores(results)
        self.rows = [_row(mixer, results, scores) for mixer in results.mixers]
        self.metric = self.rows[0].metric
        self.higher_is_better = self.rows[0].higher_is_better

    @property
    def metric_words(self) -> str:
        """Name of the metric that chose the weights."""
        return self.metric.replace("_", " ")

    @cached_property
    def decisions(self) -> Decisions:
        """Decisions between all pairs of rows by their test scores."""
        return Decisions({row.name: row.test for row in self.rows}, self.higher_is_better)

    @cached_property
    def differences(self) -> list[RowDifference]:
        """Differences of the mixers that have two seeds in common with softmax attention."""
        if self.baseline is None:
            return []
        found = [(row, self.decisions.from_baseline(row.name)) for row in self.rows]
        return [RowDifference(row, decision) for row, decision in found if decision is not None]

    @property
    def baseline(self) -> Row | None:
        """The softmax row that relative numbers refer to, if it is part of the comparison."""
        return next((row for row in self.rows if row.name == BASELINE), None)

    @cached_property
    def nothing_learned(self) -> bool:
        """Whether the best test accuracy is within noise of an answer that ignores the input."""
        known = [(r.test, r.chance) for r in self.rows if r.test and r.chance is not None]
        return bool(known) and not any(test.is_above(chance) for test, chance in known)

    @property
    def shows_states(self) -> bool:
        """Whether the mixers need states of different sizes."""
        return len({row.state_size for row in self.rows}) > 1

    @property
    def counts_samples(self) -> bool:
        """Whether differences include the error due to the number of test samples."""
        return all(row.test is None or row.test.counts_samples for row in self.rows)


def _row(mixer: MixerSummary, results: Results, scores: _Scores) -> Row:
    chosen, runs = mixer.chosen, of_mixer(results.runs, mixer.name)
    is_accuracy = mixer.metric is None
    speeds = [run.steps_per_second for run in runs if run.steps_per_second is not None]
    several = len(speeds) > 1
    return Row(
        name=mixer.name,
        title=mixer.title,
        complexity=mixer.complexity,
        parameters=mixer.parameters,
        test=scores.score(chosen.test, chosen.name, "test", runs),
        validation=scores.score(chosen.validation, chosen.name, "validation", runs),
        steps_per_second=mixer.steps_per_second,
        peak_memory_bytes=mixer.peak_memory_bytes,
        state_size=mixer.state_size,
        solved=_solved(results.task, runs),
        metric=chosen.name,
        higher_is_better=chosen.higher_is_better,
        test_accuracy=None if is_accuracy else scores.of_parts(mixer.test, "test", runs),
        validation_accuracy=(
            None if is_accuracy else scores.of_parts(mixer.validation, "validation", runs)
        ),
        slowest=min(speeds) if several else None,
        fastest=max(speeds) if several else None,
        has_shared_speed=any(run.has_shared_speed for run in runs),
        chance=_chance(results.task) if is_accuracy else None,
        is_tuned=mixer.tuning is not None,
        chosen=mixer.choice,
        tuning_seconds=None if mixer.tuning is None else mixer.tuning.wall_seconds,
    )


def _solved(task: TaskSummary, runs: list[RunEntry]) -> int | None:
    if task.solved_at is None:
        return None
    return sum(run.metrics("test").get("accuracy", 0.0) >= task.solved_at for run in runs)


def _chance(task: TaskSummary) -> float | None:
    shares = task.majority_share
    return 1 / task.num_classes if shares is None else shares.get("test")


class _Scores:
    """Builds scores from summaries, with the spread over seeds that all mixers share."""

    def __init__(self, results: Results) -> None:
        self._sizes = results.task.sizes
        self._folds = folds_of(results.task.options)
        self._spreads = {
            (metric, split): (
                pooled_spread((summary.std, summary.n) for summary in found),
                seed_spread(_by_seed(results.runs, metric, split)),
            )
            for (metric, split), found in _summaries(results.mixers).items()
        }

    def score(
        self,
        summary: Summary | None,
        metric: str,
        split: str,
        runs: list[RunEntry],
        *,
        has_samples: bool = True,
    ) -> Score | None:
        """Build the score of a mixer.

        With `has_samples`, the score includes the error due to the number of samples in the split.
        """
        if summary is None:
            return None
        spread, of_all = self._spreads[metric, split]
        deviations = [run.metrics(split).get(f"{metric}_deviation") for run in runs]
        known = [deviation for deviation in deviations if deviation is not None]
        deviation = fmean(known) if runs and len(known) == len(runs) else None
        # Folds have different test samples, so the spread over folds has the error of the split.
        has_size = self._folds is None and (has_samples or deviation is not None)
        size = self._sizes[split] if has_size else None
        values = {run.seed: run.metrics(split)[metric] for run in runs}
        return Score(
            summary.mean, summary.std, summary.n, metric, spread, size, values, deviation, of_all,
            overlap_of_folds(self._folds),
        )  # fmt: skip

    def of_parts(self, summary: Summary | None, split: str, runs: list[RunEntry]) -> Score | None:
        """Build the accuracy if another metric chose the weights.

        It may count tokens, so the number of samples does not determine its error.
        """
        return self.score(summary, "accuracy", split, runs, has_samples=False)


def _summaries(mixers: Iterable[MixerSummary]) -> dict[tuple[str, str], list[Summary]]:
    """Collect the summaries of all mixers by metric and split."""
    found: dict[tuple[str, str], list[Summary]] = {}
    for mixer in mixers:
        by_metric = {
            "accuracy": (mixer.test, mixer.validation),
            mixer.chosen.name: (mixer.chosen.test, mixer.chosen.validation),
        }
        for metric, summaries in by_metric.items():
            for split, summary in zip(SPLITS, summaries, strict=True):
                if summary is not None:
                    found.setdefault((metric, split), []).append(summary)
    return found


def _by_seed(runs: Iterable[RunEntry], metric: str, split: str) -> list[dict[int, float]]:
    """Collect the scores of each mixer by seed."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        if metric in run.metrics(split):
            found.setdefault(run.mixer, {})[run.seed] = run.metrics(split)[metric]
    return list(found.values())


@dataclass(frozen=True)
class Standing:
    """Rank of a mixer in one task, or on average over several.

    Attributes:
        rank: rank if undecided pairs share their ranks; 1 is the best.
        low, high: rank if all undecided pairs are decided for the mixer, and against it.
    """

    rank: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranking:
    """Significant differences of one task.

    Attributes:
        ahead: (winner, loser) of every significant difference; a mixer whose runs all failed loses
            to every other.
        names: names of all mixers.
    """

    ahead: frozenset[tuple[str, str]]
    names: tuple[str, ...]

    def standing(self, name: str) -> Standing:
        """Compute the rank of a mixer and its bounds."""
        better = sum(loser == name for _, loser in self.ahead)
        worse = sum(winner == name for winner, _ in self.ahead)
        low, high = 1.0 + better, float(len(self.names) - worse)
        return Standing((low + high) / 2, low, high)


def ranking(table: Table) -> Ranking | None:
    """Rank the mixers of a comparison; None if it is not finished or nothing was learned.

    The pairs are those of `Table.decisions`, which also decide bold and the sentences of the task.
    """
    if not table.results.is_complete or table.nothing_learned:
        return None
    finished = [row for row in table.rows if row.test is not None]
    failed = [row for row in table.rows if row.test is None]
    ahead = {(row.name, other.name) for row in finished for other in failed}
    return Ranking(frozenset(ahead) | table.decisions.ahead, tuple(r.name for r in table.rows))


def mean_standing(rankings: Sequence[Ranking], name: str) -> Standing | None:
    """Average the ranks and bounds over tasks; None without a task."""
    found = [ranking.standing(name) for ranking in rankings]
    if not found:
        return None
    return Standing(
        *(
            math.fsum(values) / len(found)
            for values in zip(*((s.rank, s.low, s.high) for s in found), strict=True)
        )
    )


def unbeaten(rankings: Sequence[Ranking]) -> list[str]:
    """Return the mixers that no other mixer beats on more tasks than the other way around."""
    if not rankings:
        return []

    def wins(one: str, other: str) -> int:
        return sum((one, other) in ranking.ahead for ranking in rankings)

    names = rankings[0].names
    return [name for name in names if all(wins(name, o) >= wins(o, name) for o in names)]


def mean_ratio(
    tables: Sequence[Table], name: str, measure: Callable[[Row], float | None]
) -> float | None:
    """Average a measure relative to softmax attention over tasks; None if unknown.

    The average is the geometric mean.
    """
    logs = []
    for table in tables:
        row = next(row for row in table.rows if row.name == name)
        ours, theirs = measure(row), None if table.baseline is None else measure(table.baseline)
        if not ours or not theirs:
            return None
        logs.append(math.log(ours / theirs))
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
