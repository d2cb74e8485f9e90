"""The cache of a stream: what is kept of every token so far, one token longer at every step.

Its tensors are (B, ..., L, D). Where a prompt had padding, `padding` (B, L) bool is there too and
marks the positions that hold no token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.nn.positions import valid_positions
from rifflemix.ops.dropout.unchecked import dropout_attention

State = dict[str, Tensor]


def new_cache(padding: Tensor | None, **tokens: Tensor) -> State:
    """A cache of tokens (B, ..., L, D); padding: (B, L) bool, True = no token, or None."""
    return tokens if padding is None else {**tokens, "padding": padding}


def with_token(state: State, **token: Tensor) -> State:
    """The cache with one more token, (B, ..., 1, D) of each tensor, last."""
    after = {name: torch.cat((state[name], new), -2) for name, new in token.items()}
    padding = state.get("padding")
    return new_cache(None if padding is None else F.pad(padding, (0, 1)), **after)


def visible(state: State) -> Tensor | None:
    """(B, L) bool, True = a token; None where all are."""
    padding = state.get("padding")
    return None if padding is None else ~padding


def attend_to_cache(
    q: Tensor, keys: Tensor, values: Tensor, state: State, *, dropout: float = 0.0
) -> Tensor:
    """Attention of the newest token, q (B, H, 1, D), to all in the cache: (B, H D)."""
    seen = visible(state)
    mask = None if seen is None else seen[:, None, None]
    y = dropout_attention(q, keys, values, mask=mask, dropout_p=dropout)
    return y.flatten(1)


def token_positions(state: State, length: int, device: torch.device) -> Tensor:
    """(L,) or (B, L) int64: what number each token has among those of its sequence, from 0 on.

    A position without a token has the number of the token before it, and 0 if there is none.
    """
    padding = state.get("padding")
    if padding is None:
        return torch.arange(length, device=device)
    return valid_positions(padding)
