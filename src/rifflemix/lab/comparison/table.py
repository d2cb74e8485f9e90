"""The comparison table: its rows, and the whole as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rifflemix.lab.comparison.decisions import BASELINE, Ahead, Decisions, ahead_by, unbeaten
from rifflemix.lab.comparison.scores import Score, pooled_spread
from rifflemix.lab.comparison.spread import SeedSpread, seed_spread
from rifflemix.lab.comparison.tuning import settings_text
from rifflemix.lab.report.units import (
    MISSING,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    metric_title,
)
from rifflemix.text import bold, bullet_lines, markdown_text, table_lines

Decided = tuple[Ahead, Callable[[str, str], bool]]
"""Which rows are ahead of which, by name, and whether two rows are compared at all."""


@dataclass(frozen=True)
class Row:
    """One mixer's numbers; None where no run has finished yet.

    Attributes:
        name, title, complexity, parameters: of the mixer and its model.
        test, validation: the metric that chose the weights.
        steps_per_second, peak_memory_bytes: of training.
        metric, higher_is_better: what `test` and `validation` are of.
        test_accuracy, validation_accuracy: where accuracy was measured too and did not choose.
        slowest, fastest: steps per second of the seeds; None for fewer than two.
        chance: test accuracy without a look at inputs: that of the commonest answer, say, or,
            where that was not written down, the least it can be with so many classes. None where
            accuracy does not choose the weights, or is not of one class a sample.
        tuned: the settings that validation chose; None where nothing is tuned, "" before it has.
        tuning_seconds: of all trials.
    """

    name: str
    title: str
    complexity: str
    parameters: int
    test: Score | None
    validation: Score | None
    steps_per_second: float | None
    peak_memory_bytes: int | None
    metric: str = "accuracy"
    higher_is_better: bool = True
    test_accuracy: Score | None = None
    validation_accuracy: Score | None = None
    slowest: float | None = None
    fastest: float | None = None
    chance: float | None = None
    tuned: str | None = None
    tuning_seconds: float | None = None


@dataclass(frozen=True)
class Cell:
    """A cell's text, and whether no other row of its column is shown to be better."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class _Column:
    """How a column is shown and ranked; `value` is None for columns that rank nothing.

    `decide` returns which rows are ahead of others, and whether two rows are compared at all.
    Columns of counts and bytes have no `decide`: unequal numbers differ.
    """

    header: str
    show: Callable[[Row, Row | None], str]
    value: Callable[[Row], float | None] | None = None
    higher_is_better: bool = True
    decide: Callable[[Sequence[Row]], Decided] | None = None


def comparison_rows(results: Mapping[str, Any]) -> list[Row]:
    """One row a mixer, in the registry's order (never by a score: the table is no ranking)."""
    spreads = {
        (metric, split): (pooled_spread(of), seed_spread(_by_seed(results, metric, split)))
        for (metric, split), of in _deviations(results).items()
    }
    return [
        Row(
            name=mixer["name"],
            title=mixer["title"],
            complexity=mixer["complexity"],
            parameters=mixer["parameters"],
            steps_per_second=mixer["steps_per_second"],
            peak_memory_bytes=mixer["peak_memory_bytes"],
            **_scores(mixer, spreads, results),
            **_speeds(mixer["name"], results["runs"]),
            chance=None if mixer.get("metric") else _chance(results["task"]),
            **_tuning(mixer),
        )
        for mixer in results["mixers"]
    ]


def nothing_learned(rows: Iterable[Row]) -> bool:
    """Whether the best test accuracy is within noise of an answer that looks at no input."""
    known = [(row.test, row.chance) for row in rows if row.test and row.chance is not None]
    return bool(known) and not any(test.is_above(chance) for test, chance in known)


def counts_samples(rows: Iterable[Row]) -> bool:
    """Whether differences in the test score count the error of the finite split."""
    return all(row.test is None or row.test.counts_samples for row in rows)


def baseline_row(rows: Iterable[Row]) -> Row | None:
    """The softmax row that relative numbers refer to, if it was part of the run."""
    return next((row for row in rows if row.name == BASELINE), None)


def table_headers(rows: list[Row]) -> list[str]:
    """Column titles."""
    return [column.header for column in _columns(rows)]


def table_cells(rows: list[Row]) -> list[list[Cell]]:
    """Cells of each row; a cell is marked if no other row is shown to be better."""
    baseline = baseline_row(rows)
    columns = _columns(rows)
    texts = [[column.show(row, baseline) for column in columns] for row in rows]
    is_ranked = not nothing_learned(rows)
    marks = [_best(column, rows) if is_ranked else [False] * len(rows) for column in columns]
    return [
        [Cell(text, best=marks[c][r]) for c, text in enumerate(row_texts)]
        for r, row_texts in enumerate(texts)
    ]


def markdown_table(results: Mapping[str, Any], notes: Iterable[str]) -> str:
    """The first part of table.md: title, table, notes."""
    title = markdown_text(results["task"]["title"])
    return f"# {title}\n\n{markdown_body(results, notes)}"


def markdown_body(results: Mapping[str, Any], notes: Iterable[str]) -> str:
    """Table and notes."""
    headers = table_headers(comparison_rows(results))
    rows = (
        [bold(cell.text) if cell.best else cell.text for cell in cells]
        for cells in table_cells(comparison_rows(results))
    )
    lines = table_lines(headers, rows, range(1, len(headers) - 1))
    lines.append("")
    lines.extend(bullet_lines(notes))
    return "\n".join(lines) + "\n"


_SPLITS = ("test", "validation")


def _deviations(results: Mapping[str, Any]) -> dict[tuple[str, str], list[tuple[Any, int]]]:
    """(metric, split) -> standard deviation and number of seeds of every mixer."""
    found: dict[tuple[str, str], list[tuple[Any, int]]] = {}
    for mixer in results["mixers"]:
        chosen = mixer.get("metric") or {"name": "accuracy"}
        for name, of in (("accuracy", mixer), (chosen["name"], chosen)):
            for split in _SPLITS:
                summary = of.get(split)
                if summary is not None:
                    found.setdefault((name, split), []).append((summary["std"], summary["n"]))
    return found


def _by_seed(results: Mapping[str, Any], metric: str, split: str) -> list[dict[int, float]]:
    """The scores of each mixer, by seed."""
    found: dict[str, dict[int, float]] = {}
    for run in results["runs"]:
        if metric in run[split]:
            found.setdefault(run["mixer"], {})[run["seed"]] = run[split][metric]
    return list(found.values())


def _scores(
    mixer: Mapping[str, Any],
    spreads: Mapping[tuple[str, str], tuple[float | None, SeedSpread | None]],
    results: Mapping[str, Any],
) -> dict[str, Any]:
    """The scores of a row: of accuracy alone, or of another metric and, if known, accuracy."""
    sizes = results["task"]["sizes"]
    runs = [run for run in results["runs"] if run["mixer"] == mixer["name"]]

    def score(summary: Mapping[str, Any] | None, metric: str, split: str) -> Score | None:
        if summary is None:
            return None
        spread, of_all = spreads[metric, split]
        values = {run["seed"]: run[split][metric] for run in runs}
        mean, std, n = summary["mean"], summary["std"], summary["n"]
        deviations = [run[split].get(f"{metric}_deviation") for run in runs]
        deviation = None if None in deviations or not runs else fmean(deviations)
        # Beside another metric accuracy is of tokens, of which a sample has many.
        is_of_parts = metric == "accuracy" and mixer.get("metric") is not None
        size = None if is_of_parts and deviation is None else sizes[split]
        return Score(mean, std, n, metric, spread, size, values, deviation, of_all)

    accuracy = {split: score(mixer[split], "accuracy", split) for split in _SPLITS}
    chosen = mixer.get("metric")
    if chosen is None:
        return accuracy
    return {
        **{split: score(chosen[split], chosen["name"], split) for split in _SPLITS},
        "metric": chosen["name"],
        "higher_is_better": chosen["higher_is_better"],
        "test_accuracy": accuracy["test"],
        "validation_accuracy": accuracy["validation"],
    }


def _speeds(name: str, runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The slowest and the fastest of a mixer's seeds, where there are two."""
    speeds = [run["steps_per_second"] for run in runs if run["mixer"] == name]
    known = [speed for speed in speeds if speed is not None]
    return {"slowest": min(known), "fastest": max(known)} if len(known) > 1 else {}


def _tuning(mixer: Mapping[str, Any]) -> dict[str, Any]:
    if "tuning" not in mixer:
        return {}
    tuning = mixer["tuning"]
    return {
        "tuned": settings_text(tuning["chosen"] or {}),
        "tuning_seconds": tuning["wall_seconds"],
    }


def _chance(task: Mapping[str, Any]) -> float | None:
    shares: Mapping[str, float] | None = task.get("majority_share")
    return 1 / task["num_classes"] if shares is None else shares.get("test")


def _columns(rows: list[Row]) -> tuple[_Column, ...]:
    """The metric that chose the weights first, then accuracy if that is another."""
    first = rows[0]
    columns = list(_scores_columns(metric_title(first.metric), "", first.higher_is_better))
    if any(row.test_accuracy or row.validation_accuracy for row in rows):
        columns += _scores_columns(metric_title("accuracy"), "_accuracy", higher_is_better=True)
    tuning = () if first.tuned is None else _TUNING_COLUMNS
    return *_COLUMNS[:2], *columns, *_COLUMNS[2:-1], *tuning, _COLUMNS[-1]


def _scores_columns(title: str, suffix: str, higher_is_better: bool) -> Iterator[_Column]:
    for split in ("test", "validation"):
        header = f"{split.capitalize()} {title}"
        yield _score_column(header, f"{split}{suffix}", higher_is_better)


def _score_column(header: str, name: str, higher_is_better: bool) -> _Column:
    def score(row: Row) -> Score | None:
        found: Score | None = getattr(row, name)
        return found

    def shown(row: Row) -> float | None:
        found = score(row)
        return None if found is None or found.n < 2 else found.shown

    def decide(rows: Sequence[Row]) -> Decided:
        found = Decisions({row.name: score(row) for row in rows}, higher_is_better)
        return found.ahead, found.is_compared

    return _Column(header, lambda row, _: _show_score(score(row)), shown, higher_is_better, decide)


def _best(column: _Column, rows: list[Row]) -> list[bool]:
    """Which rows no other row is shown to be better than; none if no row is better than another.

    A row that is not compared with the best of these is not among them.
    """
    if column.value is None:
        return [False] * len(rows)
    ranked = {row.name: value for row in rows if (value := column.value(row)) is not None}
    sign = 1.0 if column.higher_is_better else -1.0
    decided = None if column.decide is None else column.decide(rows)
    ahead, is_compared = decided or (
        ahead_by(list(ranked), lambda a, b: sign * ranked[a] > sign * ranked[b]),
        _is_counted,
    )
    first = sorted(unbeaten(ranked, ahead), key=lambda name: -sign * ranked[name])
    best = {name for name in first if name == first[0] or is_compared(name, first[0])}
    return [row.name in best for row in rows]


def is_slower(row: Row, other: Row) -> bool:
    """Whether no seed of a mixer trained as fast as the slowest of another; False for one seed."""
    return row.fastest is not None and other.slowest is not None and row.fastest < other.slowest


def _decide_speeds(rows: Sequence[Row]) -> Decided:
    by_name = {row.name: row for row in rows}
    ahead = ahead_by(list(by_name), lambda one, other: is_slower(by_name[other], by_name[one]))
    return ahead, _is_counted


def _is_counted(_one: str, _other: str) -> bool:
    """Numbers without noise are always compared."""
    return True


def _show_score(score: Score | None) -> str:
    return MISSING if score is None else str(score)


def _relative(value: float, reference: float | None) -> str:
    return f" ({value / reference:.2f}x)" if reference else ""


def _show_speed(row: Row, baseline: Row | None) -> str:
    if row.steps_per_second is None:
        return MISSING
    reference = baseline.steps_per_second if baseline else None
    return format_rate(row.steps_per_second) + _relative(row.steps_per_second, reference)


def _show_memory(row: Row, baseline: Row | None) -> str:
    if row.peak_memory_bytes is None:
        return MISSING
    reference = baseline.peak_memory_bytes if baseline else None
    return format_bytes(row.peak_memory_bytes) + _relative(row.peak_memory_bytes, reference)


def _show_cost(row: Row, baseline: Row | None) -> str:
    if not row.tuning_seconds:
        return MISSING
    reference = baseline.tuning_seconds if baseline else None
    return format_duration(row.tuning_seconds) + _relative(row.tuning_seconds, reference)


def _show_seeds(row: Row, _: Row | None) -> str:
    return str(row.test.n) if row.test else "0"


_COLUMNS = (
    _Column("Mixer", lambda row, _: row.title),
    _Column("Seeds", _show_seeds),
    _Column(
        "Steps/s (vs softmax)",
        _show_speed,
        lambda row: None if row.slowest is None else row.steps_per_second,
        decide=_decide_speeds,
    ),
    _Column(
        "Peak memory (vs softmax)",
        _show_memory,
        lambda row: row.peak_memory_bytes,
        higher_is_better=False,
    ),
    _Column(
        "Parameters",
        lambda row, _: format_count(row.parameters),
        lambda row: row.parameters,
        higher_is_better=False,
    ),
    _Column("Complexity", lambda row, _: row.complexity),
)
_TUNING_COLUMNS = (
    _Column("Chosen", lambda row, _: row.tuned or MISSING),
    _Column("Time of all trials (vs softmax)", _show_cost),
)
