"""Grouped mixing: a permutation-equivariant mixer in strided groups of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from rifflemix.checks import shown
from rifflemix.errors import bad_argument
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.registry import (
    create_mixer,
    mixer_card,
    mixer_options,
    usable_mixers,
)
from rifflemix.mixers.strided import StridedGroups


class Grouped(StridedGroups):
    """Run an inner mixer on each strided group of tokens, for one layer.

    See `StridedGroups` for the groups, and for `block_size`, `layout` and `reverse`. The cost is
    N / `block_size` times the cost of the inner mixer on a group. With `inner="tssa"` there are
    N / `block_size` second moments per head in place of one, still in O(N C). `inner="softmax"` is
    butterfly attention.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. The inner mixer gets the same
            values, except that its `max_length` is `block_size`.
        inner: name of the inner mixer. Its card must set `permutation_equivariant`, and padding of
            any amount must not change its outputs.
        inner_options: options of the inner mixer.
        shared: arguments of `StridedGroups`.

    Raises:
        InputError: the inner mixer depends on the order of tokens, or does not support padding.
            Also if an option is unknown or out of range.

    Source: Sapkota and Bhattarai 2025, "Dimension Mixer", Algorithm 1, for the groups. TSSA in
    groups is in neither paper.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("grouped", 64, num_heads=4, inner="tssa", block_size=16)
        >>> mixer(torch.randn(2, 256, 64)).shape
        torch.Size([2, 256, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="grouped",
        title="Grouped statistics (TSSA in strided groups)",
        paper="Wu et al. 2024, Token Statistics Transformer, in the groups of Sapkota and "
        "Bhattarai 2025, Dimension Mixer",
        equations="TSSA (10), (11) in Dimension Mixer's Algorithm 1",
        complexity="O(N C) with tssa",
        cost_exponent=1.0,
        by_position="its groups are positions a stride apart",
    )

    def __init__(
        self,
        dim: int,
        *,
        inner: str = "tssa",
        inner_options: Mapping[str, Any] | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        _check_inner(inner)
        self.inner = create_mixer(
            inner,
            self.dim,
            num_heads=self.num_heads,
            max_length=self.block_size,
            layer_index=self.layer_index,
            num_layers=self.num_layers,
            dropout=self.dropout,
            **_checked_options(inner, inner_options),
        )

    def mix_group(self, groups: Tensor, *, key_padding_mask: Tensor | None) -> Tensor:
        return self.inner(groups, key_padding_mask=key_padding_mask)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, inner={self.inner.card.name}"


def _can_be_inner(card: MixerCard) -> bool:
    """Check that token order and padding do not change the outputs."""
    return card.permutation_equivariant and card.padding and not card.layout_over_length


def _check_inner(inner: str) -> None:
    if not _can_be_inner(mixer_card(inner)):
        fitting = ", ".join(name for name in usable_mixers() if _can_be_inner(mixer_card(name)))
        raise bad_argument(
            "inner",
            f"a permutation-equivariant mixer that supports padding ({fitting})",
            inner,
        )


def _checked_options(inner: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check the names of the options of `inner`, and return a copy."""
    if options is None:
        return {}
    known = mixer_options(inner)
    if not isinstance(options, Mapping):
        raise bad_argument("inner_options", f"a mapping with options of {inner}", shown(options))
    for name in options:
        if name not in known:
            raise bad_argument(
                "inner_options",
                f"options of {inner} ({', '.join(known) or 'no options'})",
                shown(name),
                "groups are bidirectional"
                if name == "causal"
                else "the groups set other arguments",
            )
    return dict(options)
