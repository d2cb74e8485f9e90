"""Ctrl-C: the first one asks for a clean stop, the second one stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


class StopRequest:
    """While entered, the first Ctrl-C only sets a flag; calling the object reads it.

    The signal may come in the midst of a print or an import, which cannot be entered twice, so a
    thread of its own waits to answer it.

    Args:
        say: shows a line of text; told what happens now and what a second Ctrl-C does.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._requested = False
        self._previous: Any = None
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._speaker = Thread(target=self._speak, daemon=True)

    def __call__(self) -> bool:
        """Whether a stop was asked for."""
        return self._requested

    def __enter__(self) -> Self:
        """Take over SIGINT."""
        self._speaker.start()
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give SIGINT back once all is said."""
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
