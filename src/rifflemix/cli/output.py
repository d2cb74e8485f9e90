"""Output of the commands: results on stdout, progress on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, cast

from rich.console import Console, RenderableType
from rich.progress import ProgressColumn, Task
from rich.table import Table
from rich.text import Text

from rifflemix.errors import InputError
from rifflemix.lab.report.terminal import plain, text_table
from rifflemix.lab.runs.processes import is_main_process
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
