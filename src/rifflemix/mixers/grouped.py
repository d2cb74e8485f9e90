"""Grouped mixing: any mixer that knows no order, in strided groups, complete after a few layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from rifflemix.checks import shown
from rifflemix.errors import bad_argument
from rifflemix.mixers.base import MixerCard
from rifflemix.mixers.named import (
    create_mixer,
    mixer_card,
    mixer_options,
    usable_mixers,
)
from rifflemix.mixers.strided import StridedGroups


class Grouped(StridedGroups):
    """One sublayer of a mixer in strided groups: each group of `block_size` tokens by itself.

    With token statistics inside there are N / a second moments for each head in place of one, and
    the cost stays O(N C). See `StridedGroups` for the groups, and for `block_size`, `layout` and
    `reverse`. Another inner mixer costs N / a times what it costs on a tokens: with
    `inner="softmax"` this is butterfly attention.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments, which the inner mixer gets as
            they are, but for `max_length`: it sees the tokens of a group.
        inner: name of the mixer inside, whose card says `permutation_equivariant`, and whose
            outputs no amount of padding changes.
        inner_options: the inner mixer's own options.
        shared: the arguments of `StridedGroups`.

    Raises:
        InputError: an inner mixer that sees the order of tokens or cannot be masked, options that
            are not its own, or an option out of range.

    Source: the groups of Sapkota and Bhattarai 2025, "Dimension Mixer", Algorithm 1; with token
    statistics inside it is in neither paper.
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
        """The inner mixer on the tokens of each group."""
        y: Tensor = self.inner(groups, key_padding_mask=key_padding_mask)
        return y

    def extra_repr(self) -> str:
        """The settings, for print(model)."""
        return f"{super().extra_repr()}, inner={self.inner.card.name}"


def _can_be_inner(card: MixerCard) -> bool:
    """Whether groups may be laid on any tokens, and padding in them does not matter."""
    return card.permutation_equivariant and card.padding and not card.layout_over_length


def _check_inner(inner: str) -> None:
    if not _can_be_inner(mixer_card(inner)):
        fitting = ", ".join(name for name in usable_mixers() if _can_be_inner(mixer_card(name)))
        raise bad_argument(
            "inner",
            f"a mixer that knows no order of tokens and takes any amount of padding ({fitting})",
            inner,
        )


def _checked_options(inner: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options that `inner` has of its own: the rest is that of the whole."""
    if options is None:
        return {}
    known = mixer_options(inner)
    if not isinstance(options, Mapping):
        raise bad_argument("inner_options", f"a mapping with options of {inner}", shown(options))
    for name in options:
        if name not in known:
            raise bad_argument(
                "inner_options",
                f"options of {inner} ({', '.join(known) or 'it has none'})",
                shown(name),
                "groups look both ways" if name == "causal" else "the rest is set by the groups",
            )
    return dict(options)
