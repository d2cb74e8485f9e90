"""Handle Ctrl-C: the first requests a clean stop, the second stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


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
