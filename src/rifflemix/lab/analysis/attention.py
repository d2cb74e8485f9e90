"""torch's own attention as a layer with the interface of a mixer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers.cross.base import CrossAttention


def arguments(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


def is_cross(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Check whether a call attends from one sequence to another."""
    if isinstance(module, CrossAttention):
        return True
    if not isinstance(module, nn.MultiheadAttention):
        return False
    given = arguments(module, args, kwargs)
    return given["key"] is not given["query"]


class TorchAttention(nn.Module):
    """A `torch.nn.MultiheadAttention` with the interface of a mixer.

    The remaining arguments come from one recorded call of the layer.

    Args:
        attention: the layer.
        given: the arguments of the recorded call, by name.
    """

    def __init__(self, attention: nn.MultiheadAttention, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.attention = attention
        self.is_batched = given["query"].dim() == 3
        self.query = self.batch_first(given["query"]).clone()
        self.memory: Tensor | None = None
        if given["key"] is not given["query"]:
            self.memory = self.batch_first(given["key"]).clone()
        self.value: Tensor | None = None
        self.offset: Tensor | None = None
        self._hold_values(given)
        self.padding = _padding(given.get("key_padding_mask"))
        self.attn_mask: Tensor | None = _additive(given.get("attn_mask"), self.query)
        if self.attn_mask is not None and self.attn_mask.dim() == 3:
            self.attn_mask = self.attn_mask.unflatten(0, (len(self.query), -1))

    def _hold_values(self, given: Mapping[str, Any]) -> None:
        """Store values that differ from the keys.

        If keys and values come from the same tokens, only their difference is stored. This is the
        case if a model adds positions to the keys alone. Values from another sequence, or with
        another number of channels, are stored as they are.
        """
        if given["value"] is given["key"]:
            return
        key, value = self.batch_first(given["key"]), self.batch_first(given["value"])
        if self.memory is None and key.shape == value.shape:
            self.offset = (value - key).detach()
        else:
            self.value = value.clone()

    def of_sample(self, number: int) -> TorchAttention:
        """Return the layer for copies of one sample of the call.

        The number of copies is arbitrary.
        """
        layer = copy.copy(self)
        if layer.offset is not None:
            layer.offset = layer.offset[number : number + 1]
        if layer.attn_mask is not None and layer.attn_mask.dim() == 4:
            layer.attn_mask = layer.attn_mask[number : number + 1]
        return layer

    def batch_first(self, x: Tensor) -> Tensor:
        """Convert a tensor in the layer's layout to (B, N, C)."""
        if not self.is_batched:
            return x.unsqueeze(0)
        return x if self.attention.batch_first else x.transpose(0, 1)

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Mix tokens: (B, N, C) -> (B, N, C).

        The mask marks padding among the keys.
        """
        y: Tensor = self._call(x, key_padding_mask, need_weights=False)[0]
        return y

    def weights(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, first: int | None = None
    ) -> Tensor:
        """Return the weights (B, H, N, M) of queries (B, N, C).

        Padded rows are zero. `first` limits the output to the first N queries.
        """
        found: Tensor = self._call(
            x, key_padding_mask, first=first, need_weights=True, average_attn_weights=False
        )[1]
        if self.memory is None and key_padding_mask is not None:
            found = found.masked_fill(key_padding_mask[:, None, :first, None], 0.0)
        return found

    def _call(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None,
        *,
        first: int | None = None,
        **options: Any,
    ) -> Any:
        memory = x if self.memory is None else self.memory
        value = memory if self.value is None else self.value
        if self.offset is not None:
            value = memory + self.offset[:, : memory.shape[1]].to(memory.dtype)
        if value.shape[:2] != memory.shape[:2] or value.dtype != memory.dtype:
            expected = f"{memory.shape[-1]} channels, as the keys have,"
            raise bad_argument("values", expected, value.shape[-1])
        mask = self.attn_mask
        if mask is not None and self.memory is None:  # x may be shorter than the model's sequence
            mask = mask[..., : x.shape[1], : x.shape[1]]
        if mask is not None:
            mask = mask[..., :first, :]
            if mask.dim() == 4:
                mask = mask.expand(len(x), -1, -1, -1).flatten(0, 1)
        inputs = [x[:, :first], memory, value]
        if not self.attention.batch_first:
            inputs = [part.transpose(0, 1) for part in inputs]
        y, weights = self.attention(
            *inputs, key_padding_mask=_additive(key_padding_mask, x), attn_mask=mask, **options
        )
        return y if self.attention.batch_first else y.transpose(0, 1), weights


def _padding(mask: Tensor | None) -> Tensor | None:
    """Convert to a bool mask (B, N), True = padding.

    torch's layers convert the masks they get to additive masks.
    """
    if mask is None:
        return None
    mask = mask if mask.dtype == torch.bool else torch.isneginf(mask)
    return mask.unsqueeze(0) if mask.dim() == 1 else mask


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)
