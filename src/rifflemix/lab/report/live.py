"""Plain texts and tables for rich, and progress displays: live tables or plain lines."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rifflemix.lab.report.units import MISSING, format_duration, format_metric, format_rate
from rifflemix.text import terminal_text

if TYPE_CHECKING:
    from rifflemix.lab.experiments import Overview, WorkerStatus
    from rifflemix.lab.runs.status import RunStatus


def plain(value: object, *, is_bold: bool = False) -> Text:
    """Create a rich text of one line."""
    return Text(terminal_text(value), style="bold" if is_bold else "")


def text_table(
    headers: Sequence[object],
    rows: Iterable[Iterable[object | Text]],
    *,
    title: object = "",
    right: Iterable[int] = (),
    whole: Iterable[int] = (),
) -> Table:
    """Create a table of texts.

    Args:
        headers: titles of the columns.
        rows: cells; a `Text` keeps its style.
        title: title above the table.
        right: indices of right-aligned columns.
        whole: indices of columns that are never wrapped.
    """
    table = Table(box=SIMPLE_HEAD, title=plain(title) if title else None)
    for index, header in enumerate(headers):
        table.add_column(
            plain(header),
            justify="right" if index in right else "left",
            overflow="fold",
            no_wrap=index in whole,
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return table


_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_TABLES = 0.5
_HEADERS = ("Mixer", "Seed", "Status", "Step", "Loss", "Validation", "Steps/s", "ETA")


_State = TypeVar("_State", contravariant=True)


class Display(Protocol[_State]):
    """Interface of all displays."""

    def __enter__(self) -> Self:
        """Start the display."""
        ...

    def __exit__(self, *_: object) -> None:
        """Stop the display."""
        ...

    def update(self, state: _State, /) -> None:
        """Show the status of a run, or the state of an experiment."""
        ...

    def note(self, text: str) -> None:
        """Show a line of text."""
        ...


def live_progress(
    console: Console, titles: Mapping[str, str], seeds: Sequence[int]
) -> Display[RunStatus]:
    """Create a live table on a terminal or in a notebook, or plain lines elsewhere.

    Args:
        console: console of the display.
        titles: mixer name -> title, in the order of the table.
        seeds: seeds of every mixer.
    """
    if console.is_jupyter:
        return NotebookTable(titles, seeds)
    return LiveTable(console, titles, seeds) if console.is_terminal else PlainLines(console)


class _MixerLines:
    """Newest status of each mixer as a line of a table."""

    def __init__(self, titles: Mapping[str, str], seeds: Sequence[int]) -> None:
        self._titles = titles
        self._seeds = seeds
        self._latest: dict[str, RunStatus] = {}
        self._in_all: float | None = None

    def update(self, status: RunStatus) -> None:
        """Show the status of a run."""
        self._latest[status.mixer] = status
        self._in_all = status.seconds_left_in_all

    def _lines(self) -> Iterator[tuple[str, ...]]:
        for name, title in self._titles.items():
            yield title, *self._cells(self._latest.get(name))

    def _cells(self, status: RunStatus | None) -> tuple[str, ...]:
        if status is None:
            return (MISSING, "waiting", *[MISSING] * 5)
        return (
            f"{self._seeds.index(status.seed) + 1}/{len(self._seeds)}",
            f"{status.state} {status.trial}".strip(),
            *_numbers(status),
            remaining(status),
        )


def _numbers(run: RunStatus) -> tuple[str, ...]:
    """Return the cells Step, Loss, Validation and Steps/s."""
    return (
        f"{run.step}/{run.max_steps}",
        MISSING if run.loss is None else f"{run.loss:.3f}",
        MISSING if run.score is None else format_metric(run.metric, run.score),
        MISSING if run.steps_per_second is None else format_rate(run.steps_per_second),
    )


class _NotebookOutput:
    """Output of a notebook cell, redrawn twice per second."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._output: Any = None
        self._drawn = 0.0

    def __enter__(self) -> Self:
        from IPython.display import display

        self._output = display(self, display_id=True)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()

    def note(self, text: str) -> None:
        """Show a line below the table."""
        self._notes.append(text)
        self._draw()

    def _redraw(self) -> None:
        if time.monotonic() - self._drawn >= _SECONDS_BETWEEN_TABLES:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._output.update(self)

    def _html(self, headers: Sequence[str], rows: Iterable[Sequence[str]], below: str) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            inner = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{inner}</tr>"

        body = "".join(line(cells, "td") for cells in rows)
        notes = "".join(f"<p>{escape(text)}</p>" for text in (below, *self._notes) if text)
        return f"<table><thead>{line(headers, 'th')}</thead><tbody>{body}</tbody></table>{notes}"


class NotebookTable(_NotebookOutput, _MixerLines):
    """Table of the mixers in the output of a notebook cell."""

    def __init__(self, titles: Mapping[str, str], seeds: Sequence[int]) -> None:
        _NotebookOutput.__init__(self)
        _MixerLines.__init__(self, titles, seeds)

    def update(self, status: RunStatus) -> None:
        """Show the status of a run."""
        super().update(status)
        self._redraw()

    def _repr_html_(self) -> str:
        return self._html(_HEADERS, self._lines(), left_in_all(self._in_all))


class _OnTerminal(ABC):
    """Table on a terminal, redrawn several times per second."""

    def __init__(self, console: Console, per_second: int) -> None:
        self._live = Live(
            console=console, get_renderable=self._table, refresh_per_second=per_second
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """Print above the table."""
        self._live.console.print(plain(text))

    @abstractmethod
    def _table(self) -> Table: ...


class LiveTable(_OnTerminal, _MixerLines):
    """Table of the mixers on a terminal, redrawn four times per second."""

    def __init__(self, console: Console, titles: Mapping[str, str], seeds: Sequence[int]) -> None:
        _MixerLines.__init__(self, titles, seeds)
        _OnTerminal.__init__(self, console, 4)

    def _table(self) -> Table:
        table = text_table(_HEADERS, self._lines(), right=(1, 3, 4, 5, 6, 7))
        table.caption = left_in_all(self._in_all) or None
        return table


class _Lines:
    """Display that prints lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_time = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(plain(text), soft_wrap=True)


class PlainLines(_Lines):
    """Display that prints a line every ten seconds and when a run changes its state."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last_key: tuple[str, ...] | None = None

    def update(self, status: RunStatus) -> None:
        """Print the status, but at most every ten seconds per state."""
        key = (status.mixer, str(status.seed), status.state, status.trial)
        now = time.monotonic()
        if key == self._last_key and now - self._last_time < _SECONDS_BETWEEN_LINES:
            return
        self._last_key, self._last_time = key, now
        self.note(status_line(status))


def status_line(status: RunStatus) -> str:
    """Format a status as one line."""
    trial = f" {status.trial}" if status.trial else ""
    parts = [f"{status.mixer} seed {status.seed}{trial}: {status.state}"]
    parts.append(f"step {status.step}/{status.max_steps}")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.3f}")
    if status.score is not None:
        shown = format_metric(status.metric, status.score)
        parts.append(f"validation {status.metric.replace('_', ' ')} {shown}")
    if status.steps_per_second is not None:
        parts.append(f"{format_rate(status.steps_per_second)} steps/s")
    if (left := remaining(status)) != MISSING:
        parts.append(f"{left} left")
    if left := left_in_all(status.seconds_left_in_all):
        parts.append(left)
    return ", ".join(parts)


def left_in_all(seconds: float | None) -> str:
    """Format the time left for the comparison; "" if unknown or zero."""
    return "" if not seconds else f"about {format_duration(seconds)} left in all"


def remaining(status: RunStatus) -> str:
    """Format the time left for this run at the current speed."""
    if status.state != "training" or status.seconds_left is None:
        return MISSING
    return format_duration(status.seconds_left)


_WORKER_HEADERS = ("Worker", "Run", "Status", "Step", "Loss", "Validation", "Steps/s")


def workers_display(console: Console) -> Display[Overview]:
    """Create a live table on a terminal or in a notebook, or plain lines elsewhere."""
    if console.is_jupyter:
        return NotebookWorkers()
    return _LiveWorkers(console) if console.is_terminal else _WorkerLines(console)


class _LiveWorkers(_OnTerminal):
    """Table with one line per worker, redrawn twice per second."""

    def __init__(self, console: Console) -> None:
        self._overview: Overview | None = None
        super().__init__(console, 2)

    def update(self, overview: Overview) -> None:
        """Show the state of the experiment."""
        self._overview = overview

    def _table(self) -> Table:
        overview = self._overview
        rows = map(_cells, () if overview is None else overview.workers)
        table = text_table(_WORKER_HEADERS, rows, right=(3, 4, 5, 6))
        table.caption = "workers start" if overview is None else summary_line(overview)
        return table


class NotebookWorkers(_NotebookOutput):
    """Table of the workers in the output of a notebook cell."""

    def __init__(self) -> None:
        super().__init__()
        self._overview: Overview | None = None

    def update(self, overview: Overview) -> None:
        """Show the state of the experiment."""
        self._overview = overview
        self._redraw()

    def _repr_html_(self) -> str:
        if self._overview is None:
            return self._html(_WORKER_HEADERS, (), "workers start")
        rows = map(_cells, self._overview.workers)
        return self._html(_WORKER_HEADERS, rows, summary_line(self._overview))


class _WorkerLines(_Lines):
    """Display that prints all workers every ten seconds, and each finished run."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._done = -1

    def update(self, overview: Overview) -> None:
        """Print the state when a run has finished, but at most every ten seconds otherwise."""
        now = time.monotonic()
        is_new = overview.done != self._done
        if not is_new and now - self._last_time < _SECONDS_BETWEEN_LINES:
            return
        self._done, self._last_time = overview.done, now
        self.note(summary_line(overview))
        for worker in overview.workers:
            self.note(f"  {_name(worker)}: {status_line(worker.run)}")


def summary_line(overview: Overview) -> str:
    """Format runs done, number of workers and time left as one line."""
    count = len(overview.workers)
    parts = [f"{overview.done} of {overview.planned} runs"]
    if overview.failed:
        parts.append(f"{len(overview.failed)} failed")
    parts.append(f"{count} worker{'' if count == 1 else 's'}")
    if overview.seconds_left:
        parts.append(f"about {format_duration(overview.seconds_left)} left in all")
    return ", ".join(parts)


def _name(worker: WorkerStatus) -> str:
    return f"{worker.host} {worker.pid}"


def _cells(worker: WorkerStatus) -> tuple[str, ...]:
    run = worker.run
    return (
        _name(worker),
        f"{run.mixer} seed {run.seed} {run.trial}".strip(),
        run.state,
        *_numbers(run),
    )
