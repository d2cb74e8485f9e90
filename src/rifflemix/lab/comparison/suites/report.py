"""Sentences and tables over all tasks of a suite, and its pages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

from rifflemix.lab.comparison.decisions import BASELINE, RULE
from rifflemix.lab.comparison.pages.notes import brief_notes, done_so_far
from rifflemix.lab.comparison.pages.table import (
    Cell,
    difference_cells,
    show_solved,
    table_cells,
    table_headers,
)
from rifflemix.lab.comparison.records import of_mixer
from rifflemix.lab.comparison.rows import (
    Standing,
    Table,
    mean_ratio,
    mean_standing,
    ranking,
    unbeaten,
)
from rifflemix.lab.report.page import render
from rifflemix.lab.report.units import MISSING, format_duration, format_percent, metric_title
from rifflemix.lab.runs.environment import Environment
from rifflemix.text import bold, bullet_lines, link, markdown_text, table_lines

Tables = Mapping[str, Table]
"""Task of the suite -> its comparison."""

_RANKS = (
    "Mean rank: 1 is the best; in brackets the mean ranks that undecided differences leave open. "
    f"Two mixers differ on a task if their test scores do ({RULE}, with the error of the finite "
    "test split); else they share their places. Bold: no other mixer is ahead of it on more tasks "
    "than it is ahead of that one. Ahead and behind: against softmax attention. Speed and memory: "
    "geometric means over tasks, times softmax attention's."
)
_SCORES = (
    "Test score of the weights that validation chose, mean ± standard deviation over seeds. Bold: "
    "no other mixer is significantly better on the task; nothing, if that holds for every mixer."
)
# Headings and captions of tables.
_DIFFERENCES = (
    "Differences from softmax attention",
    "Test score minus softmax attention's, paired over seeds, with its 95 % interval; a star marks "
    "differences that are larger than noise.",
)
_SOLVED = (
    "Seeds that solved the task",
    "Number of seeds with a test accuracy of 95 % or more. With three seeds, 0 of 3 leaves a share "
    "of up to 63 % possible, and 3 of 3 a share of 37 % or more (one-sided 95 % bounds).",
)
_SPEEDS = (
    "Speed",
    "Training steps per second during the runs, and times softmax attention's.",
)
_MEMORY = (
    "Memory",
    "Peak of two training steps from nothing, and times softmax attention's.",
)


@dataclass(frozen=True)
class Part:
    """A table of the page with its heading and caption."""

    heading: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str


@dataclass(frozen=True)
class Overall:
    """A mixer over all tasks.

    Attributes:
        name, title: label and title of the mixer.
        standing: mean rank over finished tasks on which a mixer learned; None without such a task.
        is_unbeaten: True if no other mixer beats it on more tasks than it beats that mixer.
        ahead, behind: tasks on which it is shown to be better or worse than softmax attention.
        speed, memory: geometric means over tasks, relative to softmax attention; None if unknown.
    """

    name: str
    title: str
    standing: Standing | None
    is_unbeaten: bool
    ahead: tuple[str, ...]
    behind: tuple[str, ...]
    speed: float | None
    memory: float | None


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """Progress of a task of a suite, and its file of results."""

    results: str
    status: str
    runs_done: int
    runs_planned: int
    wall_seconds: float


@dataclass(frozen=True, kw_only=True)
class SuiteResults:
    """Content of results.json of a suite.

    Attributes:
        suite, title: name and title of the suite.
        status: "complete", or "partial" after a stop.
        command, environment: command and environment of the newest call.
        tasks_planned: all tasks.
        tasks: the tasks that were begun.
        answers: recommendations in sentences.
        mixers: every mixer over all tasks.
    """

    format: str
    suite: str
    title: str
    status: str
    command: str
    environment: Environment
    tasks_planned: list[str]
    tasks: dict[str, TaskStatus]
    answers: list[str]
    mixers: list[Overall]


def overall(tables: Tables) -> list[Overall]:
    """Summarize every mixer over all tasks, in the order of the tables."""
    complete = [table for table in tables.values() if table.results.is_complete]
    rankings = [found for table in complete if (found := ranking(table)) is not None]
    best = unbeaten(rankings)
    decided = {task: _decided(table) for task, table in tables.items()}
    return [
        Overall(
            name=row.name,
            title=row.title,
            standing=mean_standing(rankings, row.name),
            is_unbeaten=row.name in best,
            ahead=tuple(task for task, found in decided.items() if found.get(row.name) is False),
            behind=tuple(task for task, found in decided.items() if found.get(row.name) is True),
            speed=mean_ratio(complete, row.name, lambda row: row.steps_per_second),
            memory=mean_ratio(complete, row.name, lambda row: row.peak_memory_bytes),
        )
        for row in next(iter(tables.values())).rows
    ]


def _decided(table: Table) -> dict[str, bool]:
    """Return mixer -> whether it loses to softmax attention, for significant differences."""
    if table.nothing_learned:
        return {}
    return {
        found.row.name: found.decision.is_loss
        for found in table.differences
        if found.decision.is_shown
    }


def _best_scores(tables: Tables, ranked: Sequence[Overall]) -> Iterator[str]:
    unbeaten_ones = [mixer for mixer in ranked if mixer.is_unbeaten]
    best = _by(unbeaten_ones, lambda m: m.standing.rank if m.standing else 0.0)
    metrics = {table.metric for table in tables.values()}
    judged = "accuracy" if metrics == {"accuracy"} else "test scores"
    if ranked and not best:
        yield f"Best {judged}: no mixer. Each is worse than another on more tasks than better."
    elif ranked and len(best) < len(ranked):
        yield (
            f"Best {judged}: {_listed(best)}. No mixer beats them on more tasks than they beat it."
        )
    elif ranked:
        yield f"Best {judged}: no mixer is significantly better on these tasks and seeds."


def _costs(tables: Tables, others: Sequence[Overall]) -> Iterator[str]:
    cheap = [m for m in others if (m.speed or 0.0) > 1 and not m.behind]
    if any(mixer.speed for mixer in others):
        yield (
            "Higher training speed than softmax attention, without a significant loss: "
            f"{_listed(_by(cheap, lambda m: -(m.speed or 0.0)))}."
            if cheap
            else "No mixer has a higher speed than softmax attention without a significant loss."
        )
    failed = _failed(tables)
    small = [m for m in others if (m.memory or 2.0) < 1 and m.name not in failed]
    if small:
        least = _by(small, lambda m: m.memory or 0.0)
        yield f"Less training memory than softmax attention: {_listed(least)}."
    for mixer in others:
        if mixer.behind:
            yield f"{mixer.title} is worse than softmax attention on {_listed(mixer.behind)}."
    slow = [mixer.title for mixer in others if mixer.speed is not None and mixer.speed < 1]
    if slow:
        yield f"Slower to train than softmax attention: {_listed(slow)}."


def _unranked(tables: Tables) -> Iterator[str]:
    for task, table in tables.items():
        if not table.results.is_complete:
            done = done_so_far(table.results)
            yield f"{task} is not finished ({done}), so it does not count for ranks yet."
        elif table.nothing_learned:
            yield f"No mixer learned {task}, so it does not count for ranks."
    if len(next(iter(tables.values())).results.seeds) == 1:
        yield "One seed decides no difference: ranks are shared, and only speed and memory differ."


def _failed(tables: Tables) -> set[str]:
    """Find the mixers without a finished run on a finished task."""
    complete = [table for table in tables.values() if table.results.is_complete]
    return {row.name for table in complete for row in table.rows if row.test is None}


def _by(mixers: Sequence[Overall], key: Callable[[Overall], float]) -> list[str]:
    return [mixer.title for mixer in sorted(mixers, key=key)]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


class SuiteReport:
    """The pages of a suite.

    Args:
        tables: task of the suite -> its comparison.

    Attributes:
        tables: task of the suite -> its comparison.
        mixers: every mixer over all tasks, in the order of the tables.
        answers: recommendations for accuracy, speed and memory, in sentences.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.mixers = overall(tables)
        self.answers = [
            *_best_scores(tables, [mixer for mixer in self.mixers if mixer.standing is not None]),
            *_costs(tables, [mixer for mixer in self.mixers if mixer.name != BASELINE]),
            *_unranked(tables),
        ]

    @cached_property
    def parts(self) -> list[Part]:
        """All tables of the page."""
        columns = [_Columns(table) for table in self.tables.values()]
        return [
            _overview(self.mixers),
            self._scores(columns),
            *self._solved(),
            self._by_task(_DIFFERENCES, list(map(_differences, self.tables.values()))),
            self._by_task(_SPEEDS, [column.starting("Steps/s") for column in columns]),
            self._by_task(_MEMORY, [column.starting("Peak memory") for column in columns]),
            _tasks(self.tables),
        ]

    def markdown(self, title: str) -> str:
        """Write table.md of a suite."""
        lines = [f"# {markdown_text(title)}", "", *bullet_lines(self.answers), ""]
        for part in self.parts:
            rows = [[bold(c.text) if c.best else c.text for c in row] for row in part.rows]
            lines += [f"## {markdown_text(part.heading)}", ""]
            lines += [*table_lines(part.headers, rows, range(1, len(part.headers))), ""]
            lines += [markdown_text(part.caption), ""]
        for name, table in self.tables.items():
            page = f"{name}/table.md"
            lines += [f"## {markdown_text(name)}", "", *bullet_lines(brief_notes(table)), ""]
            lines += [f"More in {link(page, quote(page))}.", ""]
        return "\n".join(lines)

    def html(self, title: str, command: str) -> str:
        """Write report.html of a suite; every value in it is escaped."""
        return render(
            "suite.html",
            title=title,
            lead=command,
            answers=self.answers,
            parts=self.parts,
            notes={name: brief_notes(table) for name, table in self.tables.items()},
        )

    def _scores(self, columns: Sequence[_Columns]) -> Part:
        """Show the metric that chose the weights, in the heading if all tasks have the same."""
        metrics = [metric_title(table.metric) for table in self.tables.values()]
        cells = [column.starting("Test ") for column in columns]
        if len(set(metrics)) == 1:
            heading = metrics[0][:1].upper() + metrics[0][1:]
            return self._by_task((heading, _SCORES), cells)
        tasks = [f"{task}: {metric}" for task, metric in zip(self.tables, metrics, strict=True)]
        return self._by_task(("Test scores", _SCORES), cells, tasks)

    def _solved(self) -> list[Part]:
        """Show the seeds that solved each task; empty if no task counts solutions."""
        if all(table.results.task.solved_at is None for table in self.tables.values()):
            return []
        cells = [[Cell(show_solved(row)) for row in table.rows] for table in self.tables.values()]
        return [self._by_task(_SOLVED, cells)]

    def _by_task(
        self,
        texts: tuple[str, str],
        columns: Sequence[Sequence[Cell]],
        tasks: Sequence[str] | None = None,
    ) -> Part:
        """Build a table with a column per task, under a heading and with a caption."""
        titles = [mixer.title for mixer in self.mixers]
        rows = [[Cell(title), *cells] for title, *cells in zip(titles, *columns, strict=True)]
        return Part(texts[0], ("Mixer", *(tasks or self.tables)), rows, texts[1])


class _Columns:
    """The columns of the table of a task."""

    def __init__(self, table: Table) -> None:
        self._headers = table_headers(table)
        self._cells = table_cells(table)[: len(table.rows)]  # without the reference

    def starting(self, start: str) -> list[Cell]:
        """Return the column with this start of its header."""
        at = next(n for n, header in enumerate(self._headers) if header.startswith(start))
        return [cells[at] for cells in self._cells]


def _overview(mixers: Sequence[Overall]) -> Part:
    headers = ("Mixer", "Mean rank", "Ahead on", "Behind on", "Speed", "Memory")
    all_best = all(mixer.is_unbeaten for mixer in mixers)
    rows = [
        [
            Cell(mixer.title),
            Cell(_rank(mixer.standing), mixer.is_unbeaten and not all_best),
            Cell(", ".join(mixer.ahead) or MISSING),
            Cell(", ".join(mixer.behind) or MISSING),
            Cell(_times(mixer.speed)),
            Cell(_times(mixer.memory)),
        ]
        for mixer in mixers
    ]
    return Part("All tasks", headers, rows, _RANKS)


def _rank(standing: Standing | None) -> str:
    if standing is None:
        return MISSING
    return f"{standing.rank:.1f} ({standing.low:.1f} to {standing.high:.1f})"


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.2f}x"


def _differences(table: Table) -> list[Cell]:
    cells = {line[0]: line for line in difference_cells(table)}
    shown = {found.row.title for found in table.differences if found.decision.is_shown}
    return [
        Cell(f"{cells[r.title][1]} ({cells[r.title][2]}){' *' if r.title in shown else ''}")
        if r.title in cells
        else Cell(MISSING)
        for r in table.rows
    ]


def _tasks(tables: Tables) -> Part:
    """Describe the tasks, and the time and score of softmax attention."""
    headers = ("Task", "Tokens", "Training", "Chance, %", "A run of softmax", "All runs")
    rows = [[Cell(cell) for cell in _task(name, table)] for name, table in tables.items()]
    caption = "Chance: always the most frequent answer of the test split."
    return Part("The tasks", headers, rows, caption)


def _task(name: str, table: Table) -> list[str]:
    results, train = table.results, table.results.setup.train
    times = [run.wall_seconds for run in of_mixer(results.runs, BASELINE)]
    chance = table.rows[0].chance
    return [
        name,
        f"{results.task.max_length:,}",
        f"{train.max_steps:,} steps of {train.batch_size}",
        MISSING if chance is None else format_percent(chance),
        format_duration(statistics.median(times)) if times else MISSING,
        format_duration(results.wall_seconds),
    ]
