"""Block sorting: networks that score pairs of blocks, and sort matrices from these scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.mixers.token_groups import first_columns
from rifflemix.ops.sinkhorn import SinkhornOptions, backends


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


class BlockSorter(nn.Module):
    """Compute the sort matrix of a sequence.

    The steps are pooling, sorting network, Gumbel noise, and balancing or top-k selection.

    Args:
        options: checked options.
        dim: channels C.
        num_heads: heads H.
        block_size: tokens b in a block.
        num_blocks: maximum number of blocks in a sequence.
    """

    def __init__(
        self,
        options: SinkhornOptions,
        dim: int,
        num_heads: int,
        block_size: int,
        num_blocks: int,
    ) -> None:
        super().__init__()
        self.options = options
        self.block_size = block_size
        # Top-k with SortCut: all queries share one destination.
        self.shared = bool(options.sortcut and options.top_k)
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
        size, causal = self.block_size, self.options.causal
        if self.net is None:
            scores = backends.BLOCKS.pick().block_scores(
                q, k, size, causal, self.shared, key_padding_mask
            )
            scores = F.pad(scores, (self.scored_null, 0))
        else:
            span = x.shape[1] if self.shared else size
            pooled = backends.BLOCKS.pick().pool_blocks(x, span, causal, key_padding_mask)
            scores = first_columns(self.net(pooled), self.scored_null + x.shape[1] // size)
        return self.sort_matrix(scores, key_padding_mask)

    def sort_matrix(self, scores: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Compute the sort matrix from the scores (B, H, R, n) of blocks."""
        options, noise, dead = self.options, None, None
        if options.gumbel == "always" or (options.gumbel == "training" and self.training):
            noise = backends.gumbel_noise(scores.shape, scores.device, scores.dtype)
        if key_padding_mask is not None:
            dead = torch.unflatten(key_padding_mask, 1, (-1, self.block_size)).all(-1)
        if options.top_k:
            return backends.BLOCKS.pick().top_k_blocks(
                scores if noise is None else scores + noise,
                # A short sequence may have fewer blocks than picks.
                min(options.top_k, scores.shape[-1]),
                temperature=options.temperature,
                causal=options.causal,
                num_null=self.scored_null,
                block_padding_mask=dead,
            )
        sort = backends.gumbel_sinkhorn(
            scores,
            options.num_iterations,
            temperature=options.temperature,
            noise=noise,
            kernel=options.kernel,
            causal=options.causal,
            final_row_norm=options.final_row_norm,
            block_padding_mask=dead,
        )
        if not options.null_kv:
            return sort
        # A block without past blocks uses the null block.
        nothing = sort.detach().sum(-1, keepdim=True) <= 0
        return torch.cat((nothing.to(sort.dtype), sort), -1)
