"""Imports of packages in new processes, because an import may fail, crash or hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import IO

_CODE = """
import importlib, os, sys
module, _, attribute = sys.argv[1].partition(":")
report = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
os.dup2(2, 1)
try:
    found = importlib.import_module(module)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    text = "imported"
except BaseException as error:
    text = f"{type(error).__name__}: {error}"
report.write(text)
report.flush()
os._exit(0)
"""
_MOST_CHARACTERS = 300


def failed_imports(targets: Iterable[str], *, seconds: float = 60.0) -> dict[str, str]:
    """Import each target in a new process.

    Args:
        targets: modules, or objects as MODULE:NAME.
        seconds: time limit; slower processes are killed.

    Returns:
        Target -> one-line reason, for each target that cannot be imported.
    """
    waiting, running = list(dict.fromkeys(targets)), list[_Import]()
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                # A pipe would stay open as long as processes that the package started.
                report = stack.enter_context(tempfile.TemporaryFile())
                one = _Import(waiting.pop(0), report, time.monotonic() + seconds)
                stack.callback(one.kill)
                running.append(one)
            for one in [one for one in running if one.has_ended()]:
                running.remove(one)
                reason = one.reason(seconds)
                if reason:
                    failures[one.target] = reason
            time.sleep(0.01)
    return failures


class _Import:
    """Process that imports a target."""

    def __init__(self, target: str, report: IO[bytes], end: float) -> None:
        self.target = target
        self._report = report
        self._end = end
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE, target],
            stdin=subprocess.DEVNULL,
            stdout=report,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        """Return whether the process has ended or its time is up."""
        return self._process.poll() is not None or time.monotonic() >= self._end

    def reason(self, seconds: float) -> str:
        """End the process and return the reason of failure, or ""."""
        code = self._process.poll()
        self.kill()
        if code is None:
            return f"the import takes more than {seconds:g} s"
        self._report.seek(0)
        text = " ".join(self._report.read().decode("utf-8", "replace").split())
        if not text:
            end = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            return f"the import ended Python with {end}"
        return "" if text == "imported" else text[:_MOST_CHARACTERS]

    def kill(self) -> None:
        """End the process and the processes that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
