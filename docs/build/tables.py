"""Tables of stored comparisons."""

from __future__ import annotations

import functools

from store import Result, load

from rifflemix.lab.comparison.records import Results
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.decode import decode


def results_of(result: Result) -> Results:
    """Decode the results of a comparison."""
    return decode(Results, result.content)


def table_of(result: Result) -> Table:
    """Return the rows of a comparison and the decisions between them."""
    return _table(result.name)


@functools.cache
def _table(name: str) -> Table:
    return Table(results_of(load(name)))
