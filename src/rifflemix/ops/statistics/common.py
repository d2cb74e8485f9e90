"""Constants, accumulation dtype and state for all backends of this family."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.compat import take_first, widest_float

# Floors of the denominators. They are part of the definition and affect results near them.
NORM_FLOOR = 1e-12  # for the norm of a feature column over the tokens
ENERGY_FLOOR = 1e-12  # for the causal running sum of squares (a squared norm)
COUNT_OFFSET = 1e-8  # added to the number of tokens in a group

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of the tokens that the kernels on a CPU support."""
accumulation_dtype = partial(torch.promote_types, torch.float32)
"""Dtype of the sums for tokens of a dtype: float64 for float64 tokens, otherwise float32."""


class StatisticsState(NamedTuple):
    """The state of `causal_token_statistics` after the tokens so far, of constant size.

    The sums are float64 for all dtypes of tokens, because a float32 sum stops growing near 2^24
    tokens. On MPS the sums are float32, because MPS has no float64.

    Attributes:
        energy: (B, H, D) sum of w^2.
        member_energy: (B, H, D) sum of Pi * w^2.
        member_count: (B, H) sum of Pi.
        position: (B,) int64, number of valid tokens so far. It is the index of the next token in
            `denominator_bias`.

    Example:
        >>> import torch, rifflemix as rm
        >>> w = torch.randn(1, 4, 100, 8)
        >>> _, state = rm.ops.causal_token_statistics(w, torch.ones(4), return_state=True)
        >>> state.energy.shape, state.position.tolist()
        (torch.Size([1, 4, 8]), [100])
    """

    energy: Tensor
    member_energy: Tensor
    member_count: Tensor
    position: Tensor

    @classmethod
    def zeros(
        cls,
        batch_size: int,
        num_heads: int,
        head_dim: int,
        *,
        device: Any = None,
    ) -> StatisticsState:
        """Return the state before the first token."""
        per_feature = (batch_size, num_heads, head_dim)
        position = torch.zeros(batch_size, device=device, dtype=torch.int64)
        wide = widest_float(position.device)
        return cls(
            energy=torch.zeros(per_feature, device=device, dtype=wide),
            member_energy=torch.zeros(per_feature, device=device, dtype=wide),
            member_count=torch.zeros(per_feature[:2], device=device, dtype=wide),
            position=position,
        )


def renewal_counts(every: int | str, length: int) -> list[int]:
    """List the token counts at which all memberships are recomputed.

    They are the multiples of `every`, or the powers of two for "doubling".
    """
    if isinstance(every, int):
        return list(range(every, length + 1, every))
    return [1 << power for power in range(length.bit_length())]


def bias_per_token(
    bias: Tensor,
    length: int,
    initial_state: StatisticsState | None,
    key_padding_mask: Tensor | None,
) -> Tensor:
    """Gather the bias (B or 1, H, N) of each token.

    The position of a token counts only the valid tokens before it.
    """
    if initial_state is None and key_padding_mask is None:
        return take_first(bias, length, 1).unsqueeze(0)
    if key_padding_mask is None:
        index = torch.arange(length, device=bias.device).unsqueeze(0)
    else:
        # A padded token has the index of the token before it, or -1. This is harmless: its Pi is 0.
        index = (~key_padding_mask).cumsum(1) - 1
    if initial_state is not None:
        index = index + initial_state.position.unsqueeze(1)
    return bias[:, index].transpose(0, 1)


def end_position(
    w: Tensor, initial_state: StatisticsState | None, key_padding_mask: Tensor | None
) -> Tensor:
    """Count the valid tokens of `w` and of the state: (B,) int64."""
    if initial_state is None:
        before = torch.zeros(w.shape[0], dtype=torch.int64, device=w.device)
    else:
        before = initial_state.position
    return before + (w.shape[2] if key_padding_mask is None else (~key_padding_mask).sum(1))
