"""What a suite says: sentences, tables of all tasks, and the files that show them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rifflemix.lab.comparison.decisions import BASELINE, RULE
from rifflemix.lab.comparison.differences import difference_cells, differences_from_softmax
from rifflemix.lab.comparison.notes import brief_notes, done_so_far
from rifflemix.lab.comparison.ranking import (
    Standing,
    mean_ratio,
    mean_standing,
    ranking,
    unbeaten,
)
from rifflemix.lab.comparison.table import (
    Cell,
    comparison_rows,
    nothing_learned,
    table_cells,
    table_headers,
)
from rifflemix.lab.report.page import render
from rifflemix.lab.report.units import MISSING, format_duration, format_percent, metric_title
from rifflemix.text import bold, bullet_lines, link, markdown_text, table_lines

Comparisons = Mapping[str, Mapping[str, Any]]
"""Task of the suite -> the results of its comparison."""

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
_DIFFERENCES = (
    "Test score minus softmax attention's, paired over seeds, with its 95 % interval; a star where "
    "the difference is larger than noise."
)
_SPEEDS = "Training steps per second during the runs, and times softmax attention's."
_MEMORY = "Peak of two training steps from nothing, and times softmax attention's."


@dataclass(frozen=True)
class Part:
    """A table of the page under its heading."""

    heading: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str


@dataclass(frozen=True)
class Overall:
    """A mixer over all tasks.

    Attributes:
        name, title: of the mixer.
        standing: mean rank over the tasks that are finished and learned; None without one.
        is_unbeaten: whether no other mixer is ahead of it on more tasks than it of that one.
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


def overall(comparisons: Comparisons) -> list[Overall]:
    """Every mixer over all tasks, in the order of the tables."""
    complete = [of for of in comparisons.values() if of["status"] == "complete"]
    rankings = [found for of in complete if (found := ranking(of)) is not None]
    tables = [comparison_rows(of) for of in complete]
    best = unbeaten(rankings)
    decided = {task: _decided(of) for task, of in comparisons.items()}
    first = next(iter(comparisons.values()))
    return [
        Overall(
            name=mixer["name"],
            title=mixer["title"],
            standing=mean_standing(rankings, mixer["name"]),
            is_unbeaten=mixer["name"] in best,
            ahead=tuple(task for task, of in decided.items() if of.get(mixer["name"]) is False),
            behind=tuple(task for task, of in decided.items() if of.get(mixer["name"]) is True),
            speed=mean_ratio(tables, mixer["name"], "steps_per_second"),
            memory=mean_ratio(tables, mixer["name"], "peak_memory_bytes"),
        )
        for mixer in first["mixers"]
    ]


def _decided(results: Mapping[str, Any]) -> dict[str, bool]:
    """Mixer -> whether it is worse than softmax attention, of those that are told from it."""
    rows = comparison_rows(results)
    if nothing_learned(rows):
        return {}
    found = differences_from_softmax(rows)
    return {of.row.name: of.decision.is_loss for of in found if of.decision.is_shown}


def answers(comparisons: Comparisons) -> list[str]:
    """Which mixer for whom, in sentences."""
    return list(_answers(comparisons, overall(comparisons)))


def _answers(comparisons: Comparisons, mixers: Sequence[Overall]) -> Iterator[str]:
    ranked = [mixer for mixer in mixers if mixer.standing is not None]
    unbeaten_ones = [mixer for mixer in ranked if mixer.is_unbeaten]
    best = _by(unbeaten_ones, lambda m: m.standing.rank if m.standing else 0.0)
    judged = "accuracy" if set(_metrics(comparisons)) == {"accuracy"} else "test scores"
    if ranked and not best:
        yield f"For {judged}: none. Each is behind another on more tasks than ahead of it."
    elif ranked and len(best) < len(ranked):
        yield f"For {judged}: {_listed(best)}. No other is ahead of these on more tasks."
    elif ranked:
        yield f"For {judged}: these tasks and seeds put no mixer ahead."
    others = [mixer for mixer in mixers if mixer.name != BASELINE]
    cheap = [m for m in others if (m.speed or 0.0) > 1 and not m.behind]
    if any(mixer.speed for mixer in others):
        yield (
            "For speed without a loss that shows: "
            f"{_listed(_by(cheap, lambda m: -(m.speed or 0.0)))}."
            if cheap
            else "For speed: none trains faster than softmax attention without a loss that shows."
        )
    failed = _failed(comparisons)
    small = [m for m in others if (m.memory or 2.0) < 1 and m.name not in failed]
    if small:
        yield f"For memory: {_listed(_by(small, lambda m: m.memory or 0.0))}."
    for mixer in others:
        if mixer.behind:
            yield f"{mixer.title} loses to softmax attention on {_listed(mixer.behind)}."
    slow = [mixer.title for mixer in others if mixer.speed is not None and mixer.speed < 1]
    if slow:
        yield f"Slower to train than softmax attention: {_listed(slow)}."
    for task, results in comparisons.items():
        if results["status"] == "complete" and nothing_learned(comparison_rows(results)):
            yield f"On {task} nothing learned, so it ranks nobody."
        elif results["status"] != "complete":
            yield f"{task} is not finished ({done_so_far(results)}), so it ranks nobody yet."
    if len(next(iter(comparisons.values()))["seeds"]) == 1:
        yield "One seed decides no difference: ranks are shared, and only speed and memory differ."


def _failed(comparisons: Comparisons) -> set[str]:
    """Mixers all of whose runs failed on a task that is finished."""
    complete = [of for of in comparisons.values() if of["status"] == "complete"]
    return {row.name for of in complete for row in comparison_rows(of) if row.test is None}


def _by(mixers: Sequence[Overall], key: Callable[[Overall], float]) -> list[str]:
    return [mixer.title for mixer in sorted(mixers, key=key)]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def parts(comparisons: Comparisons) -> list[Part]:
    """All tables of the page."""
    tasks = list(comparisons)
    titles = [mixer["title"] for mixer in next(iter(comparisons.values()))["mixers"]]
    return [
        _overview(comparisons),
        _scores(comparisons, titles),
        _by_task(
            "Differences from softmax attention", tasks, titles,
            [_differences(of) for of in comparisons.values()], _DIFFERENCES,
        ),
        _by_task("Speed", tasks, titles, _column(comparisons, "Steps/s"), _SPEEDS),
        _by_task("Memory", tasks, titles, _column(comparisons, "Peak memory"), _MEMORY),
        _tasks(comparisons),
    ]  # fmt: skip


def _overview(comparisons: Comparisons) -> Part:
    headers = ("Mixer", "Mean rank", "Ahead on", "Behind on", "Speed", "Memory")
    rows = [
        [
            Cell(mixer.title),
            Cell(_rank(mixer.standing), mixer.is_unbeaten),
            Cell(", ".join(mixer.ahead) or MISSING),
            Cell(", ".join(mixer.behind) or MISSING),
            Cell(_times(mixer.speed)),
            Cell(_times(mixer.memory)),
        ]
        for mixer in overall(comparisons)
    ]
    if all(row[1].best for row in rows):
        rows = [[cell if n != 1 else Cell(cell.text) for n, cell in enumerate(r)] for r in rows]
    return Part("All tasks", headers, rows, _RANKS)


def _rank(standing: Standing | None) -> str:
    if standing is None:
        return MISSING
    return f"{standing.rank:.1f} ({standing.low:.1f} to {standing.high:.1f})"


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.2f}x"


def _by_task(
    heading: str,
    tasks: Sequence[str],
    titles: Sequence[str],
    columns: Sequence[Sequence[Cell]],
    caption: str,
) -> Part:
    rows = [[Cell(title), *cells] for title, *cells in zip(titles, *columns, strict=True)]
    return Part(heading, ("Mixer", *tasks), rows, caption)


def _scores(comparisons: Comparisons, titles: Sequence[str]) -> Part:
    """Scores of the metric that chose the weights, which is said once where all tasks share it."""
    metrics = [metric_title(name) for name in _metrics(comparisons)]
    heading, tasks = "Test scores", list(comparisons)
    if len(set(metrics)) == 1:
        heading = metrics[0][:1].upper() + metrics[0][1:]
    else:
        tasks = [f"{task}: {metric}" for task, metric in zip(tasks, metrics, strict=True)]
    return _by_task(heading, tasks, titles, _column(comparisons, "Test "), _SCORES)


def _metrics(comparisons: Comparisons) -> list[str]:
    """Of each task the metric that chose the weights."""
    return [comparison_rows(of)[0].metric for of in comparisons.values()]


def _column(comparisons: Comparisons, start: str) -> list[list[Cell]]:
    """Of each task the column of its own table whose header begins so."""
    columns = []
    for results in comparisons.values():
        rows = comparison_rows(results)
        at = next(n for n, header in enumerate(table_headers(rows)) if header.startswith(start))
        columns.append([cells[at] for cells in table_cells(rows)])
    return columns


def _differences(results: Mapping[str, Any]) -> list[Cell]:
    rows = comparison_rows(results)
    cells = {line[0]: line for line in difference_cells(rows)}
    shown = {of.row.title for of in differences_from_softmax(rows) if of.decision.is_shown}
    return [
        Cell(f"{cells[r.title][1]} ({cells[r.title][2]}){' *' if r.title in shown else ''}")
        if r.title in cells
        else Cell(MISSING)
        for r in rows
    ]


def _tasks(comparisons: Comparisons) -> Part:
    """What each task is, and what a run of softmax attention takes and reaches there."""
    headers = ("Task", "Tokens", "Training", "Chance, %", "A run of softmax", "All runs")
    rows = [[Cell(cell) for cell in _task(name, of)] for name, of in comparisons.items()]
    caption = "Chance: always giving the commonest answer of the test split."
    return Part("The tasks", headers, rows, caption)


def _task(name: str, results: Mapping[str, Any]) -> list[str]:
    train = results["config"]["train"]
    times = [run["wall_seconds"] for run in results["runs"] if run["mixer"] == BASELINE]
    chance = comparison_rows(results)[0].chance
    return [
        name,
        f"{results['task']['max_length']:,}",
        f"{train['max_steps']:,} steps of {train['batch_size']}",
        MISSING if chance is None else format_percent(chance),
        format_duration(statistics.median(times)) if times else MISSING,
        format_duration(results["wall_seconds"]),
    ]


def markdown(title: str, comparisons: Comparisons) -> str:
    """table.md of a suite."""
    lines = [f"# {markdown_text(title)}", "", *bullet_lines(answers(comparisons)), ""]
    for part in parts(comparisons):
        rows = [[bold(cell.text) if cell.best else cell.text for cell in row] for row in part.rows]
        lines += [f"## {markdown_text(part.heading)}", ""]
        lines += [*table_lines(part.headers, rows, range(1, len(part.headers))), ""]
        lines += [markdown_text(part.caption), ""]
    for name, results in comparisons.items():
        page = f"{name}/table.md"
        lines += [f"## {markdown_text(name)}", "", *bullet_lines(brief_notes(results)), ""]
        lines += [f"More in {link(page, quote(page))}.", ""]
    return "\n".join(lines)


def html(title: str, command: str, comparisons: Comparisons) -> str:
    """report.html of a suite; every value in it is escaped."""
    return render(
        "suite.html",
        title=title,
        lead=command,
        answers=answers(comparisons),
        parts=parts(comparisons),
        notes={name: brief_notes(of) for name, of in comparisons.items()},
    )
