"""Cross-attention mixers, for decoders."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import (
    check_divides,
    check_integer,
    check_like_parameters,
    check_padding_mask,
    check_probability,
    check_tokens,
)
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.padding import move_padding_last
from rifflemix.mixers.sinkhorn import block_layout
from rifflemix.mixers.sorting_networks import BlockSorter
from rifflemix.mixers.token_groups import fill_groups
from rifflemix.ops.dropout.backends import dropout_attention
from rifflemix.ops.sinkhorn import (
    SinkhornOptions,
    block_attention,
    sinkhorn_attention,
    sort_blocks,
    sorted_padding_mask,
)
from rifflemix.ops.sinkhorn.options import SORT_NETS


class CrossAttention(nn.Module):
    """Attend from the queries of a decoder to a memory.

    Args:
        dim: channels C of queries, memory and output.
        num_heads: heads H; must divide `dim`.
        dropout: probability of dropping an attention weight.

    Raises:
        InputError: an argument is out of range.
    """

    query: nn.Linear
    key_value: nn.Linear
    proj: nn.Linear

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.num_heads = check_divides("num_heads", num_heads, dim, "dim")
        self.dropout = check_probability("dropout", dropout)

    def add_maps(self, *, bias: bool) -> None:
        """Create the Q/K/V/O projections.

        Args:
            bias: add a bias to each projection.
        """
        self.query = nn.Linear(self.dim, self.dim, bias=bias)
        self.key_value = nn.Linear(self.dim, 2 * self.dim, bias=bias)
        self.proj = nn.Linear(self.dim, self.dim, bias=bias)

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values of each head.

        Args:
            x: (B, M, C) queries.
            memory: (B, N, C) memory.

        Returns:
            Queries (B, H, M, D), keys (B, H, N, D) and values (B, H, N, D).
        """
        q = self._heads(self.query(x))
        k, v = (self._heads(part) for part in self.key_value(memory).chunk(2, -1))
        return q, k, v

    def output(self, y: Tensor) -> Tensor:
        """Merge heads and project them.

        Args:
            y: (B, H, M, D) outputs of the heads.

        Returns:
            (B, M, C).
        """
        return self.proj(y.transpose(1, 2).flatten(2))

    @property
    def dropout_now(self) -> float:
        """Probability of dropping an attention weight; 0 in evaluation mode."""
        return self.dropout if self.training else 0.0

    def check_input(self, x: Tensor, memory: Tensor, key_padding_mask: Tensor | None) -> None:
        """Check that queries, memory and mask fit.

        Args:
            x: (B, M, C) queries.
            memory: (B, N, C) memory.
            key_padding_mask: (B, N) bool, True = padding of the memory, or None.

        Raises:
            InputError: a shape, dtype or device is wrong.
        """
        for name, tensor in (("x", x), ("memory", memory)):
            check_tokens(name, tensor)
            if tensor.shape[1] < 1 or tensor.shape[2] != self.dim:
                expected = f"at least one token and {self.dim} channels in shape (B, N, C)"
                raise bad_argument(name, expected, tuple(tensor.shape))
            check_like_parameters(name, tensor, self)
        if memory.shape[0] != x.shape[0]:
            raise bad_argument("memory", f"the batch size {x.shape[0]} of x", memory.shape[0])
        check_padding_mask(key_padding_mask, memory)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}"

    def _heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2)


class SoftmaxCrossAttention(CrossAttention):
    """Attend from decoder queries to all valid positions of a memory.

    Args:
        dim: channels C of queries, memory and output.
        num_heads: heads H; must divide `dim`.
        dropout: probability of dropping an attention weight.
        bias: add a bias to the Q/K/V/O projections.

    Raises:
        InputError: an argument is out of range.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.

    Example:
        >>> import torch, rifflemix as rm
        >>> layer = rm.mixers.SoftmaxCrossAttention(64, num_heads=4)
        >>> layer(torch.randn(2, 10, 64), torch.randn(2, 256, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self, dim: int, *, num_heads: int = 1, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        self.add_maps(bias=bias)

    def forward(
        self, x: Tensor, memory: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Attend from x to the memory.

        Args:
            x: (B, M, C) queries.
            memory: (B, N, C) tokens of the memory.
            key_padding_mask: (B, N) bool, True = padding of the memory.

        Returns:
            (B, M, C). If a memory has no valid token, the output is the bias of the output
            projection.

        Raises:
            InputError: a shape, dtype or device is wrong.
        """
        self.check_input(x, memory, key_padding_mask)
        if key_padding_mask is not None:  # NaN would reach the gradient of `key_value`
            memory = torch.where(key_padding_mask.unsqueeze(-1), 0.0, memory)
        q, k, v = self.project(x, memory)
        mask = None
        if key_padding_mask is not None:
            # NaN at a padded position must not reach the output. A memory of padding is all zeros.
            padded = key_padding_mask[:, None, :, None]
            k, v = torch.where(padded, 0.0, k), torch.where(padded, 0.0, v)
            nothing = key_padding_mask.all(dim=1)[:, None, None, None]
            mask = ~key_padding_mask[:, None, None, :] | nothing
        y = dropout_attention(q, k, v, mask=mask, dropout_p=self.dropout_now)
        return self.output(y)


class SinkhornCrossAttention(CrossAttention):
    """Attend from decoder queries to the sorted blocks of a memory.

    The paper uses its attention "for both encoding and decoding" but does not define
    cross-attention. Here scores, balancing and sort matrix depend on the memory only. Later
    queries therefore never change the output of an earlier query.

    Query block u attends to the memory block sorted into position u. As the local term, it also
    attends to memory block u. If there are more query blocks than valid memory blocks, u wraps
    around. With SortCut all queries share the first m sorted blocks.

    Args:
        dim: channels C of queries, memory and output.
        num_heads: heads H; must divide `dim`.
        max_length: maximum number of tokens in the memory. The number of queries is not limited.
        block_size: tokens b in a block. Default: the smallest power of two that is at least
            sqrt(max_length).
        sort_net: "linear", "relu", "mlp" or "relu_mlp"; see `SortingNetwork`.
        temperature: temperature tau. A lower temperature gives a harder permutation.
        num_iterations: Sinkhorn iterations N_k.
        gumbel: when to add Gumbel noise to the scores: "training", "always" or "never".
        combine: "concat", "sum_logits" or "sum_out"; see `block_attention`.
        sortcut: m > 0 enables SortCut: all queries share the first m sorted blocks, without the
            local term.
        dropout: probability of dropping an attention weight.
        bias: add a bias to the Q/K/V/O projections.

    Raises:
        InputError: an argument is out of range.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", sections 3.2, 3.4 and 5.1.

    Example:
        >>> import torch, rifflemix as rm
        >>> layer = rm.mixers.SinkhornCrossAttention(64, num_heads=4, max_length=256)
        >>> queries, memory = torch.randn(2, 10, 64), torch.randn(2, 256, 64)
        >>> layer(queries, memory).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 1,
        max_length: int,
        block_size: int | None = None,
        sort_net: str = "linear",
        temperature: float = 0.75,
        num_iterations: int = 8,
        gumbel: str = "training",
        combine: str = "concat",
        sortcut: int = 0,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        self.max_length = check_integer("max_length", max_length, 1)
        # No "attention": the sorting must not depend on the queries.
        check_choice("sort_net", sort_net, SORT_NETS)
        self.block_size, num_blocks = block_layout(block_size, self.max_length)
        self.options = options = SinkhornOptions(
            sort_net=sort_net,
            temperature=temperature,
            num_iterations=num_iterations,
            gumbel=gumbel,
            combine=combine,
            sortcut=sortcut,
        ).checked(num_blocks, self.num_heads)
        self.sorter = BlockSorter(options, self.dim, self.num_heads, self.block_size, num_blocks)
        self.add_maps(bias=bias)

    def forward(
        self, x: Tensor, memory: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Attend from x to the memory.

        Args:
            x: (B, M, C) queries.
            memory: (B, N, C) tokens of the memory.
            key_padding_mask: (B, N) bool, True = padding of the memory, as in
                torch.nn.MultiheadAttention.

        Returns:
            (B, M, C). If a memory has no valid token, the output is the bias of the output
            projection.

        Raises:
            InputError: a shape, dtype or device is wrong, or N exceeds `max_length`.
        """
        self.check_input(x, memory, key_padding_mask)
        if key_padding_mask is not None:
            memory = torch.where(key_padding_mask.unsqueeze(-1), 0.0, memory)
            memory, key_padding_mask, _ = move_padding_last(memory, key_padding_mask)
        memory, mask = fill_groups(memory, key_padding_mask, self.block_size)
        q, k, v = self.project(x, memory)
        sort = self.sorter(memory, k, k, mask)
        return self.output(self._attend(q, k, v, sort, mask))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sort: Tensor, mask: Tensor | None) -> Tensor:
        if not self.options.sortcut:
            return self._attend_blocks(q, k, v, sort, mask)
        return sinkhorn_attention(
            q,
            k,
            v,
            sort,
            self.block_size,
            sortcut=min(self.options.sortcut, sort.shape[2]),
            key_padding_mask=mask,
            dropout_p=self.dropout_now,
        )

    def _attend_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, sort: Tensor, mask: Tensor | None
    ) -> Tensor:
        length = q.shape[2]
        q = F.pad(q, (0, 0, 0, -length % self.block_size))
        q = torch.unflatten(q, 2, (-1, self.block_size))
        position = self._memory_blocks(q.shape[2], sort, mask)
        sort = sort.gather(
            2, position[:, None, :, None].expand(-1, *sort.shape[1:2], -1, sort.shape[3])
        )
        hidden = sorted_hidden = None
        if mask is not None:
            k, v = (torch.where(mask[:, None, :, None], 0.0, t) for t in (k, v))
            blocks = torch.unflatten(mask, 1, (-1, self.block_size))
            hidden = blocks.gather(1, position.unsqueeze(-1).expand(-1, -1, self.block_size))
            hidden = hidden[:, None, :, None]
            sorted_hidden = sorted_padding_mask(sort, self.block_size, mask).unsqueeze(-2)
        k, v = (torch.unflatten(t, 2, (-1, self.block_size)) for t in (k, v))
        index = position[:, None, :, None, None].expand(-1, k.shape[1], -1, *k.shape[3:])
        y = block_attention(
            q,
            k.gather(2, index),
            v.gather(2, index),
            sort_blocks(k, sort),
            sort_blocks(v, sort),
            combine=self.options.combine,
            hidden=hidden,
            sorted_hidden=sorted_hidden,
            dropout_p=self.dropout_now,
        )
        return y.flatten(2, 3)[:, :, :length]

    def _memory_blocks(self, num_blocks: int, sort: Tensor, mask: Tensor | None) -> Tensor:
        """Return the memory block of each query block, (B, num_blocks).

        Indices wrap around after the last valid block.
        """
        position = torch.arange(num_blocks, device=sort.device).expand(sort.shape[0], -1)
        if mask is None:
            return position % sort.shape[3]
        dead = torch.unflatten(mask, 1, (-1, self.block_size)).all(-1)
        return position % (~dead).sum(1, keepdim=True).clamp(min=1)

    def check_input(self, x: Tensor, memory: Tensor, key_padding_mask: Tensor | None) -> None:
        """Check that queries, memory and mask fit.

        Args:
            x: (B, M, C) queries.
            memory: (B, N, C) memory.
            key_padding_mask: (B, N) bool, True = padding of the memory, or None.

        Raises:
            InputError: a shape, dtype or device is wrong, or the memory exceeds `max_length`.
        """
        super().check_input(x, memory, key_padding_mask)
        if memory.shape[1] > self.max_length:
            raise bad_argument(
                "memory",
                f"at most max_length = {self.max_length} tokens",
                memory.shape[1],
                "build the layer with a larger max_length",
            )

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, block_size={self.block_size}, "
            f"combine={self.options.combine}, sortcut={self.options.sortcut}"
        )
