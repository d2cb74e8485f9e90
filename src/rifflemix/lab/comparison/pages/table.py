"""Tables of a comparison: results, differences from softmax, and accuracy against length."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from rifflemix.lab.comparison.decisions import Ahead, Decisions, ahead_by, unbeaten
from rifflemix.lab.comparison.pages.tuning import settings_text
from rifflemix.lab.comparison.records import Results, of_mixer
from rifflemix.lab.comparison.rows import SPLITS, Row, RowDifference, Table
from rifflemix.lab.comparison.statistics import LEVEL, Score, score_text
from rifflemix.lab.report.units import (
    MISSING,
    SHARES,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    metric_title,
    metric_value,
)
from rifflemix.text import bold, bullet_lines, markdown_text, table_lines

Decided = tuple[Ahead, Callable[[str, str], bool]]
"""Which rows are ahead of which, by name, and whether two rows are compared at all."""


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and whether no other row of its column is significantly better."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class _Column:
    """Text and order of a column. `value` is None for columns without an order.

    `decide` returns which rows are ahead of others, and whether two rows are compared at all.
    Columns of counts and bytes have no `decide`: unequal numbers differ.
    """

    header: str
    show: Callable[[Row, Row | None], str]
    value: Callable[[Row], float | None] | None = None
    higher_is_better: bool = True
    decide: Callable[[Sequence[Row]], Decided] | None = None


def table_headers(table: Table) -> list[str]:
    """Return the column titles."""
    return [column.header for column in _columns(table)]


def table_cells(table: Table) -> list[list[Cell]]:
    """Return the cells of each row; a cell is marked if no other row is significantly better."""
    rows, columns = table.rows, _columns(table)
    texts = [[column.show(row, table.baseline) for column in columns] for row in rows]
    is_ranked = not table.nothing_learned
    marks = [_best(column, rows) if is_ranked else [False] * len(rows) for column in columns]
    cells = [
        [Cell(text, best=marks[c][r]) for c, text in enumerate(row_texts)]
        for r, row_texts in enumerate(texts)
    ]
    return [*cells, *_reference_rows(table)]


def _reference_rows(table: Table) -> list[list[Cell]]:
    """Return a row with the scores of the task's simple prediction, if it has one."""
    task, found = table.results.task, []
    for split in SPLITS:
        value = (task.reference or {}).get(split, {}).get(table.metric)
        found.append(MISSING if value is None else score_text(table.metric, value))
    if task.reference is None:
        return []
    headers = table_headers(table)
    others = [MISSING] * (len(headers) - 4)
    name = f"Reference: {task.reference_answer}"
    return [[Cell(text) for text in (name, MISSING, *found, *others)]]


def markdown_table(table: Table, notes: Iterable[str]) -> str:
    """Write the first part of table.md: title, table, notes."""
    return f"# {markdown_text(table.results.task.title)}\n\n{markdown_body(table, notes)}"


def markdown_body(table: Table, notes: Iterable[str]) -> str:
    """Write the table and the notes."""
    headers = table_headers(table)
    rows = (
        [bold(cell.text) if cell.best else cell.text for cell in cells]
        for cells in table_cells(table)
    )
    lines = table_lines(headers, rows, range(1, len(headers) - 1))
    lines.append("")
    lines.extend(bullet_lines(notes))
    return "\n".join(lines) + "\n"


def _columns(table: Table) -> tuple[_Column, ...]:
    """Return the columns: the metric that chose the weights, accuracy, speed and size."""
    columns = list(_scores_columns(metric_title(table.metric), "", table.higher_is_better))
    if any(row.test_accuracy or row.validation_accuracy for row in table.rows):
        columns += _scores_columns(metric_title("accuracy"), "_accuracy", higher_is_better=True)
    tuning = _TUNING_COLUMNS if table.rows[0].is_tuned else ()
    if table.results.task.solved_at is not None:
        columns.append(_Column("Seeds that solved it", lambda row, _: show_solved(row)))
    state = (_STATE_COLUMN,) if table.shows_states else ()
    return *_COLUMNS[:2], *columns, *_COLUMNS[2:-1], *state, *tuning, _COLUMNS[-1]


def _scores_columns(title: str, suffix: str, higher_is_better: bool) -> Iterator[_Column]:
    for split in SPLITS:
        header = f"{split.capitalize()} {title}"
        yield _score_column(header, f"{split}{suffix}", higher_is_better)


def _score_column(header: str, name: str, higher_is_better: bool) -> _Column:
    def score(row: Row) -> Score | None:
        return getattr(row, name)

    def shown(row: Row) -> float | None:
        found = score(row)
        return None if found is None or found.n < 2 else found.shown

    def decide(rows: Sequence[Row]) -> Decided:
        found = Decisions({row.name: score(row) for row in rows}, higher_is_better)
        return found.ahead, found.is_compared

    return _Column(header, lambda row, _: _show_score(score(row)), shown, higher_is_better, decide)


def _best(column: _Column, rows: list[Row]) -> list[bool]:
    """Find the rows that no other row is ahead of; none if no row is ahead of another.

    A row that is not compared with the best of these rows is left out.
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


def _decide_speeds(rows: Sequence[Row]) -> Decided:
    by_name = {row.name: row for row in rows}
    ahead = ahead_by(list(by_name), lambda one, other: by_name[other].is_slower(by_name[one]))
    return ahead, _is_counted


def _is_counted(_one: str, _other: str) -> bool:
    """Return True: numbers without noise are always compared."""
    return True


def show_solved(row: Row) -> str:
    """Write the number of seeds that solved the task, such as "2 of 3"."""
    if row.solved is None or row.test is None:
        return MISSING
    return f"{row.solved} of {row.test.n}"


def _show_score(score: Score | None) -> str:
    return MISSING if score is None else str(score)


def _relative(
    show: Callable[[float], str], value: Callable[[Row], float | None]
) -> Callable[[Row, Row | None], str]:
    """Show a number, and its ratio to the number of the baseline."""

    def shown(row: Row, baseline: Row | None) -> str:
        own, reference = value(row), None if baseline is None else value(baseline)
        if own is None:
            return MISSING
        return show(own) + (f" ({own / reference:.2f}x)" if reference else "")

    return shown


def _show_speed(row: Row, baseline: Row | None) -> str:
    text = _relative(format_rate, lambda row: row.steps_per_second)(row, baseline)
    return f"{text}, shared" if row.has_shared_speed else text


_COLUMNS = (
    _Column("Mixer", lambda row, _: row.title),
    _Column("Seeds", lambda row, _: str(row.test.n) if row.test else "0"),
    _Column(
        "Steps/s (vs softmax)",
        _show_speed,
        lambda row: None if row.slowest is None else row.steps_per_second,
        decide=_decide_speeds,
    ),
    _Column(
        "Peak memory (vs softmax)",
        _relative(format_bytes, lambda row: row.peak_memory_bytes),
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
_STATE_COLUMN = _Column(
    "State, numbers",
    lambda row, _: MISSING if row.state_size is None else format_count(row.state_size),
    lambda row: row.state_size,
    higher_is_better=False,
)
_TUNING_COLUMNS = (
    _Column("Chosen", lambda row, _: settings_text(row.chosen or {}) or MISSING),
    _Column(
        "Time of all trials (vs softmax)",
        _relative(format_duration, lambda row: row.tuning_seconds or None),
    ),
)


_HOW_TO_READ = (
    "Paired over seeds, with a variance estimated from all rows. The interval is not corrected for "
    "the number of rows, p is (Holm). "
)
_SAMPLES = {
    True: "Both count the finite test set, as if each mixer had one of its own.",
    False: "Neither counts the finite test set, whose error was not measured.",
}


def how_to_read(table: Table) -> str:
    """Describe the noise that the table of differences counts."""
    return _HOW_TO_READ + _SAMPLES[table.counts_samples]


def difference_headers(table: Table) -> list[str]:
    """Return the column titles."""
    title = metric_title(table.metric).replace(", %", ", points")
    return ["Mixer", f"Difference in test {title}", "95 % interval", "p", "Seeds"]


def difference_cells(table: Table) -> list[list[str]]:
    """Return the rows as texts."""
    return [_cells(difference) for difference in table.differences]


def markdown_differences(table: Table) -> str:
    """Write the second part of table.md; empty without differences."""
    headers, cells = difference_headers(table), difference_cells(table)
    return _part("Differences from softmax attention", headers, cells, how_to_read(table))


def _part(title: str, headers: list[str], cells: list[list[str]], caption: str) -> str:
    """Write a heading, a table and its caption; empty without cells."""
    if not cells:
        return ""
    lines = table_lines(headers, cells, range(1, len(headers)))
    return "\n".join(["", f"## {title}", "", *lines, "", caption, ""])


def _cells(difference: RowDifference) -> list[str]:
    metric, found = difference.row.metric, difference.decision.difference
    return [
        difference.row.title,
        _signed(metric, found.mean),
        f"{_signed(metric, found.low)} to {_signed(metric, found.high)}",
        _probability(difference.decision.probability),
        str(found.seeds),
    ]


def _probability(value: float) -> str:
    """Write three digits, which do not round across the level."""
    if value < 0.001:
        return "< 0.001"
    text = f"{value:.3f}"
    return f"< {LEVEL:.3f}" if value < LEVEL <= float(text) else text


def _signed(metric: str, value: float) -> str:
    return f"{metric_value(metric, value):+z{'.2f' if metric in SHARES else '.4g'}}"


_FURTHER = re.compile(r"length_(\d+)_accuracy")
HOW_TO_READ = (
    "Mean test accuracy in percent over seeds, with a 95 % t-interval of the mean if there are two "
    "seeds or more. Weights were trained and chosen at the first length."
)


@dataclass(frozen=True)
class AtLength:
    """Test accuracy of a mixer at one length.

    Attributes:
        length: tokens per sequence.
        mean: mean over seeds.
        low, high: 95 % interval of the mean; None for one seed.
    """

    length: int
    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """Percent: "98.8 (97.0 to 100.0)"."""
        mean = f"{100 * self.mean:.1f}"
        if self.low is None or self.high is None:
            return mean
        return f"{mean} ({100 * self.low:.1f} to {100 * self.high:.1f})"


def all_lengths(results: Results) -> list[int]:
    """List the length of training, then the other test lengths; empty without other lengths."""
    metrics = {name for run in results.runs for name in run.metrics("test")}
    further = sorted(int(found[1]) for name in metrics if (found := _FURTHER.fullmatch(name)))
    first = results.task.options.get("length")
    return [first, *further] if further and isinstance(first, int) else []


def scores_by_length(results: Results) -> dict[str, list[AtLength]]:
    """Summarize the test accuracy of each mixer with a finished run at each length."""
    lengths = all_lengths(results)
    found = {}
    for mixer in results.mixers:
        tests = [run.metrics("test") for run in of_mixer(results.runs, mixer.name)]
        if tests and lengths:
            names = ["accuracy", *(f"length_{length}_accuracy" for length in lengths[1:])]
            found[mixer.name] = [
                _summary(length, [test[name] for test in tests])
                for length, name in zip(lengths, names, strict=True)
            ]
    return found


def _summary(length: int, values: list[float]) -> AtLength:
    mean = fmean(values)
    if len(values) < 2:
        return AtLength(length, mean, None, None)
    from scipy.stats import t

    half = float(t.ppf(1 - LEVEL / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return AtLength(length, mean, max(mean - half, 0.0), min(mean + half, 1.0))


def length_headers(table: Table) -> list[str]:
    """Return the column titles."""
    return ["Mixer", *(f"{length:,} tokens" for length in all_lengths(table.results))]


def length_cells(table: Table) -> list[list[str]]:
    """Return the rows as texts; empty if the task has one length."""
    scores = scores_by_length(table.results)
    return [[row.title, *map(str, scores[row.name])] for row in table.rows if row.name in scores]


def markdown_lengths(table: Table) -> str:
    """Write the part of table.md on lengths; empty if the task has one length."""
    headers, cells = length_headers(table), length_cells(table)
    return _part("Accuracy against length", headers, cells, HOW_TO_READ)
