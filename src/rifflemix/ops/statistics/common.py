"""Constants, accumulation dtype and state that this family's backends share."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.compat import take_first, widest_float

# Floors of the denominators. They are part of the definition: results near them depend on them.
NORM_FLOOR = 1e-12  # of the norm of a feature column over the tokens
ENERGY_FLOOR = 1e-12  # of the causal running sum of squares, which is a squared norm
COUNT_OFFSET = 1e-8  # added to the number of tokens in a group

accumulation_dtype = partial(torch.promote_types, torch.float32)
"""The dtype in which statistics of tokens of a dtype are summed: float32, or float64 for it."""


class StatisticsState(NamedTuple):
    """The state of `causal_token_statistics` after the tokens so far; its size is constant.

    The sums are float64 whatever the tokens are. A sum in float32 stops growing near 2^24 tokens.
    (On MPS, which has no float64, they are float32.)

    Attributes:
        energy: (B, H, D) sum of w^2.
        member_energy: (B, H, D) sum of Pi * w^2.
        member_count: (B, H) sum of Pi.
        position: (B,) int64, number of valid tokens so far, which is the index into
            `denominator_bias` of the next one.
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
    """After how many tokens the causal memberships are taken anew: multiples, or powers of two."""
    if isinstance(every, int):
        return list(range(every, length + 1, every))
    return [1 << power for power in range(length.bit_length())]


def bias_per_token(
    bias: Tensor,
    length: int,
    initial_state: StatisticsState | None,
    key_padding_mask: Tensor | None,
) -> Tensor:
    """(B or 1, H, N): the bias at each token's position among the valid tokens of its sample."""
    if initial_state is None and key_padding_mask is None:
        return take_first(bias, length, 1).unsqueeze(0)
    if key_padding_mask is None:
        index = torch.arange(length, device=bias.device).unsqueeze(0)
    else:
        # A padded position takes its predecessor's index, or -1, the last: its Pi is zero.
        index = (~key_padding_mask).cumsum(1) - 1
    if initial_state is not None:
        index = index + initial_state.position.unsqueeze(1)
    return bias[:, index].transpose(0, 1)


def end_position(
    w: Tensor, initial_state: StatisticsState | None, key_padding_mask: Tensor | None
) -> Tensor:
    """(B,) int64: number of valid tokens up to the end of `w`, those in the state included."""
    if initial_state is None:
        before = torch.zeros(w.shape[0], dtype=torch.int64, device=w.device)
    else:
        before = initial_state.position
    return before + (w.shape[2] if key_padding_mask is None else (~key_padding_mask).sum(1))
