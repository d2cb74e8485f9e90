"""Mixers that each break the contract in one way: masks, padding and packed sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from broken_mixers import breaks
from sound_mixers import Bidirectional, Mean, Packed, WithoutMasks
from torch import Tensor

from rifflemix.checks import check_padding_mask
from rifflemix.mixers.packed import Segments


@breaks("a_mask_without_padding_changes_nothing")
class ScalesFullSamplesWithAMask(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return y if key_padding_mask is None else torch.where(key_padding_mask.any(), y, 1.001 * y)


@breaks("padded_outputs_are_zero")
class FillsPadding(Mean):
    def forward(self, x: Tensor, *, key_padding_mask: Any = None, **packed: Any) -> Tensor:
        y = super().forward(x, key_padding_mask=key_padding_mask, **packed)
        return y if key_padding_mask is None else y + 1e-6 * key_padding_mask[..., None]


@breaks("padded_places_reach_nothing", "longer_neighbours_change_nothing")
class ReadsPadding(Mean):
    def forward(self, x: Tensor, *, key_padding_mask: Any = None, **packed: Any) -> Tensor:
        y = super().forward(x, key_padding_mask=key_padding_mask, **packed)
        if key_padding_mask is None:
            return y
        padded = key_padding_mask[..., None]
        seen = x.nan_to_num().where(padded, 0.0).clamp(-1, 1).sum(1, keepdim=True)
        return (y + 1e-6 * seen).masked_fill(padded, 0.0)


@breaks("padded_places_reach_nothing")
class GivesPaddingGradients(Mean):
    def forward(self, x: Tensor, *, key_padding_mask: Any = None, **packed: Any) -> Tensor:
        y = super().forward(x, key_padding_mask=key_padding_mask, **packed)
        if key_padding_mask is None:
            return y
        padded = key_padding_mask[..., None]
        seen = 1e-6 * x.nan_to_num().where(padded, 0.0).sum(1, keepdim=True)
        return (y + (seen - seen.detach())).masked_fill(padded, 0.0)


@breaks("longer_neighbours_change_nothing")
class DependsOnTheLongestSample(Bidirectional):
    """Depends on the number of valid tokens of the longest sample, not on the padding."""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        if key_padding_mask is None:
            return y * (1 + 1e-6 * x.shape[1])
        return y * (1 + 1e-6 * (~key_padding_mask).sum(1).max().to(y.dtype))


@breaks("amount_of_padding_changes_nothing", "longer_neighbours_change_nothing")
class IgnoresTheMask(Bidirectional):
    """Averages over all positions: padded positions add zero but count."""

    def counts(self, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return super().counts(v, None)


@breaks("place_of_padding_changes_nothing")
class CountsPaddedPositions(Bidirectional):
    """Weights tokens by position and counts the padding before them."""

    card = replace(Bidirectional.card, permutation_equivariant=False)

    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        weights = 1 + 1e-4 * torch.arange(x.shape[1], device=x.device).to(x.dtype)
        return super().values(x * weights.unsqueeze(-1), key_padding_mask)


@breaks("place_of_padding_changes_nothing")
class DeclaresPositions(Bidirectional):
    card = replace(Bidirectional.card, by_position="it does not")


@breaks("padding_is_refused")
class AcceptsMasksAnyway(WithoutMasks):
    def _check_input(self, x: Tensor, key_padding_mask: Tensor | None) -> None:
        super()._check_input(x, None)
        check_padding_mask(key_padding_mask, x)


@breaks("packed_sequences_do_not_meet")
class MixesPackedSequences(Packed):
    """Mixes each packed token with the previous token, even across sequence boundaries."""

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        y = super().mix_packed(x, segments)
        return y + 1e-6 * y.roll(1, 1)


@breaks("packed_sequences_do_not_meet")
class MixesGradientsOfPackedSequences(Packed):
    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        seen = 1e-6 * x.sum(1, keepdim=True)
        return super().mix_packed(x, segments) + (seen - seen.detach())


@breaks("packing_is_refused")
class IgnoresPacking(Mean):
    def forward(self, x: Tensor, *, key_padding_mask: Any = None, **packed: Any) -> Tensor:
        return super().forward(x, key_padding_mask=key_padding_mask)
