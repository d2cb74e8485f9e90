"""Types of arguments and results for the backends of this family."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

Permuted = tuple[Tensor, Tensor | None]
"""Values (B, N, C) and the index that gathers them; the index is None if not requested."""


class SortSpec(NamedTuple):
    """Settings of a group sort.

    Attributes:
        num_groups: groups K, a divisor of N.
        by_reference: True: sort by the rank order of the first channel of each head. False: sort
            every channel by its own values.
        heads: number of contiguous heads, each of C / heads channels.
        descending: (C,) bool, channels to sort in descending order. None: all channels ascending.
    """

    num_groups: int
    by_reference: bool = True
    heads: int = 1
    descending: Tensor | None = None
