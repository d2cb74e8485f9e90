"""Find inputs that occur in more than one split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from rifflemix.lab.tasks.core.base import SPLITS

_MOST_BITS = 26  # a table of 64 MB


def duplicates_across_splits(hashes: Mapping[str, Iterable[int] | NDArray[np.int64]]) -> str:
    """Report how many inputs each split shares with earlier splits.

    Return an empty text if no inputs are shared.

    Args:
        hashes: Hashes of the inputs of each split.
    """
    seen = np.empty(0, dtype=np.int64)
    found = []
    for name in SPLITS:
        given = hashes[name]
        here = given if isinstance(given, np.ndarray) else np.fromiter(given, dtype=np.int64)
        count = _count_known(here, seen)
        if count:
            found.append(f"{count:,} of {name}")
        seen = np.concatenate((seen, here))
    if not found:
        return ""
    return f"inputs that an earlier split holds too: {' and '.join(found)}"


def _count_known(here: NDArray[np.int64], seen: NDArray[np.int64]) -> int:
    """Count the entries of `here` that are in `seen`. np.isin is slower for millions of entries."""
    if not len(here) or not len(seen):
        return 0
    # A table of the lowest bits excludes most entries faster than a search.
    mask = (1 << min((8 * len(here)).bit_length(), _MOST_BITS)) - 1
    is_possible = np.zeros(mask + 1, dtype=bool)
    is_possible[here & mask] = True
    possible = seen[is_possible[seen & mask]]
    ordered = np.sort(here)
    places = np.minimum(np.searchsorted(ordered, possible), len(ordered) - 1)
    known = np.zeros(len(ordered), dtype=bool)
    known[places[ordered[places] == possible]] = True  # the first of equal entries
    return int(known[np.searchsorted(ordered, ordered)].sum())
