"""Samples of a split whose inputs an earlier split holds too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rifflemix.lab.tasks.core.base import SPLITS


def leaks(hashes: Mapping[str, Iterable[int]]) -> str:
    """A clause on samples whose inputs an earlier split holds; empty without any.

    Args:
        hashes: of the inputs of each split.
    """
    seen: set[int] = set()
    told = []
    for name in SPLITS:
        here = list(hashes[name])
        count = sum(content in seen for content in here)
        if count:
            told.append(f"{count:,} of {name}")
        seen.update(here)
    if not told:
        return ""
    return f"inputs that an earlier split holds too: {' and '.join(told)}"
