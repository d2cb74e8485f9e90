"""Sparse Transformer: attention to a block and summary columns, or to strided positions."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.multi_head import ValidTokensFirst
from rifflemix.mixers._attention.softmax_parts import masked_attention
from rifflemix.mixers._attention.window import (
    SharedKeys,
    band,
    block_attention,
    from_blocks,
    see_something,
    to_blocks,
    valid_positions,
    with_neighbours,
)
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.token_groups import default_group_size, group_size
from rifflemix.ops.dropout.backends import dropout as drop

PATTERNS = ("fixed", "strided")
_SUMMARY = 4
_STRIDE = 128


class _ExtraKey(NamedTuple):
    """The key and value of the class token. All queries see them unless the token is padding.

    Attributes:
        key: (B, H, 1, D).
        value: (B, H, 1, D).
        padded: (B, 1) bool, True = padding; None without a padding mask.
    """

    key: Tensor
    value: Tensor
    padded: Tensor | None

    def seen(self) -> Tensor:
        """Return (B, 1) bool, True = visible."""
        if self.padded is None:
            return torch.ones(len(self.key), 1, dtype=torch.bool, device=self.key.device)
        return ~self.padded


class SparseTransformer(ValidTokensFirst):
    """Softmax attention over the union of both parts of a factorized pattern.

    With stride l, query i sees key j if

    - "fixed": both are in one block of l tokens, or j is in a summary column: j mod l is 0 or one
      of the last `num_summary` values. Summary columns represent their block for all other blocks.
    - "strided": |i - j| < l, or i - j is a multiple of l.

    `causal` and `triangular` also require j <= i. Every head uses the whole union.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. Dropout acts on the attention
            weights.
        pattern: "fixed" or "strided".
        stride: l. Default: the power of two at or above sqrt(max_length), for a cost of O(N^1.5).
            Without `max_length`: 128. A stride that does not grow with N costs O(N^2).
        num_summary: c, number of summary columns at the end of a block, below l. Only for
            pattern="fixed". Default: 4, less for strides below 16. The paper uses 8 to 32 for
            strides of 128 and 256. The Long Range Arena uses l = 50, c = 10: a fifth of all keys.
        triangular: hide later keys even if `causal` is False, as the Long Range Arena does for
            classification.
        cls_token: the first token sees all tokens, and all tokens see it. The pattern covers the
            tokens after it. Not supported with `causal=True`: the first token would see later
            tokens.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: an unknown pattern, a number out of range, or `cls_token` with `causal`.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", sections 4.2
    and 4.3. Column 0 comes from the Long Range Arena's mask, not from the paper.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("sparse_transformer", 64, pattern="strided", stride=16)
        >>> mixer(torch.randn(2, 256, 64)).shape
        torch.Size([2, 256, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="sparse_transformer",
        title="Sparse Transformer",
        paper="Child et al. 2019, Generating Long Sequences with Sparse Transformers",
        equations="sections 4.2, 4.3; merged heads",
        complexity="O(N sqrt(N) C)",
        cost_exponent=1.5,
        causal=True,
        thread_sums="the gradient of the strided pattern's softmax, at some lengths",
        one_length="torch.export makes a condition of the number of its blocks",
    )

    def __init__(
        self,
        dim: int,
        *,
        pattern: str = "fixed",
        stride: int | None = None,
        num_summary: int | None = None,
        triangular: bool = False,
        cls_token: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("pattern", pattern, PATTERNS)
        self.pattern = pattern
        if stride is None:
            stride = _STRIDE if self.max_length is None else default_group_size(self.max_length)
        self.stride = check_integer("stride", stride, 1)
        self.num_summary = self._check_summary(num_summary)
        if cls_token and self.causal:
            raise bad_argument("cls_token", "False when causal=True", True)
        self.cls_token = cls_token
        self.triangular = triangular or self.causal

    def _check_summary(self, num_summary: int | None) -> int:
        if self.pattern == "strided":
            if num_summary is not None:
                raise bad_argument("num_summary", 'None with pattern="strided"', num_summary)
            return 0
        if num_summary is None:
            return min(_SUMMARY, self.stride // 4)
        return check_integer("num_summary", num_summary, 0, self.stride - 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if not self.cls_token:
            return self._attend_pattern(q, k, v, key_padding_mask, None)
        first = masked_attention(
            q[:, :, :1], k, v, key_padding_mask=key_padding_mask, dropout=self.dropout_now
        )
        if q.shape[2] == 1:
            return first
        own, mask = None, None
        if key_padding_mask is not None:
            own, mask = key_padding_mask[:, :1], key_padding_mask[:, 1:]
        extra = _ExtraKey(k[:, :, :1], v[:, :, :1], own)
        q, k, v = q[:, :, 1:], k[:, :, 1:], v[:, :, 1:]
        return torch.cat((first, self._attend_pattern(q, k, v, mask, extra)), 2)

    def _attend_pattern(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        extra: _ExtraKey | None,
    ) -> Tensor:
        """Attend over the pattern and to one extra key that all queries see."""
        stride = group_size(self.stride, q.shape[2])  # a shorter sequence is one block
        if self.pattern == "strided":
            return self._attend_strided(q, k, v, mask, extra, stride)
        return block_attention(
            q,
            k,
            v,
            block_size=stride,
            key_padding_mask=mask,
            causal=self.triangular,
            shared=self._summary(k, v, mask, extra, stride),
            dropout=self.dropout_now,
        )

    def _summary(
        self,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        extra: _ExtraKey | None,
        stride: int,
    ) -> SharedKeys:
        """Collect the summary columns of all blocks for the queries of other blocks."""
        columns = sorted({0, *range(stride - min(self.num_summary, stride), stride)})
        picked = [to_blocks(t, stride)[:, :, :, columns] for t in (k, v)]
        keys, values = (t.transpose(1, 2).flatten(2, 3) for t in picked)
        blocks = picked[0].shape[1]
        own = torch.arange(k.shape[2], device=k.device).div(stride, rounding_mode="floor")
        theirs = torch.arange(blocks, device=k.device).repeat_interleave(len(columns))
        other = own.unsqueeze(1) > theirs if self.triangular else own.unsqueeze(1) != theirs
        visible = other & valid_positions(k, mask, stride)[:, :, columns].flatten(1).unsqueeze(1)
        if extra is not None:
            keys, values = torch.cat((keys, extra.key), 2), torch.cat((values, extra.value), 2)
            seen = extra.seen().unsqueeze(1).expand(-1, visible.shape[1], -1)
            visible = torch.cat((visible.expand(seen.shape[0], -1, -1), seen), 2)
        return SharedKeys(keys, values, visible)

    def _attend_strided(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        extra: _ExtraKey | None,
        stride: int,
    ) -> Tensor:
        """Apply one softmax over the window, the column i mod l and the extra key."""
        near, near_values, near_sees = self._window_part(q, k, v, mask, stride)
        far, far_values, far_sees = self._column_part(q, k, v, mask, stride)
        scores, sees = [near, far], [near_sees.expand_as(near), far_sees.expand_as(far)]
        if extra is not None:
            scores.append(to_blocks(q, stride) @ extra.key.unsqueeze(1).mT)
            sees.append(extra.seen()[:, None, None, :, None].expand_as(scores[-1]))
        all_scores = torch.cat(scores, -1) / math.sqrt(q.shape[-1])
        all_scores = all_scores.masked_fill(~see_something(torch.cat(sees, -1)), -torch.inf)
        wide = torch.promote_types(all_scores.dtype, torch.float32)
        weights = drop(all_scores.softmax(-1, dtype=wide).to(v.dtype), self.dropout_now)
        parts = weights.split([s.shape[-1] for s in scores], -1)
        y = parts[0] @ near_values + _by_column(_by_column(parts[1]) @ far_values)
        if extra is not None:
            y = y + parts[2] @ extra.value.unsqueeze(1)
        return from_blocks(y, q.shape[2])

    def _window_part(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, stride: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute scores (B, N/l, H, l, keys), values and mask of the window."""
        before, after = stride - 1, 0 if self.triangular else stride - 1
        reach = (int(before > 0), int(after > 0))
        keys, values = (with_neighbours(to_blocks(t, stride), *reach) for t in (k, v))
        valid = with_neighbours(valid_positions(k, mask, stride), *reach, dim=2)
        sees = valid.unsqueeze(2) & band(stride, before, after, k.device)
        return to_blocks(q, stride) @ keys.mT, values, sees.unsqueeze(2)

    def _column_part(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, stride: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute scores (B, N/l, H, l, N/l), values and mask of other keys in the column."""
        queries, keys, values = (_by_column(to_blocks(t, stride)) for t in (q, k, v))
        block = torch.arange(keys.shape[3], device=k.device)
        own, theirs = block.unsqueeze(1), block
        other = own > theirs if self.triangular else own != theirs
        valid = valid_positions(k, mask, stride).mT  # (B, l, N/l)
        sees = other[:, None, None, :] & valid[:, None, None, :, :]
        return _by_column(queries @ keys.mT), values, sees

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pattern={self.pattern!r}, stride={self.stride}"


def _by_column(x: Tensor) -> Tensor:
    """Group positions by column: (B, blocks, H, l, D) -> (B, l, H, blocks, D) or back."""
    return x.transpose(1, 3)
