"""Block sorting: networks that score pairs of blocks, and sort matrices from these scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive
from rifflemix.compat import is_known, take_first
from rifflemix.errors import bad_argument, check_choice
from rifflemix.ops.sinkhorn import KERNELS, unchecked

SORT_NETS = ("linear", "relu", "mlp", "relu_mlp")
GUMBEL = ("training", "always", "never")


class SortingNetwork(nn.Module):
    """Score every pair of blocks, with a separate network for each head.

    - "linear": F1(x), the best in the ablation of the paper
    - "relu": relu(F1(x))
    - "mlp": F2(relu(F1(x)))
    - "relu_mlp": relu(F2(relu(F1(x)))), the network in the text of the paper

    Args:
        kind: a kind from this list.
        dim: channels C of the pooled vectors and of the hidden layer.
        num_heads: heads H.
        num_scores: number of scores M for each block.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", equations (3), (4) and table 8.
    """

    def __init__(self, kind: str, dim: int, num_heads: int, num_scores: int) -> None:
        super().__init__()
        check_choice("sort_net", kind, SORT_NETS)
        self.kind = kind
        if kind.endswith("mlp"):
            self.hidden_weight = nn.Parameter(torch.empty(num_heads, dim, dim))
            self.hidden_bias = nn.Parameter(torch.empty(num_heads, dim))
        self.weight = nn.Parameter(torch.empty(num_heads, dim, num_scores))
        self.bias = nn.Parameter(torch.empty(num_heads, num_scores))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weights as Xavier-uniform, separately per head, and biases as zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                for head in parameter:
                    nn.init.xavier_uniform_(head)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map pooled blocks (B, n, C) to scores (B, H, n, M)."""
        # A single product per head: broadcasting would copy the weights for each sample.
        if self.kind.endswith("mlp"):
            hidden = torch.einsum("bnc,hcd->hbnd", pooled, self.hidden_weight)
            hidden = (hidden + self.hidden_bias[:, None, None]).relu()
            scores = torch.einsum("hbnc,hcm->bhnm", hidden, self.weight)
        else:
            scores = torch.einsum("bnc,hcm->bhnm", pooled, self.weight)
        scores = scores + self.bias.unsqueeze(1)
        return scores.relu() if self.kind.startswith("relu") else scores

    def extra_repr(self) -> str:
        heads, dim, scores = self.weight.shape
        return f"kind={self.kind}, dim={dim}, num_heads={heads}, num_scores={scores}"


@dataclass(frozen=True)
class SortOptions:
    """Settings of block sorting; see `rifflemix.mixers.sinkhorn.Sinkhorn`."""

    sort_net: str = "linear"
    temperature: float = 0.75
    num_iterations: int = 8
    gumbel: str = "training"
    kernel: str = "exp"
    top_k: int = 0
    null_kv: bool = False
    final_row_norm: bool = True

    def check(self, *, causal: bool) -> None:
        """Raise InputError if options are out of range or incompatible."""
        check_choice("sort_net", self.sort_net, (*SORT_NETS, "attention"))
        check_choice("gumbel", self.gumbel, GUMBEL)
        check_choice("kernel", self.kernel, KERNELS)
        check_positive("temperature", self.temperature)
        check_integer("num_iterations", self.num_iterations, 0)
        check_integer("top_k", self.top_k, 0)
        if self.top_k and self.kernel != "exp":
            raise bad_argument("kernel", '"exp" with top_k', repr(self.kernel))
        if self.null_kv and not causal:
            raise bad_argument("null_kv", "False without causal=True", True)
        if not self.final_row_norm and (self.top_k or not causal):
            raise bad_argument("final_row_norm", "True unless balancing is causal", False)


class BlockSorter(nn.Module):
    """Compute the sort matrix of a sequence.

    The steps are pooling, sorting network, Gumbel noise, and balancing or top-k selection.

    Args:
        options: settings of block sorting.
        dim: channels C.
        num_heads: heads H.
        block_size: tokens b in a block.
        num_blocks: maximum number of blocks in a sequence.
        causal: use past blocks only.
        shared: use one destination for all queries (top-k with SortCut).
    """

    def __init__(
        self,
        options: SortOptions,
        dim: int,
        num_heads: int,
        block_size: int,
        num_blocks: int,
        *,
        causal: bool = False,
        shared: bool = False,
    ) -> None:
        super().__init__()
        options.check(causal=causal)
        self.options = options
        self.block_size = block_size
        self.causal = causal
        self.shared = shared
        # Null blocks take part in top-k selection, not in balancing.
        self.scored_null = options.top_k if options.null_kv else 0
        self.net: SortingNetwork | None = None
        if options.sort_net != "attention":
            num_scores = self.scored_null + num_blocks
            self.net = SortingNetwork(options.sort_net, dim, num_heads, num_scores)

    def forward(self, x: Tensor, q: Tensor, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Compute the sort matrix for `rifflemix.ops.sinkhorn.sinkhorn_attention`.

        Args:
            x: (B, N, C) inputs of the layer, N a multiple of the block size.
            q: (B, H, N, D) queries. Only `sort_net="attention"` uses them.
            k: (B, H, N, D) keys. Only `sort_net="attention"` uses them.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, H, R, n) or, with null blocks, (B, H, R, num_null + n).
        """
        return self.from_scores(self._scores(x, q, k, key_padding_mask), key_padding_mask)

    def from_scores(self, scores: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Compute the sort matrix from the scores (B, H, R, n) of blocks."""
        noise = None
        if self.options.gumbel == "always" or (self.options.gumbel == "training" and self.training):
            noise = unchecked.gumbel_noise(scores.shape, scores.device, scores.dtype)
        dead = None
        if key_padding_mask is not None:
            dead = torch.unflatten(key_padding_mask, 1, (-1, self.block_size)).all(-1)
        return self._to_sort_matrix(scores, noise, dead)

    def _scores(self, x: Tensor, q: Tensor, k: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if self.net is None:
            compared = unchecked.block_scores(
                q, k, self.block_size, self.causal, self.shared, key_padding_mask
            )
            return F.pad(compared, (self.scored_null, 0))
        size = x.shape[1] if self.shared else self.block_size
        pooled = unchecked.pool_blocks(x, size, self.causal, key_padding_mask)
        return self.pooled_scores(self.net(pooled), x.shape[1] // self.block_size)

    def pooled_scores(self, scores: Tensor, num_blocks: int) -> Tensor:
        """Select the first `num_blocks` of the scores (B, H, R, M)."""
        scored = self.scored_null + num_blocks
        if is_known(num_blocks):
            return scores.narrow(3, 0, scored)
        # A symbolic length adds a block of padding. The network may have no score for it.
        return take_first(F.pad(scores, (0, 1)), scored, 3)

    def _to_sort_matrix(self, scores: Tensor, noise: Tensor | None, dead: Tensor | None) -> Tensor:
        options = self.options
        if options.top_k:
            return unchecked.top_k_blocks(
                scores if noise is None else scores + noise,
                # A short sequence may have fewer blocks than picks.
                min(options.top_k, scores.shape[-1]),
                temperature=options.temperature,
                causal=self.causal,
                num_null=self.scored_null,
                block_padding_mask=dead,
            )
        sort = unchecked.gumbel_sinkhorn(
            scores,
            options.num_iterations,
            temperature=options.temperature,
            noise=noise,
            kernel=options.kernel,
            causal=self.causal,
            final_row_norm=options.final_row_norm,
            block_padding_mask=dead,
        )
        if not options.null_kv:
            return sort
        # A block without past blocks uses the null block.
        nothing = sort.detach().sum(-1, keepdim=True) <= 0
        return torch.cat((nothing.to(sort.dtype), sort), -1)
