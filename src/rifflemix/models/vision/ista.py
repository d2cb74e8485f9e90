"""The sparse coding step that replaces the feed-forward layer in an ablation of ToST."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_floating, check_integer, check_positive, is_number, shown
from rifflemix.errors import bad_argument


class ISTA(nn.Module):
    """One non-negative ISTA step towards a sparse code of the input in a learned dictionary.

    For each token, the step starts at the code a = x. It is a proximal gradient step of length
    `step_size` on 1/2 |x - D a|^2 + `sparsity` * sum(a) over a >= 0:

    relu(x + step_size * (D^T (x - D x) - sparsity))

    The output already includes x. A block therefore computes `x = ista(norm(x))` instead of
    `x = x + feed_forward(norm(x))`.

    Args:
        dim: channels C; the dictionary D is C x C.
        step_size: length of the step, above 0.
        sparsity: weight of the l1 norm, at least 0.

    Raises:
        InputError: an argument is out of range, or the input does not have `dim` channels.

    Source: Yu et al. 2023, "White-Box Transformers via Sparse Rate Reduction", the ISTA block;
    ablation in Wu et al. 2024 (ToST), Table 8.
    """

    def __init__(self, dim: int, *, step_size: float = 0.1, sparsity: float = 0.1) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.step_size = check_positive("step_size", step_size)
        if not is_number(sparsity) or not sparsity >= 0.0:
            raise bad_argument("sparsity", "a number of at least 0", shown(sparsity))
        self.sparsity = sparsity
        self.weight = nn.Parameter(torch.empty(self.dim, self.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize D from He's uniform distribution."""
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the step: (..., C) -> (..., C), non-negative."""
        check_floating("x", x, "(..., C)")
        if x.shape[-1:] != (self.dim,):
            raise bad_argument("x", f"{self.dim} channels in shape (..., C)", tuple(x.shape))
        residual = x - F.linear(x, self.weight)
        descent = F.linear(residual, self.weight.mT) - self.sparsity
        return torch.relu(x + self.step_size * descent)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, step_size={self.step_size}, sparsity={self.sparsity}"
