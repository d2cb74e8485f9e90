"""Script for torchrun: run `rifflemix WORDS`, then print the threads left at exit."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path


def print_threads() -> None:
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    sys.stdout.write(f"left: {' '.join(sorted(names))}\n")  # one write: processes interleave
    sys.stdout.flush()


if __name__ == "__main__":
    atexit.register(print_threads)  # registered first, so it runs last

    from rifflemix.cli import main

    raise SystemExit(main())
