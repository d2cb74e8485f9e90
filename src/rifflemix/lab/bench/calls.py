"""Count the rifflemix functions that a call enters: the Python overhead at small inputs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import rifflemix

_PACKAGE = str(Path(rifflemix.__file__).parent)
_BENCH = str(Path(__file__).parent)


def package_calls(call: Callable[[], object]) -> Counter[str]:
    """Count how often `call` enters each rifflemix function, by file and name.

    Functions of the benchmarks and calls in other threads are not counted.
    """
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and file.startswith(_PACKAGE) and not file.startswith(_BENCH):
            calls[f"{Path(file).relative_to(_PACKAGE)} {name}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return calls
