"""Rank and number of the processes that torchrun started."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """Return whether this process has rank 0 and writes files and messages."""
    return os.environ.get("RANK", "0") == "0"


def is_one_of_many() -> bool:
    """Return whether torchrun started more than one process."""
    return count_processes() > 1


def count_processes() -> int:
    """Return the number of processes that torchrun started, including this process."""
    return int(os.environ.get("WORLD_SIZE", "1"))
