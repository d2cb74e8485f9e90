"""Parts of softmax attention: padding masks, rotary positions and the cache of a stream.

The tensors of the cache are (B, ..., L, D). After a prompt with padding, it also has `padding`,
(B, L) bool, True = padding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.nn.positions import valid_positions
from rifflemix.ops.dropout.backends import dropout_attention


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(D)) v with scaled_dot_product_attention.

    Args:
        q: (B, H, N, D) queries.
        k: (B, H, N, D) keys.
        v: (B, H, N, D) values.
        key_padding_mask: (B, N) bool, True = padding.
        causal: a query ignores later positions.
        dropout: probability of dropping an attention weight; 0 in evaluation.

    Returns:
        (B, H, N, D), finite everywhere. Values at padded positions are undefined.
    """
    mask = _attention_mask(key_padding_mask, causal)
    # `is_padding` skips padded keys. It saves time only with dropout on the CPU.
    skips = mask is not None and not causal and dropout > 0.0 and q.device.type == "cpu"
    return dropout_attention(
        q,
        k,
        v,
        mask=mask,
        is_causal=causal and mask is None,
        is_padding=skips and q.shape[2] == k.shape[2],
        dropout_p=dropout,
    )


def _attention_mask(key_padding_mask: Tensor | None, causal: bool) -> Tensor | None:
    """Create a bool mask (B, 1, 1, N), or (B, 1, N, N) if causal; True = visible.

    A query without visible keys would give NaN. Only padded queries can have none, and their
    outputs are zeroed later, so they attend to some keys.
    """
    if key_padding_mask is None:
        return None
    length = key_padding_mask.shape[1]
    valid = ~key_padding_mask[:, None, None, :]
    if not causal:
        return valid | key_padding_mask.all(dim=1)[:, None, None, None]
    earlier = torch.ones(length, length, dtype=torch.bool, device=valid.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=valid.device)
    return (valid & earlier) | itself


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate pairs of channels by angles that grow with the position.

    Channels i and i + D/2 of a token at position n turn by n / 10000^(2i / D). Scores of rotated
    queries and keys depend on the distance of their positions only.

    Args:
        x: (B, H, N, D) queries or keys; D is even.
        positions: (N,) or (B, N) positions.

    Returns:
        (B, H, N, D) in the dtype of `x`.

    Example:
        >>> import torch
        >>> from rifflemix.mixers._attention.softmax_parts import rotate
        >>> rotate(torch.ones(1, 2, 3, 4), torch.arange(3)).shape
        torch.Size([1, 2, 3, 4])

    Source: Su et al. 2021, "RoFormer", equations (14) and (15), with halves instead of neighbors,
    as in GPT-NeoX.
    """
    half = x.shape[-1] // 2
    # float32, because bfloat16 has only 8 bits for an angle.
    channels = torch.arange(half, device=x.device, dtype=torch.float32)
    angles = positions.unsqueeze(-1) * torch.pow(10_000.0, -channels / half)
    if positions.dim() == 2:
        angles = angles.unsqueeze(1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


State = dict[str, Tensor]


def new_cache(padding: Tensor | None, **tokens: Tensor) -> State:
    """Create a cache of tokens (B, ..., L, D) and padding (B, L)."""
    return tokens if padding is None else {**tokens, "padding": padding}


def with_token(state: State, **token: Tensor) -> State:
    """Append a token, (B, ..., 1, D) for each tensor, to a cache."""
    after = {name: torch.cat((state[name], new), -2) for name, new in token.items()}
    padding = state.get("padding")
    return new_cache(None if padding is None else F.pad(padding, (0, 1)), **after)


def visible(state: State) -> Tensor | None:
    """Return the valid positions (B, L), or None if all are valid."""
    padding = state.get("padding")
    return None if padding is None else ~padding


def attend_to_cache(
    q: Tensor, keys: Tensor, values: Tensor, state: State, *, dropout: float = 0.0
) -> Tensor:
    """Attend from the newest token, q (B, H, 1, D), to the whole cache: (B, H D)."""
    valid = visible(state)
    mask = None if valid is None else valid[:, None, None]
    y = dropout_attention(q, keys, values, mask=mask, dropout_p=dropout)
    return y.flatten(1)


def token_positions(state: State, length: int, device: torch.device) -> Tensor:
    """Count the valid tokens before each token: (L,) or (B, L) int64.

    A padded position gets the position of the valid token before it, or 0.
    """
    padding = state.get("padding")
    if padding is None:
        return torch.arange(length, device=device)
    return valid_positions(padding)
