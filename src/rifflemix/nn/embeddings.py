"""Embeddings of token ids, vectors and patches of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive, is_number, shown
from rifflemix.errors import bad_argument, check_choice


class ValueEmbedding(nn.Module):
    """Embed token ids as numbers: weight * (id / (vocab_size - 1) - mean) / std + bias.

    Use it for gray pixels: an id is then a gray level. The vectors `weight` and `bias` are
    initialized from a normal distribution with standard deviation 1 and 0.1.

    Args:
        vocab_size: number of ids.
        dim: channels C.
        mean: subtracted from the levels in [0, 1].
        std: divisor of the levels.

    Raises:
        InputError: a size or `std` is out of range.

    Source: Ma et al. 2023 (MEGA), the embedding of the released code for pixels.
    """

    def __init__(self, vocab_size: int, dim: int, *, mean: float = 0.5, std: float = 0.5) -> None:
        super().__init__()
        self.num_embeddings = check_integer("vocab_size", vocab_size, 2)
        self.top = self.num_embeddings - 1
        if not is_number(mean):
            raise bad_argument("mean", "a number", shown(mean))
        self.mean, self.std = mean, check_positive("std", std)
        self.proj = nn.Linear(1, check_integer("dim", dim, 1))
        nn.init.normal_(self.proj.weight)
        nn.init.normal_(self.proj.bias, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        """Map (...) int64 to (..., C)."""
        levels = (ids.to(self.proj.weight.dtype) / self.top - self.mean) / self.std
        return self.proj(levels.unsqueeze(-1))

    def extra_repr(self) -> str:
        return f"levels={self.top + 1}, mean={self.mean}, std={self.std}"


def input_embedding(
    vocab_size: int | None,
    in_channels: int | None,
    dim: int,
    *,
    std: float = 1.0,
    level_scale: Sequence[float] | None = None,
) -> nn.Module:
    """Build a layer that embeds token ids or vectors in `dim` channels.

    Args:
        vocab_size: number of token ids; None for vectors.
        in_channels: features per vector; None for token ids.
        dim: channels C.
        std: standard deviation of an initial embedding table.
        level_scale: mean and standard deviation of a `ValueEmbedding`; None for a table.

    Raises:
        InputError: `vocab_size` and `in_channels` are both given or both None, or a value is out
            of range.
    """
    if (vocab_size is None) == (in_channels is None):
        raise bad_argument(
            "vocab_size, in_channels",
            "exactly one of the two",
            f"{vocab_size} and {in_channels}",
        )
    if vocab_size is None:
        if level_scale is not None:
            raise bad_argument("level_scale", "None for vectors", shown(level_scale))
        return nn.Linear(check_integer("in_channels", in_channels, 1), dim)
    if level_scale is not None:
        if not isinstance(level_scale, list | tuple) or len(level_scale) != 2:
            raise bad_argument("level_scale", "a mean and a standard deviation", shown(level_scale))
        return ValueEmbedding(vocab_size, dim, mean=level_scale[0], std=level_scale[1])
    embedding = nn.Embedding(check_integer("vocab_size", vocab_size, 1), dim)
    with torch.no_grad():
        embedding.weight.mul_(check_positive("embedding_std", std))
    return embedding


def number_of_ids(embedding: Any) -> int:
    """Return the number of ids of an embedding or LoRA adapter."""
    rows = getattr(embedding, "num_embeddings", None)
    return len(embedding.weight) if rows is None else int(rows)


def table_of(embedding: Any) -> Tensor:
    """Return the embedding vectors of all ids, (V, C).

    Adapters and quantized embeddings are called with all ids: their weight is not the table.
    """
    weight: Any = embedding.weight
    if isinstance(embedding, nn.Embedding):
        return cast(Tensor, weight)
    ids = torch.arange(number_of_ids(embedding), device=getattr(weight, "device", "cpu"))
    return embedding(ids)


class Resize(nn.Module):
    """Resize images by bilinear interpolation with aligned corner pixels.

    Args:
        size: height and width of the output.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels, H, W) to (B, channels, height, width)."""
        return F.interpolate(images, size=self.size, mode="bilinear", align_corners=True)

    def extra_repr(self) -> str:
        return f"size={self.size}"


def enlarge_grid(table: Tensor, positions: int) -> Tensor:
    """Enlarge the position table of a square image by nearest-neighbor interpolation.

    Args:
        table: (N, C) in row-major order of the image, with N = S^2. Or N = S^2 + 1: the first
            entry then belongs to a class token and does not change.
        positions: new number of entries, (k S)^2 or (k S)^2 + 1.

    Returns:
        (positions, C).

    Raises:
        InputError: N or `positions` has a different form.

    Source: Sapkota and Bhattarai, Dimension Mixer, the steps to Path-X.
    """
    for first in (0, 1):
        before, after = (math.isqrt(max(rows - first, 0)) for rows in (len(table), positions))
        is_square = before**2 + first == len(table) and after**2 + first == positions
        if is_square and 0 < before <= after and after % before == 0:
            return torch.cat((table[:first], _enlarged(table[first:], before, after // before)))
    expected = "(k S)^2 rows for a table of S^2 rows, or one more in both"
    raise bad_argument("positions", expected, f"{positions} for {len(table)}")


def _enlarged(table: Tensor, side: int, times: int) -> Tensor:
    """Map (side^2, C) to ((times side)^2, C)."""
    grid = table.reshape(side, side, -1)
    return grid.repeat_interleave(times, 0).repeat_interleave(times, 1).flatten(0, 1)


class PatchEmbedding(nn.Module):
    """Apply a linear layer to each non-overlapping patch.

    Args:
        in_channels: channels of the image.
        dim: channels C of a token.
        patch_size: height and width of a patch.
        order: order of the features of a patch: "hwc" (row, column, channel), or "chw" (channel,
            row, column) as in `torch.nn.Unfold`.

    Source: Dosovitskiy et al. 2021, equation (1).
    """

    def __init__(
        self, in_channels: int, dim: int, patch_size: tuple[int, int], *, order: str = "hwc"
    ) -> None:
        super().__init__()
        check_choice("order", order, ("hwc", "chw"))
        self.patch_height, self.patch_width = patch_size
        self.order = order
        self.proj = nn.Linear(self.patch_height * self.patch_width * in_channels, dim)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, channels, height, width) to tokens (B, N, C), row-major."""
        patches = images.unflatten(3, (-1, self.patch_width))
        patches = patches.unflatten(2, (-1, self.patch_height))
        axes = (0, 2, 4, 3, 5, 1) if self.order == "hwc" else (0, 2, 4, 1, 3, 5)
        return self.proj(patches.permute(axes).flatten(3).flatten(1, 2))


class ConvPatchEmbedding(nn.Module):
    """Embed patches with 3x3 convolutions of stride 2, batch norm and GELU.

    Each convolution halves the image. The last convolution has `dim` channels, and each earlier one
    has half the channels of the next. For example, 16x16 patches need C/8, C/4, C/2 and C channels.
    There is no GELU after the last convolution. The papers train with batch norm over all devices:
    use `torch.nn.SyncBatchNorm.convert_sync_batchnorm`.

    Args:
        in_channels: channels of the image.
        dim: channels C of a token.
        patch_size: height and width of a patch, a power of two of at least 2.

    Raises:
        InputError: `patch_size` is not a power of two of at least 2, or `dim` is below
            patch_size / 2.

    Source: El-Nouby et al. 2021 (XCiT) and their released code.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        layers = patch_size.bit_length() - 1
        if patch_size < 2 or patch_size != 2**layers:
            raise bad_argument("patch_size", "a power of two of at least 2", patch_size)
        check_integer("dim", dim, 2 ** (layers - 1))
        widths = [in_channels, *(dim // 2**halvings for halvings in reversed(range(layers)))]
        stages: list[nn.Module] = []
        for channels_in, channels_out in pairwise(widths):
            stages += [_halving_convolution(channels_in, channels_out), nn.GELU()]
        self.proj = nn.Sequential(*stages[:-1])

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels, H, W) to (B, C, H / patch_size, W / patch_size)."""
        return self.proj(images)


def _halving_convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
    )
