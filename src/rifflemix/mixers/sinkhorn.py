"""Sparse Sinkhorn attention: attention to the local block and to a sorted block."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.compat import statically_known_true, take_first
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.apart import apart
from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.mixers.padding import missing_tokens, move_padding_back, move_padding_last
from rifflemix.mixers.sorting_networks import BlockSorter, SortOptions
from rifflemix.mixers.strided import default_block_size
from rifflemix.ops.sinkhorn import COMBINE, unchecked


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
        self.block_size, num_blocks = block_layout(block_size, self.max_length)
        self.combine = combine
        self.sortcut = check_integer("sortcut", sortcut)
        self.sortcut_local = sortcut_local
        self.mixture = mixture
        self.tie_kv = tie_kv
        self.rotate_heads = rotate_heads
        top_k = check_integer("top_k", top_k)
        options = SortOptions(
            sort_net, temperature, num_iterations, gumbel, kernel, top_k, null_kv, final_row_norm
        )
        self._check_options(options, num_blocks)
        self.sorter = BlockSorter(
            options,
            self.dim,
            self.num_heads,
            self.block_size,
            num_blocks,
            causal=self.causal,
            shared=bool(sortcut and top_k),
        )
        self.qkv = nn.Linear(self.dim, (2 if tie_kv else 3) * self.dim, bias=bias)
        self.proj = nn.Linear(self.dim, self.dim, bias=bias)
        if null_kv:
            width = self.dim // self.num_heads
            self.null_key = nn.Parameter(torch.randn(self.num_heads, width))
            self.null_value = nn.Parameter(torch.randn(self.num_heads, width))

    def _check_options(self, options: SortOptions, num_blocks: int) -> None:
        check_choice("combine", self.combine, COMBINE)
        if not 0 <= self.sortcut <= num_blocks:
            raise bad_argument("sortcut", f"0 to {num_blocks} blocks", self.sortcut)
        if not 0 <= options.top_k <= num_blocks:
            raise bad_argument("top_k", f"0 to {num_blocks} blocks", options.top_k)
        if self.sortcut and self.causal:
            raise bad_argument(
                "sortcut", "0 with causal=True", self.sortcut, "SortCut is for encoders only"
            )
        if self.sortcut_local and not self.sortcut:
            raise bad_argument("sortcut_local", "False without sortcut", True)
        if self.sortcut and not self.sortcut_local and self.combine != "concat":
            raise bad_argument(
                "combine", '"concat" for SortCut without a local term', repr(self.combine)
            )
        if options.top_k and self.sortcut > options.top_k:
            raise bad_argument("sortcut", f"at most top_k = {options.top_k}", self.sortcut)
        per_query = self.sortcut or max(options.top_k, 1)
        if self.combine == "sum_logits" and per_query > 1:
            raise bad_argument("combine", "one sorted block for each query block", "sum_logits")
        if self.rotate_heads and not (self.causal and self.num_heads > 1):
            raise bad_argument("rotate_heads", "False without causal=True and 2 heads", True)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        length = x.shape[1]
        order = None
        if key_padding_mask is not None:
            x, key_padding_mask, order = move_padding_last(x, key_padding_mask)
        # A causal layer needs no mask: padding comes after all valid tokens.
        mask = None if self.causal else key_padding_mask
        blocks, mask = pad_to_blocks(x, mask, self.block_size, masked=not self.causal)
        y = self._attend(blocks, mask)
        if blocks is not x:
            y = take_first(y, length, 1)
        if order is not None:
            y = move_padding_back(y, order)
        out: Tensor = self.proj(y)
        return out

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        heads = torch.unflatten(self.qkv(x), -1, (-1, self.num_heads, self.dim // self.num_heads))
        parts = apart(heads)
        q, k, v = parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[-1].transpose(1, 2)
        if not self.rotate_heads:
            y = self._attend_heads(x, q, k, v, mask, slice(None), 0)
        else:
            half = self.num_heads // 2
            plain = self._attend_heads(x, q, k, v, mask, slice(0, half), 0)
            rotation = self.block_size - 1
            rolled = self._attend_heads(x, q, k, v, mask, slice(half, None), rotation)
            y = torch.cat((plain, rolled), 1)
        return y.transpose(1, 2).flatten(2)

    def _attend_heads(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        heads: slice,
        rotation: int,
    ) -> Tensor:
        """Compute attention for `heads`, with blocks that start at token `rotation`."""
        rolled = [t.roll(-rotation, -2) if rotation else t for t in (x, q, k)]
        sort: Tensor = self.sorter(*rolled, mask)[:, heads]
        null_kv = None
        if self.sorter.options.null_kv:
            null_kv = (self.null_key[heads], self.null_value[heads])
        return self.attend_blocks(
            q[:, heads], k[:, heads], v[:, heads], sort, mask, null_kv, rotation
        )

    def attend_blocks(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sort: Tensor,
        mask: Tensor | None,
        null_kv: tuple[Tensor, Tensor] | None,
        rotation: int,
    ) -> Tensor:
        """Attend to the local block and to the blocks that `sort` selects.

        `sort` is (B, H, R, n), and the result is (B, H, N, D).
        """
        return unchecked.sinkhorn_attention(
            q,
            k,
            v,
            sort,
            self.block_size,
            combine=self.combine,
            sortcut=min(self.sortcut, sort.shape[2]),
            sortcut_local=self.sortcut_local,
            mixture=self.mixture,
            causal=self.causal,
            key_padding_mask=mask,
            null_kv=null_kv,
            padding_rule="majority",
            rotation=rotation,
            dropout_p=self.dropout if self.training else 0.0,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block_size={self.block_size}, combine={self.combine}"


def block_layout(block_size: int | None, max_length: int | None) -> tuple[int, int]:
    """Compute the block size and the number of blocks for `max_length` tokens."""
    if max_length is None:
        raise bad_argument("max_length", "the most tokens the layer will see", None)
    if block_size is None:
        block_size = default_block_size(max_length)
    block_size = check_integer("block_size", block_size, 1)
    return block_size, -(-max_length // block_size)


def pad_to_blocks(
    x: Tensor, key_padding_mask: Tensor | None, block_size: int, *, masked: bool
) -> tuple[Tensor, Tensor | None]:
    """Pad tokens to a multiple of `block_size`, and mask the padding if `masked`."""
    extra = missing_tokens(block_size, x.shape[1])
    if statically_known_true(extra == 0):
        return x, key_padding_mask
    if masked:
        if key_padding_mask is None:
            key_padding_mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        key_padding_mask = F.pad(key_padding_mask, (0, extra), value=True)
    return F.pad(x, (0, 0, 0, extra)), key_padding_mask
