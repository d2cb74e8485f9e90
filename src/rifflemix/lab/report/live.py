"""Progress display of a comparison: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from rifflemix.lab.report.terminal import plain, text_table
from rifflemix.lab.report.units import MISSING, format_duration, format_metric, format_rate

if TYPE_CHECKING:
    from rifflemix.lab.runs.status import RunStatus

_SECONDS_BETWEEN_LINES = 10.0
_HEADERS = ("Mixer", "Seed", "Status", "Step", "Loss", "Validation", "Steps/s", "ETA")


class LiveProgress(Protocol):
    """Interface of both displays."""

    def __enter__(self) -> Self:
        """Start the display."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the display."""
        ...

    def update(self, status: RunStatus) -> None:
        """Show the status of a run."""
        ...

    def note(self, text: str) -> None:
        """Show a line of text."""
        ...


def live_progress(
    console: Console, titles: Mapping[str, str], seeds: Sequence[int]
) -> LiveProgress:
    """Create a live table on a terminal, or plain lines elsewhere.

    Args:
        console: console of the display.
        titles: mixer name -> title, in the order of the table.
        seeds: seeds of every mixer.
    """
    return LiveTable(console, titles, seeds) if console.is_terminal else PlainLines(console)


class LiveTable:
    """Table with one line per mixer, redrawn four times per second."""

    def __init__(self, console: Console, titles: Mapping[str, str], seeds: Sequence[int]) -> None:
        self._titles = titles
        self._seeds = seeds
        self._latest: dict[str, RunStatus] = {}
        self._in_all: float | None = None
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def update(self, status: RunStatus) -> None:
        """Show the status of a run."""
        self._latest[status.mixer] = status
        self._in_all = status.seconds_left_in_all

    def note(self, text: str) -> None:
        """Print above the table."""
        self._live.console.print(plain(text))

    def _table(self) -> Table:
        rows = ((t, *self._cells(self._latest.get(name))) for name, t in self._titles.items())
        table = text_table(_HEADERS, rows, right=(1, 3, 4, 5, 6, 7))
        table.caption = left_in_all(self._in_all) or None
        return table

    def _cells(self, status: RunStatus | None) -> tuple[str, ...]:
        if status is None:
            return (MISSING, "waiting", *[MISSING] * 5)
        return (
            f"{self._seeds.index(status.seed) + 1}/{len(self._seeds)}",
            f"{status.state} {status.trial}".strip(),
            f"{status.step}/{status.max_steps}",
            MISSING if status.loss is None else f"{status.loss:.3f}",
            MISSING if status.score is None else format_metric(status.metric, status.score),
            MISSING if status.steps_per_second is None else format_rate(status.steps_per_second),
            remaining(status),
        )


class PlainLines:
    """Display that prints a line every ten seconds and when a run changes its state."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_key: tuple[str, ...] | None = None
        self._last_time = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def update(self, status: RunStatus) -> None:
        """Print the status, but at most every ten seconds per state."""
        key = (status.mixer, str(status.seed), status.state, status.trial)
        now = time.monotonic()
        if key == self._last_key and now - self._last_time < _SECONDS_BETWEEN_LINES:
            return
        self._last_key, self._last_time = key, now
        self.note(status_line(status))

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(plain(text), soft_wrap=True)


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
