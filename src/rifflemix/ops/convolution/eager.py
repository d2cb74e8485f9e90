"""Short convolution in plain torch: one multiplication and addition of all tokens per tap.

Sums of 16-bit tokens are in float32, and only the result is rounded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, first: int, length: int
) -> Tensor:
    """See `rifflemix.ops.convolution.backends.short_convolution`."""
    dtype = x.dtype
    wide = torch.promote_types(dtype, torch.float32)
    x, weight = x.to(wide), weight.to(wide)
    after = first + len(weight) - 1 + length - x.shape[1]
    x = F.pad(x, (0, 0, max(-first, 0), max(after, 0)))
    start = max(first, 0)
    y = x[:, start : start + length] * weight[0]
    for tap in range(start + 1, start + len(weight)):
        y = torch.addcmul(y, x[:, tap : tap + length], weight[tap - start])
    return (y if bias is None else y + bias.to(wide)).to(dtype)
