"""Standard error of a ratio, such as the share of correct tokens per sample."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor


def share_moments(right: Tensor, parts: Tensor) -> dict[str, tuple[float, int]]:
    """Compute the moments for `share_deviation`.

    Args:
        right: (B,) number of correct parts of each sample.
        parts: (B,) number of parts of each sample.
    """
    hits, sizes = right.double(), parts.double()
    sums = {
        "_parts": sizes,
        "_right_square": hits.square(),
        "_right_parts": hits * sizes,
        "_parts_square": sizes.square(),
    }
    return {name: (float(values.sum().item()), len(sizes)) for name, values in sums.items()}


def share_deviation(share: float, means: Mapping[str, float]) -> float | None:
    """Compute the standard error of a share times sqrt(number of samples).

    Return None without moments. Samples are drawn together with all their parts. The error is the
    linearized error of a ratio of two sums (Cochran 1977, Sampling Techniques, chapter 6).
    """
    if not means.get("_parts"):
        return None
    square = means["_right_square"] - 2 * share * means["_right_parts"]
    square += share**2 * means["_parts_square"]
    return math.sqrt(max(square, 0.0)) / means["_parts"]
