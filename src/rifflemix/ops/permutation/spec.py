"""Arguments and results that the implementations of this family share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

Permuted = tuple[Tensor, Tensor | None]
"""Values (B, N, C), and the index that gathers them, or None if it was not asked for."""


class SortSpec(NamedTuple):
    """How groups of tokens are sorted.

    Attributes:
        num_groups: groups K, a divisor of N.
        by_reference: by the rank order of each head's first channel; False: every channel by its
            own values.
        heads: contiguous heads of C / heads channels.
        descending: (C,) bool, channels that are sorted downwards; None: none.
    """

    num_groups: int
    by_reference: bool = True
    heads: int = 1
    descending: Tensor | None = None
