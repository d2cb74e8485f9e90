"""Position embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer
from rifflemix.errors import bad_argument
from rifflemix.nn.layers import KeepsConstants


class PositionEmbedding(nn.Module):
    """Add a learned position embedding to each token.

    Args:
        max_length: maximum number of tokens.
        dim: channels C.
        std: standard deviation of the normal initialization.

    Raises:
        InputError: `max_length` is below 1, or `forward` gets more tokens than `max_length`.
    """

    def __init__(self, max_length: int, dim: int, *, std: float = 0.02) -> None:
        super().__init__()
        shape = check_integer("max_length", max_length, 1), check_integer("dim", dim, 1)
        self.table = nn.Parameter(torch.empty(shape).normal_(std=std))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Add positions to (B, N, C) tokens.

        `positions` is a (B, N) int64 tensor, by default 0 to N - 1 in each sequence.
        """
        return _add_positions(x, self.table, positions)

    def no_weight_decay(self) -> set[str]:
        return {"table"}


class SinusoidalPositions(KeepsConstants):
    """Add fixed sinusoids of geometrically increasing wavelength to the tokens.

    If `interleaved`, channels 2i and 2i + 1 of token n get sin(n w_i) and cos(n w_i), with
    w_i = 10000^(-2i / C). Otherwise channels i and i + floor(C/2) get these values, with
    w_i = 10000^(-i / (floor(C/2) - 1)). If C is odd, the last channel does not change.

    Args:
        max_length: maximum number of tokens.
        dim: channels C.
        first: number n of the first token; fairseq counts tokens from 2.
        interleaved: True for the layout of the paper and of the Long Range Arena's JAX code, False
            for the layout of Tensor2Tensor.

    Raises:
        InputError: `max_length` is below 1, `first` is below 0, or `forward` gets more tokens than
            `max_length`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """

    table: Tensor

    def __init__(
        self, max_length: int, dim: int, *, first: int = 0, interleaved: bool = False
    ) -> None:
        super().__init__()
        max_length, dim = check_integer("max_length", max_length, 1), check_integer("dim", dim, 1)
        first = check_integer("first", first, 0)
        waves = interleaved_sinusoids if check_bool("interleaved", interleaved) else sinusoids
        self.keep_constants(lambda: {"table": waves(first + max_length, dim)[first:]})

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Add positions to (B, N, C) tokens.

        `positions` is a (B, N) int64 tensor, by default 0 to N - 1 in each sequence.
        """
        return _add_positions(x, self.table, positions)


class NoPositions(nn.Module):
    """Return the tokens unchanged, with the arguments of the other positions.

    Args:
        max_length: maximum number of tokens.
        dim: channels C.

    Raises:
        InputError: `forward` gets more tokens than `max_length`.
    """

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.max_length, self.dim = max_length, dim

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return (B, N, C) tokens."""
        _check_room(x, positions, self.max_length)
        return x


def sinusoids(length: int, dim: int) -> Tensor:
    """Return the float32 (length, dim) table of `SinusoidalPositions`, not interleaved."""
    half = dim // 2
    # float32, because the default dtype may be bfloat16, which has only 8 bits for an angle.
    channels = torch.arange(half, dtype=torch.float32)
    rates = torch.exp(channels * (-math.log(10_000.0) / max(half - 1, 1)))
    angles = torch.arange(length).unsqueeze(1) * rates
    waves = torch.cat((angles.sin(), angles.cos()), dim=1)
    return torch.nn.functional.pad(waves, (0, dim - 2 * half))


def interleaved_sinusoids(length: int, dim: int) -> Tensor:
    """Return the float32 (length, dim) table of interleaved `SinusoidalPositions`."""
    channels = torch.arange(0, dim, 2, dtype=torch.float64)
    rates = torch.exp(channels * (-math.log(10_000.0) / dim))
    angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :dim].float()


def valid_positions(key_padding_mask: Tensor) -> Tensor:
    """Count the valid tokens before each token, as its position.

    Args:
        key_padding_mask: (B, N) bool, True = padding.

    Returns:
        (B, N) int64. Values at padded positions are also in the range of positions.
    """
    return ((~key_padding_mask).cumsum(1) - 1).clamp(min=0)


def last_valid(key_padding_mask: Tensor) -> Tensor:
    """Return the index (B,) of the last valid token of each sequence; 0 without valid tokens."""
    index = torch.arange(key_padding_mask.shape[1], device=key_padding_mask.device)
    return torch.where(key_padding_mask, 0, index).amax(1)


def packed_positions(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return the positions of a packed batch, (1, N) int64.

    Positions start from 0 in each sequence.
    """
    size = torch.tensor(lengths, device="cpu")
    starts = (size.cumsum(0) - size).repeat_interleave(size)
    return (torch.arange(len(starts), device="cpu") - starts).unsqueeze(0).to(device)


def _add_positions(x: Tensor, table: Tensor, positions: Tensor | None) -> Tensor:
    _check_room(x, positions, table.shape[0])
    return x + (table[: x.shape[1]] if positions is None else table[positions]).to(x.dtype)


def _check_room(x: Tensor, positions: Tensor | None, max_length: int) -> None:
    if positions is None and x.shape[1] > max_length:
        raise bad_argument(
            "inputs",
            f"at most max_length = {max_length} tokens",
            x.shape[1],
            "build the model with a larger max_length",
        )
