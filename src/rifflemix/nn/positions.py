"""Position embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer
from rifflemix.errors import bad_argument
from rifflemix.nn.constants import KeepsConstants


class PositionEmbedding(nn.Module):
    """Adds a learned embedding of each token's position, normal at the start.

    Args:
        max_length: most tokens.
        dim: channels C.
        std: deviation at the start.

    Raises:
        InputError: `max_length` under 1, or more tokens than that in `forward`.
    """

    def __init__(self, max_length: int, dim: int, *, std: float = 0.02) -> None:
        super().__init__()
        shape = check_integer("max_length", max_length, 1), check_integer("dim", dim, 1)
        self.table = nn.Parameter(torch.empty(shape).normal_(std=std))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, N, C); `positions` (B, N) int64 are the positions if not 0 to N - 1."""
        return _add_positions(x, self.table, positions)

    def no_weight_decay(self) -> set[str]:
        """Positions are not weights of a map: they are not decayed."""
        return {"table"}


class SinusoidalPositions(KeepsConstants):
    """Adds fixed waves of geometrically growing length.

    With `interleaved`, channels 2i and 2i + 1 hold sin(n w_i) and cos(n w_i) for token n, with
    w_i = 10000^(-2i / C). Without, channels i and i + floor(C/2) hold them, with
    w_i = 10000^(-i / (floor(C/2) - 1)), and the last of an odd number of channels stays as it is.

    Args:
        max_length: most tokens.
        dim: channels C.
        first: number n of the first token; fairseq counts tokens from 2.
        interleaved: the layout of the paper and of the Long Range Arena's JAX code; False is
            Tensor2Tensor's.

    Raises:
        InputError: `max_length` under 1 or `first` under 0, or more tokens than `max_length` in
            `forward`.

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
        """(B, N, C) -> (B, N, C); `positions` (B, N) int64 are the positions if not 0 to N - 1."""
        return _add_positions(x, self.table, positions)


def sinusoids(length: int, dim: int) -> Tensor:
    """The (length, dim) table of `SinusoidalPositions` in two halves, float32."""
    half = dim // 2
    # Said of the type, since torch's default one may hold no more than 8 bits of an angle.
    channels = torch.arange(half, dtype=torch.float32)
    rates = torch.exp(channels * (-math.log(10_000.0) / max(half - 1, 1)))
    angles = torch.arange(length).unsqueeze(1) * rates
    waves = torch.cat((angles.sin(), angles.cos()), dim=1)
    return torch.nn.functional.pad(waves, (0, dim - 2 * half))


def interleaved_sinusoids(length: int, dim: int) -> Tensor:
    """The (length, dim) table of `SinusoidalPositions` with `interleaved`, float32."""
    channels = torch.arange(0, dim, 2, dtype=torch.float64)
    rates = torch.exp(channels * (-math.log(10_000.0) / dim))
    angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :dim].float()


def valid_positions(key_padding_mask: Tensor) -> Tensor:
    """(B, N) int64: how many valid tokens stand before each, whatever padding is among them.

    Args:
        key_padding_mask: (B, N) bool, True = padding; padded positions get a position in range.
    """
    return ((~key_padding_mask).cumsum(1) - 1).clamp(min=0)


def packed_positions(lengths: Sequence[int], device: torch.device) -> Tensor:
    """(1, N) int64: the position of each token of a packed row in its own sequence."""
    size = torch.tensor(lengths, device="cpu")
    starts = (size.cumsum(0) - size).repeat_interleave(size)
    return (torch.arange(len(starts), device="cpu") - starts).unsqueeze(0).to(device)


def _add_positions(x: Tensor, table: Tensor, positions: Tensor | None) -> Tensor:
    max_length = table.shape[0]
    if positions is None and x.shape[1] > max_length:
        raise bad_argument(
            "inputs",
            f"at most max_length = {max_length} tokens",
            x.shape[1],
            "build the model with a larger max_length",
        )
    return x + (table[: x.shape[1]] if positions is None else table[positions]).to(x.dtype)
