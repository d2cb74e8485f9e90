"""Pooling of tokens to one vector per sequence."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rifflemix.errors import check_choice
from rifflemix.nn.positions import last_valid

POOLINGS = ("mean", "max", "cls", "last", "length_mean", "position_mean", "none")


def masked_mean(x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Compute the mean over the valid tokens.

    Args:
        x: (B, N, C) tokens.
        key_padding_mask: (B, N) bool, True = padding.

    Returns:
        (B, C); zero for a sample with no valid token.
    """
    if key_padding_mask is None:
        return x.mean(dim=1)
    valid = (~key_padding_mask).to(x.dtype).unsqueeze(-1)
    total = torch.where(key_padding_mask.unsqueeze(-1), 0.0, x).sum(dim=1)
    return total / valid.sum(dim=1).clamp(min=1.0)


def masked_max(x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Compute the maximum of each channel over the valid tokens.

    Args:
        x: (B, N, C) tokens.
        key_padding_mask: (B, N) bool, True = padding.

    Returns:
        (B, C); zero for a sample with no valid token.
    """
    if key_padding_mask is None:
        return x.amax(dim=1)
    highest = x.masked_fill(key_padding_mask.unsqueeze(-1), -math.inf).amax(dim=1)
    return highest.masked_fill(key_padding_mask.all(dim=1, keepdim=True), 0.0)


class Pooling(nn.Module):
    """Pool the tokens of each sequence to one vector.

    Args:
        kind: one of these poolings:

            - "mean": mean of the valid tokens.
            - "max": maximum of each channel over the valid tokens.
            - "cls": the first token.
            - "last": the last valid token; the first position if a sample has no valid token.
            - "length_mean": sum of the valid tokens divided by `max_length`, as in the LRA code of
              Nystromformer and Skyformer.
            - "position_mean": mean over all positions, including the values at padded positions,
              as in the LRA's JAX code.
            - "none": keep all tokens.
        max_length: maximum number of tokens.

    Raises:
        InputError: `kind` is not one of these.
    """

    def __init__(self, kind: str, max_length: int) -> None:
        super().__init__()
        check_choice("pool", kind, POOLINGS)
        self.kind = kind
        self.max_length = max_length

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Pool (B, N, C) tokens to (B, C), or keep them for "none".

        `key_padding_mask` is (B, N) bool, True = padding.
        """
        if self.kind == "none":
            return x
        if self.kind == "cls":
            return x[:, 0]
        if self.kind == "last":
            if key_padding_mask is None:
                return x[:, -1]
            return x[torch.arange(x.shape[0], device=x.device), last_valid(key_padding_mask)]
        if self.kind == "position_mean":
            return x.mean(dim=1)
        if self.kind == "max":
            return masked_max(x, key_padding_mask)
        if self.kind == "mean":
            return masked_mean(x, key_padding_mask)
        if key_padding_mask is not None:
            x = torch.where(key_padding_mask.unsqueeze(-1), 0.0, x)
        return x.sum(dim=1) / self.max_length

    def extra_repr(self) -> str:
        return self.kind
