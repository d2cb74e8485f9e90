"""Synthesizer: attention with learned scores instead of products of queries and keys."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer
from rifflemix.compat import take_first
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.softmax_parts import (
    new_cache,
    token_positions,
    visible,
    with_token,
)
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import fill_valid_tokens, mix_valid_tokens
from rifflemix.ops.dropout.backends import dropout as drop
from rifflemix.ops.dropout.backends import dropout_attention

MODES = ("random", "factorized", "dense")


class Synthesizer(TokenMixer):
    """Softmax attention over synthetic scores, alone or added to the scaled dot product.

    Shorter sequences use the first rows and columns of the scores. Positions count the valid
    tokens.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `max_length` L is required: it
            is the size of the scores.
        mode: source of the scores. "random": a parameter (H, L, L), independent of the input.
            "factorized": the same as a product of (H, L, rank) and (H, rank, L). "dense": a
            two-layer network per head computes row n from token n.
        rank: rank of the factorized scores. Default: 32. Only for mode="factorized".
        dot_product: add the scores to q k^T / sqrt(D) before the softmax. With False there are no
            queries and keys. The paper calls True a mixture with the vanilla scores.
        keep_positions: leave padding in place and mask its scores, instead of moving padding to
            the end. Not supported with causal=True.
        bias: add a bias to the Q/K/V projections.
        out_bias: add a bias to the output projection.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an unknown mode, a rank that does not fit the mode, or keep_positions with
            causal=True.

    Source: Tay et al. 2021, "Synthesizer: Rethinking Self-Attention for Transformer Models",
    section 3.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("synthesizer", 64, num_heads=4, max_length=128, mode="dense")
        >>> mixer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="synthesizer",
        title="Synthesizer",
        paper="Tay et al. 2021, Synthesizer: Rethinking Self-Attention for Transformer Models",
        equations="section 3",
        complexity="O(N^2 C)",
        cost_exponent=2.0,
        causal=True,
        streaming=True,
        needs_max_length=True,
        thread_sums="gradients of products with the table of scores, at some lengths",
    )

    def __init__(
        self,
        dim: int,
        *,
        mode: str = "random",
        rank: int | None = None,
        dot_product: bool = True,
        keep_positions: bool = False,
        bias: bool = True,
        out_bias: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("mode", mode, MODES)
        if rank is not None and mode != "factorized":
            raise bad_argument("rank", f"None with mode={mode!r}", rank)
        self.mode = mode
        self.dot_product = check_bool("dot_product", dot_product)
        self.keep_positions = check_bool("keep_positions", keep_positions)
        if self.causal and keep_positions:
            raise bad_argument("keep_positions", "False when causal=True", True)
        self.qkv = nn.Linear(self.dim, (3 if dot_product else 1) * self.dim, bias=bias)
        self.proj = nn.Linear(self.dim, self.dim, bias=out_bias)
        self._make_scores(check_integer("max_length", self.max_length, 1), rank)

    def _make_scores(self, length: int, rank: int | None) -> None:
        heads, width = self.num_heads, self.dim // self.num_heads
        if self.mode == "random":
            self.scores = _xavier(heads, length, length)
        elif self.mode == "factorized":
            rank = check_integer("rank", 32 if rank is None else rank, 1)
            self.row_factors = _xavier(heads, length, rank)
            self.column_factors = _xavier(heads, rank, length)
        else:
            self.hidden = nn.Linear(self.dim, self.dim)
            self.score_weight = _xavier(heads, width, length)
            self.score_bias = nn.Parameter(torch.zeros(heads, 1, length))

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if self.keep_positions:
            return self._mix(x, key_padding_mask)
        return mix_valid_tokens(self._mix, x, key_padding_mask)

    def _mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return self._mix_projected(x, *self._project(x), key_padding_mask)

    def _mix_projected(
        self,
        x: Tensor,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor,
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        length = x.shape[1]
        scores = self._scores(x, length, length)
        if self.causal:  # padding is last, so no valid token sees it
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        elif key_padding_mask is not None:
            # A sequence with only padding keeps its keys visible, because an empty softmax is NaN.
            hidden = key_padding_mask & ~key_padding_mask.all(dim=1, keepdim=True)
            scores = scores.masked_fill(hidden[:, None, None, :], -torch.inf)
        y = self._attend(q, k, v, scores, self.dropout_now)
        return self.proj(y.transpose(1, 2).flatten(2))

    def _project(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Return q, k (None without a dot product) and v, each (B, H, N, D)."""
        heads = self.qkv(x).unflatten(-1, (-1, self.num_heads, self.dim // self.num_heads))
        parts = heads.permute(2, 0, 3, 1, 4).unbind(0)
        return (parts[0], parts[1], parts[2]) if self.dot_product else (None, None, parts[0])

    def _scores(self, x: Tensor, positions: int | Tensor, stop: int) -> Tensor:
        """Compute scores (B or 1, H, N, stop) of tokens x for keys before `stop`.

        `positions` contains the positions of the tokens, or is their number from position 0 on.
        """
        if self.mode == "random":
            return take_first(_rows(self.scores, positions), stop, 2).unsqueeze(0)
        if self.mode == "factorized":
            rows = _rows(self.row_factors, positions)
            return (rows @ take_first(self.column_factors, stop, 2)).unsqueeze(0)
        heads: Tensor = torch.relu(self.hidden(x)).unflatten(-1, (self.num_heads, -1))
        weight, bias = (take_first(t, stop, 2) for t in (self.score_weight, self.score_bias))
        return heads.transpose(1, 2) @ weight + bias

    def _newest_scores(self, x: Tensor, state: dict[str, Tensor], position: Tensor) -> Tensor:
        """Compute scores (B, H, 1, L) of x (B, 1, C) at position (B,) for the cached keys."""
        count = state["values"].shape[2]
        scores = self._scores(x, position, count)
        if self.mode != "dense":  # one row per sequence: (1, H, B, columns)
            scores = scores.permute(2, 1, 0, 3)
        seen = visible(state)
        if seen is None:
            return scores
        columns = token_positions(state, count, x.device)[:, None, None]
        return scores.take_along_dim(columns, -1).masked_fill(~seen[:, None, None], -torch.inf)

    def _attend(
        self, q: Tensor | None, k: Tensor | None, v: Tensor, scores: Tensor, dropout_p: float
    ) -> Tensor:
        if q is None or k is None:
            return drop(scores.softmax(-1), dropout_p) @ v
        return dropout_attention(q, k, v, mask=scores, dropout_p=dropout_p)

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create an empty cache. It grows by one token per step.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens.

        Returns:
            "values" (B, H, 0, D). Variants with a dot product also have "keys" of this shape.
        """
        shape = (batch_size, self.num_heads, 0, self.dim // self.num_heads)
        empty = torch.zeros(shape, device=device, dtype=dtype)
        return {"keys": empty, "values": empty} if self.dot_product else {"values": empty}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x = x_t.unsqueeze(1)
        q, k, v = self._project(x)
        new = {"values": v} if k is None else {"keys": k, "values": v}
        after = with_token(state, **new)
        scores = self._newest_scores(x, after, state["position"])
        y = self._attend(q, after.get("keys"), after["values"], scores, 0.0)
        return self.proj(y.transpose(1, 2).flatten(1)), after

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return fill_valid_tokens(self._fill, x, key_padding_mask)

    def _fill(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self._project(x)
        y = self._mix_projected(x, q, k, v, key_padding_mask)
        new = {"values": v} if k is None else {"keys": k, "values": v}
        return y, new_cache(key_padding_mask, **new)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode}, dot_product={self.dot_product}"


def _rows(table: Tensor, positions: int | Tensor) -> Tensor:
    """Select rows of (H, rows, columns): at `positions`, or the first `positions` rows."""
    if isinstance(positions, Tensor) and positions.dim():  # sizes are tensors in torch.jit.trace
        return table[:, positions]
    return take_first(table, cast(int, positions), 1)


def _xavier(heads: int, rows: int, columns: int) -> nn.Parameter:
    """Create one Xavier-uniform matrix per head."""
    bound = (6.0 / (rows + columns)) ** 0.5
    return nn.Parameter(torch.empty(heads, rows, columns).uniform_(-bound, bound))
