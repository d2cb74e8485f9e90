"""Detection of inputs that occur in more than one split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rifflemix.lab.tasks.core.base import SPLITS


def leaks(hashes: Mapping[str, Iterable[int]]) -> str:
    """Report how many inputs each split shares with earlier splits.

    Return an empty text if no inputs are shared.

    Args:
        hashes: Hashes of the inputs of each split.
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
