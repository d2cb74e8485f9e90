"""The error of a share of parts, such as tokens, of which each drawn sample has several."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor


def share_moments(right: Tensor, parts: Tensor) -> dict[str, tuple[float, int]]:
    """What `share_deviation` needs, from how many parts of each sample are right, and all: (B,)."""
    hits, sizes = right.double(), parts.double()
    sums = {
        "_parts": sizes,
        "_right_square": hits.square(),
        "_right_parts": hits * sizes,
        "_parts_square": sizes.square(),
    }
    return {name: (float(values.sum().item()), len(sizes)) for name, values in sums.items()}


def share_deviation(share: float, means: Mapping[str, float]) -> float | None:
    """The standard error of a share times the root of the number of samples; None if not measured.

    Samples are drawn, their parts come with them: the error is that of a ratio of two sums,
    linearised (Cochran 1977, Sampling Techniques, chapter 6).
    """
    if not means.get("_parts"):
        return None
    square = means["_right_square"] - 2 * share * means["_right_parts"]
    square += share**2 * means["_parts_square"]
    return math.sqrt(max(square, 0.0)) / means["_parts"]
