"""Stochastic depth: drop whole residual branches in training."""

from __future__ import annotations

from torch import Tensor, nn

from rifflemix.checks import check_probability


class DropPath(nn.Module):
    """In training, zero each sample with probability `p` and divide the others by 1 - p.

    Args:
        p: probability in [0, 1).

    Source: Huang et al. 2016, "Deep Networks with Stochastic Depth".
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_probability("p", p)

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, ...)."""
        if not self.training or self.p == 0.0:
            return x
        kept = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(1.0 - self.p)
        return x * (kept / (1.0 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"
