"""Sequence lengths of transformers models, from embeddings and configs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

# Time series models have positions for the past values and for the predicted values.
_OF_SERIES = ("context_length", "prediction_length")


def embeddings_around(parents: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the embeddings of the innermost model around the attention.

    The list is empty if no model has embeddings.
    """
    found = (getattr(parent, "embeddings", None) for parent in reversed(parents))
    return [part for part in found if isinstance(part, nn.Module)][:1]


def image_length(parents: Sequence[nn.Module]) -> int | None:
    """Return the number of tokens of a default-size image, or None."""
    for embeddings in embeddings_around(parents):
        table = getattr(embeddings, "position_embeddings", None)
        if isinstance(table, Tensor) and table.dim() == 3:
            registers = getattr(embeddings, "register_tokens", None)  # these have no position
            return table.shape[1] + (0 if registers is None else registers.shape[1])
    return None


def longest(parents: Sequence[nn.Module]) -> int | None:
    """Return the token limit of the innermost model that has one."""
    for embeddings in embeddings_around(parents):
        table = getattr(embeddings, "position_embeddings", None)
        if isinstance(table, nn.Embedding):
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - first
    for parent in reversed(parents):
        for owner, name in (
            (parent, "max_target_positions"),
            (parent, "max_source_positions"),
            (getattr(parent, "config", None), "max_position_embeddings"),
        ):
            limit = getattr(owner, name, None)
            if isinstance(limit, int):
                return limit
        found = (getattr(getattr(parent, "config", None), name, None) for name in _OF_SERIES)
        series = [length for length in found if isinstance(length, int)]
        if len(series) == len(_OF_SERIES):  # Informer, Autoformer
            return sum(series)
    return None
