"""Averages over a row that a table prints beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rifflemix.lab.recipes import dimension_mixer_lra, mega, sliceformer, tost_lra

_CHANCE = 50.0


@dataclass(frozen=True)
class Average:
    """A printed average, in per cent or in the unit of its columns.

    Attributes:
        printed: the number.
        failed: columns of two classes that say FAIL and count as chance; a FAIL that is left out
            of the average is no such column.
        without: columns that have a number but are no part of the average.
    """

    printed: float
    failed: int = 0
    without: tuple[str, ...] = ()

    def of(self, values: Mapping[str, float]) -> float:
        """The same average of other values by column, of the columns that have a number."""
        counted = [value for column, value in values.items() if column not in self.without]
        return (sum(counted) + self.failed * _CHANCE) / (len(counted) + self.failed)


_TRANSFORMERS: dict[str, Average] = {
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
}
_CSP_TABLE_4: dict[str, Average] = {
    **_TRANSFORMERS,
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
_SLICEFORMER_TABLE_2: dict[str, Average] = {
    **_TRANSFORMERS,
    "Sliceformer, max-exchange": Average(54.96),
    "Sliceformer, order-interleave": Average(58.28),
    "Sliceformer, ascending": Average(58.91),
}
# The averages of the first four count, as chance, a Path-X that the table does not show.
_TOST_TABLE_3: dict[str, Average] = {
    "Reformer": Average(50.56, failed=1),
    "BigBird": Average(54.17, failed=1),
    "LinFormer": Average(50.46, failed=1),
    "Performer": Average(51.18, failed=1),
    "Transformer": Average(59.24),
    "ToST": Average(59.90),
    "S4": Average(84.03),
}
_TOST_TABLE_4: dict[str, Average] = {
    "GPT2-Base": Average(4.26),
    "ToST-Base": Average(4.84),
    "ToST-Medium": Average(4.32),
    "ToST-Large": Average(4.02),
}
_DIMENSION_MIXER_TABLE_5: dict[str, Average] = {
    row: Average(printed, without=("Path-X",))
    for row, printed in {
        "Standard": 58.77,
        "Flash-Attn.": 59.8,
        "Reformer": 55.04,
        "Linformer": 55.59,
        "Performer": 53.63,
        "Nystromformer": 58.95,
        "Butterfly": 59.75,
    }.items()
}
_TABLES: dict[tuple[str, str], Mapping[str, Average]] = {
    (mega.PAPER, "Table 4"): _CSP_TABLE_4,
    (sliceformer.PAPER, "Table II"): _SLICEFORMER_TABLE_2,
    (tost_lra.PAPER, "Table 3"): _TOST_TABLE_3,
    (tost_lra.PAPER, "Table 4"): _TOST_TABLE_4,
    (dimension_mixer_lra.PAPER, "Table 5"): _DIMENSION_MIXER_TABLE_5,
}


def printed_averages(paper: str, table: str) -> Mapping[str, Average]:
    """Averages by row; none where the table prints none."""
    return _TABLES.get((paper, table), {})
