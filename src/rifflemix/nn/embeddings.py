"""Embeddings of token ids and input vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive, is_number, shown
from rifflemix.errors import bad_argument


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
        y: Tensor = self.proj(levels.unsqueeze(-1))
        return y

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
    table: Tensor = embedding(ids)
    return table
