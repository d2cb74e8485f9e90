"""From token ids or vectors to channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive, is_number, shown
from rifflemix.errors import bad_argument


class ValueEmbedding(nn.Module):
    """Token ids read as numbers: ((id / (vocab_size - 1) - mean) / std) times a vector, plus one.

    For gray pixels, whose id is their level. The vectors start normal, with deviation 1 and 0.1.

    Args:
        vocab_size: number of ids.
        dim: channels C.
        mean: taken off the levels, which lie between 0 and 1.
        std: the levels are divided by it.

    Raises:
        InputError: a size or `std` out of range.

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
        """(...) int64 -> (..., C)."""
        levels = (ids.to(self.proj.weight.dtype) / self.top - self.mean) / self.std
        y: Tensor = self.proj(levels.unsqueeze(-1))
        return y

    def extra_repr(self) -> str:
        """The settings, for print(model)."""
        return f"levels={self.top + 1}, mean={self.mean}, std={self.std}"


def input_embedding(
    vocab_size: int | None,
    in_channels: int | None,
    dim: int,
    *,
    std: float = 1.0,
    level_scale: Sequence[float] | None = None,
) -> nn.Module:
    """The layer that turns tokens or vectors (exactly one of the two) into `dim` channels.

    Args:
        vocab_size: number of token ids.
        in_channels: features per vector.
        dim: channels C.
        std: deviation of a table of token vectors at the start.
        level_scale: mean and deviation of a `ValueEmbedding`; None for a table.

    Raises:
        InputError: both or none of the two, or a value out of range.
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
            raise bad_argument("level_scale", "a mean and a deviation", shown(level_scale))
        return ValueEmbedding(vocab_size, dim, mean=level_scale[0], std=level_scale[1])
    embedding = nn.Embedding(check_integer("vocab_size", vocab_size, 1), dim)
    with torch.no_grad():
        embedding.weight.mul_(check_positive("embedding_std", std))
    return embedding


def number_of_ids(embedding: Any) -> int:
    """Rows of an embedding, or of the one that an adapter stands around (LoRA)."""
    rows = getattr(embedding, "num_embeddings", None)
    return len(embedding.weight) if rows is None else int(rows)


def table_of(embedding: Any) -> Tensor:
    """(V, C), the vectors that an embedding gives for all of its ids.

    Adapters act in a call, and a quantised embedding has its numbers in a method.
    """
    weight: Any = embedding.weight
    if isinstance(embedding, nn.Embedding):
        return cast(Tensor, weight)
    ids = torch.arange(number_of_ids(embedding), device=getattr(weight, "device", "cpu"))
    table: Tensor = embedding(ids)
    return table
