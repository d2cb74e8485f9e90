"""Output of the commands: results on stdout, progress on stderr; a clean stop at Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Thread
from types import FrameType, TracebackType
from typing import IO, Any, Self, cast

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from rifflemix.errors import InputError
from rifflemix.lab.report.live import plain, text_table
from rifflemix.lab.runs.options import is_main_process
from rifflemix.text import terminal_text


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """Context in which stdout and stderr accept every character. Its end flushes stdout.

    A closed pipe (`| head`) is not an error.

    Raises:
        InputError: stdout is closed, or cannot be written.
    """
    if sys.stdout is None:
        raise InputError("cannot write the output: stdout is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    yield
    with _writing():
        sys.stdout.flush()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Otherwise Python tries again at exit and prints its own message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"cannot write the output: {error.strerror}") from error


def complain(line: str) -> None:
    """Print one line on stderr. Ignore a missing or closed stderr."""
    if sys.stderr is not None:  # print(file=None) writes to stdout
        with contextlib.suppress(OSError):
            print(terminal_text(" ".join(line.split())), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=not is_unicode)
    if not text.replace("\n", "").isprintable():
        text = json.dumps(value, indent=2)  # escape control characters
    with _writing():
        sys.stdout.write(text + "\n")


def output_width() -> int:
    """Return the number of columns of stdout. A pipe has at least 200."""
    console = Console()
    return console.width if console.is_terminal else max(console.width, 200)


def show(renderable: RenderableType) -> None:
    """Print a table or one line of text on stdout."""
    shown = plain(renderable) if isinstance(renderable, str) else renderable
    with _writing():
        _Output(highlight=False, width=output_width()).print(shown)


def tell(console: Console, line: str) -> None:
    """Print one line of text, which the terminal wraps."""
    console.print(plain(line), soft_wrap=True)


class DescriptionColumn(ProgressColumn):
    """Column of a progress bar with the description of the work."""

    def render(self, task: Task) -> Text:
        """Return the description as plain text."""
        return plain(task.description)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error for `_writing`. By default, rich exits with code 1."""
        raise BrokenPipeError


def progress_console() -> Console:
    """Return the console for progress. Only rank 0 prints."""
    file = None if sys.stderr is None else cast(IO[str], _Unreliable(sys.stderr))
    return Console(file=file, stderr=True, highlight=False, quiet=not is_main_process())


class _Unreliable:
    """A stream that ignores errors, such as a reader that ended: `2>&1 | tee log` at Ctrl-C."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text and ignore errors."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush and ignore errors."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def plain_table(headers: Sequence[str], rows: Iterable[Iterable[Any]]) -> Table:
    """Build a table of texts. The first column is never cut."""
    return text_table(headers, rows, whole=(0,))


_SECONDS_TO_FIRST_LINE = 5.0
_SECONDS_BETWEEN_LINES = 10.0


class DataProgress:
    """A progress bar on a terminal. Other outputs get a line every ten seconds.

    Args:
        console: where to write.
        time_is_up: called at each update; True stops the preparation.
    """

    def __init__(self, console: Console, time_is_up: Callable[[], bool] = lambda: False) -> None:
        self._console = console
        self._time_is_up = time_is_up
        self._progress = Progress(
            DescriptionColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("loading data", total=None)
        self._ended = Event()
        self._lines = Thread(target=self._print_lines, daemon=True)

    def __enter__(self) -> DataProgress:
        """Start to show."""
        self._progress.start()
        if not self._console.is_terminal:
            self._lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to show."""
        self._progress.stop()
        self._ended.set()
        if self._lines.is_alive():
            self._lines.join()

    def __call__(self, what: str, done: int, total: int | None) -> bool:
        """Show the progress of the work, and return whether it shall stop."""
        if what != self._progress.tasks[0].description:
            self._progress.reset(self._task, description=what, total=total)
        self._progress.update(self._task, completed=done, total=total)
        return self._time_is_up()

    def _print_lines(self) -> None:
        start, wait = time.monotonic(), _SECONDS_TO_FIRST_LINE
        while not self._ended.wait(wait):
            task, wait = self._progress.tasks[0], _SECONDS_BETWEEN_LINES
            parts = [task.description]
            if task.total is not None:
                parts.append(f"{task.completed:,.0f} of {task.total:,.0f}")
            parts.append(f"{time.monotonic() - start:.0f} s")
            self._console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)


class StopRequest:
    """Context in which the first Ctrl-C only sets a flag. Calling the object returns the flag.

    A signal can arrive during a print or an import, which cannot run twice at once. So another
    thread shows the message.

    Args:
        say: shows a line of text, which explains a second Ctrl-C.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._requested = False
        self._previous: Any = None
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._speaker = Thread(target=self._speak, daemon=True)

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self._requested

    def __enter__(self) -> Self:
        """Install the handler of SIGINT."""
        self._speaker.start()
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the handler of SIGINT and wait for the message."""
        signal.signal(signal.SIGINT, self._previous)
        self._lines.put(None)
        self._speaker.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._lines.put("stopping after this step; press Ctrl-C again to stop at once")

    def _speak(self) -> None:
        while (line := self._lines.get()) is not None:
            self._say(line)
