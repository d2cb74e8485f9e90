"""The processes that torchrun started together."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """Whether this process writes and speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def is_one_of_many() -> bool:
    """Whether torchrun started others beside this one."""
    return count_processes() > 1


def count_processes() -> int:
    """How many processes torchrun started together, this one included."""
    return int(os.environ.get("WORLD_SIZE", "1"))
