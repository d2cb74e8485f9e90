"""Sparse Sinkhorn attention: attention to the local block and to a sorted block."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.mixers._attention.autograd_functions import unbind_qkv
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import move_padding_back, move_padding_last
from rifflemix.mixers.sorting_networks import BlockSorter
from rifflemix.mixers.token_groups import default_group_size, mix_full_groups
from rifflemix.ops.sinkhorn import SinkhornOptions, backends


class Sinkhorn(TokenMixer):
    """Sparse Sinkhorn attention.

    The mixer splits the tokens into blocks, and a sorting network scores every pair of blocks.
    Sinkhorn balancing turns the scores into a soft permutation of the blocks of keys and values.
    Each block of queries attends to its local block and to the block sorted into its position.
    The mixer pads lengths that are not a multiple of the block size. With a mask it first moves
    the valid tokens together, so padding does not change their outputs.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `max_length` is required: it
            sets the number of outputs of the sorting network.
        block_size: tokens b in a block. Default: the smallest power of two that is at least
            sqrt(max_length).
        sort_net: "linear", "relu", "mlp" or "relu_mlp" (see `SortingNetwork`), or "attention",
            which compares pooled queries and keys without parameters.
        temperature: temperature tau. A lower temperature gives a harder permutation.
        num_iterations: Sinkhorn iterations N_k; 5 to 10 are best in the paper.
        gumbel: when to add Gumbel noise to the scores: "training", "always" or "never".
        kernel: "exp", or "relu" as in a widely used port; see `gumbel_sinkhorn`.
        combine: "concat", "sum_logits" or "sum_out"; see `block_attention`.
        sortcut: m > 0 enables SortCut: all queries share the first m sorted blocks. Not with
            `causal=True`.
        sortcut_local: with SortCut, also attend to the local block of each query.
        mixture: add full softmax attention with the same queries, keys, values (quadratic).
        tie_kv: use the keys as values.
        top_k: k > 0 replaces Sinkhorn balancing: each block uses the k blocks with the highest
            scores, weighted by softmax.
        null_kv: learn a key and a value for blocks without a source block. With `top_k`, k null
            blocks compete with the past blocks. Only with `causal=True`.
        final_row_norm: end causal Sinkhorn balancing with a row step. False is the literal order
            of the paper.
        rotate_heads: let the blocks of the second half of the heads end one token earlier. Only
            with `causal=True`.
        bias: add a bias to the Q/K/V/O projections.
        shared: other arguments of `TokenMixer`.

    Source: Tay et al. 2020, "Sparse Sinkhorn Attention", section 3.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("sinkhorn", 64, num_heads=4, max_length=1024, block_size=32)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="sinkhorn",
        title="Sparse Sinkhorn attention",
        paper="Tay et al. 2020, Sparse Sinkhorn Attention",
        equations="(1)-(6)",
        # Block attention costs N b C, applying the sort matrix (N/b)^2 b C. The paper counts
        # memory, b^2 + (N/b)^2. At the default b ~ sqrt(N) both terms of the time are N^1.5;
        # with b held fixed while N grows it would be N^2.
        complexity="O(N b C + N^2 C / b); O(N^1.5 C) at b = sqrt(N)",
        cost_exponent=1.5,
        causal=True,
        needs_max_length=True,
        training_noise="Gumbel noise on the block scores, with gumbel='training'",
    )

    def __init__(
        self,
        dim: int,
        *,
        block_size: int | None = None,
        sort_net: str = "linear",
        temperature: float = 0.75,
        num_iterations: int = 8,
        gumbel: str = "training",
        kernel: str = "exp",
        combine: str = "concat",
        sortcut: int = 0,
        sortcut_local: bool = False,
        mixture: bool = False,
        tie_kv: bool = False,
        top_k: int = 0,
        null_kv: bool = False,
        final_row_norm: bool = True,
        rotate_heads: bool = False,
        bias: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.block_size, num_blocks = block_layout(block_size, cast(int, self.max_length))
        self.options = options = SinkhornOptions(
            causal=self.causal,
            sort_net=sort_net,
            temperature=temperature,
            num_iterations=num_iterations,
            gumbel=gumbel,
            kernel=kernel,
            top_k=top_k,
            null_kv=null_kv,
            final_row_norm=final_row_norm,
            combine=combine,
            sortcut=sortcut,
            sortcut_local=sortcut_local,
            mixture=mixture,
            rotate_heads=rotate_heads,
        ).checked(num_blocks, self.num_heads)
        self.tie_kv = tie_kv
        self.sorter = BlockSorter(options, self.dim, self.num_heads, self.block_size, num_blocks)
        self.qkv = nn.Linear(self.dim, (2 if tie_kv else 3) * self.dim, bias=bias)
        self.proj = nn.Linear(self.dim, self.dim, bias=bias)
        if null_kv:
            width = self.dim // self.num_heads
            self.null_key = nn.Parameter(torch.randn(self.num_heads, width))
            self.null_value = nn.Parameter(torch.randn(self.num_heads, width))

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        order = None
        if key_padding_mask is not None:
            x, key_padding_mask, order = move_padding_last(x, key_padding_mask)
        # A causal layer needs no mask: padding comes after all valid tokens.
        masked = not self.causal
        mask = key_padding_mask if masked else None
        y = mix_full_groups(self._attend, x, mask, self.block_size, masked=masked)
        return self.proj(y if order is None else move_padding_back(y, order))

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        heads = torch.unflatten(self.qkv(x), -1, (-1, self.num_heads, self.dim // self.num_heads))
        parts = unbind_qkv(heads)
        q, k, v = parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[-1].transpose(1, 2)
        if self.options.rotate_heads:
            y = self._attend_rotated(x, q, k, v, mask)
        else:
            y = self.attend_blocks(q, k, v, self.sorter(x, q, k, mask), mask)
        return y.transpose(1, 2).flatten(2)

    def _attend_rotated(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attend with blocks that end one token earlier in the second half of the heads."""
        half, rotation = self.num_heads // 2, self.block_size - 1
        first, second = slice(0, half), slice(half, None)
        sort = self.sorter(x, q, k, mask)[:, first]
        y = self.attend_blocks(q[:, first], k[:, first], v[:, first], sort, mask, first)
        rolled = (t.roll(-rotation, -2) for t in (x, q, k))
        sort = self.sorter(*rolled, mask)[:, second]
        q, k, v = q[:, second], k[:, second], v[:, second]
        return torch.cat((y, self.attend_blocks(q, k, v, sort, mask, second, rotation)), 1)

    def attend_blocks(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sort: Tensor,
        mask: Tensor | None,
        heads: slice = slice(None),
        rotation: int = 0,
    ) -> Tensor:
        """Attend to the local block and to the blocks that `sort` selects.

        Args:
            q: (B, G, N, D) queries of G heads.
            k: (B, G, N, D) keys.
            v: (B, G, N, D) values.
            sort: (B, G, R, n) sort matrix, see `sinkhorn_attention`.
            mask: (B, N) bool, True = padding, or None.
            heads: positions of the G heads among all heads. Default: all heads.
            rotation: index of the token at which the first block starts.

        Returns:
            (B, G, N, D) outputs.
        """
        options, null_kv = self.options, None
        if options.null_kv:
            null_kv = (self.null_key[heads], self.null_value[heads])
        return backends.sinkhorn_attention(
            q,
            k,
            v,
            sort,
            self.block_size,
            combine=options.combine,
            sortcut=min(options.sortcut, sort.shape[2]),
            sortcut_local=options.sortcut_local,
            mixture=options.mixture,
            causal=self.causal,
            key_padding_mask=mask,
            null_kv=null_kv,
            padding_rule="majority",
            rotation=rotation,
            dropout_p=self.dropout_now,
        )

    def extra_repr(self) -> str:
        combine = self.options.combine
        return f"{super().extra_repr()}, block_size={self.block_size}, combine={combine}"


def block_layout(block_size: int | None, max_length: int) -> tuple[int, int]:
    """Compute the block size and the number of blocks for `max_length` tokens."""
    size = default_group_size(max_length) if block_size is None else block_size
    size = check_integer("block_size", size, 1)
    return size, -(-max_length // size)
