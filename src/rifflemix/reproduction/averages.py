"""Averages over a row that a table prints beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rifflemix.recipes import mega

_CHANCE = 50.0


@dataclass(frozen=True)
class Average:
    """A printed average, in per cent.

    Attributes:
        printed: the number.
        failed: columns of two classes that say FAIL and count as chance; a FAIL that is left out
            of the average is no such column.
    """

    printed: float
    failed: int = 0

    def of(self, values: Sequence[float]) -> float:
        """The same average of other values of the columns that have a number."""
        return (sum(values) + self.failed * _CHANCE) / (len(values) + self.failed)


_CSP_TABLE_4: dict[str, Average] = {
    "Transformer": Average(54.39),
    "LocalAttention": Average(46.06),
    "LinearTrans": Average(50.55),
    "Reformer": Average(50.67),
    "Sinkformer": Average(51.18),
    "SparseTrans": Average(51.24),
    "SinkhornTrans": Average(51.29),
    "Linformer": Average(51.36),
    "Performer": Average(51.41),
    "Synthesizer": Average(52.88),
    "Longformer": Average(53.46),
    "BigBird": Average(55.01),
    "Cosformer": Average(55.23),
    "Transformer using CSP": Average(58.91),
    "CCNN": Average(68.02, failed=2),
    "ETSMLP": Average(83.09),
    "S4": Average(80.48),
    "S5": Average(87.46),
    "SPADE": Average(86.19),
    "MEGA": Average(88.21),
    "MEGA-chunk": Average(85.66),
    "MEGA using CSP": Average(85.89),
}
_TABLES: dict[tuple[str, str], Mapping[str, Average]] = {(mega.PAPER, "Table 4"): _CSP_TABLE_4}


def printed_averages(paper: str, table: str) -> Mapping[str, Average]:
    """Averages by row; none where the table prints none."""
    return _TABLES.get((paper, table), {})
