"""Sliceformer: sorting each channel over the tokens instead of attention maps."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.errors import check_choice
from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.mixers.value_maps import value_and_output_maps
from rifflemix.ops.permutation import SortSpec, interleave_columns, unchecked
from rifflemix.ops.permutation.spec import Permuted

VARIANTS = ("ascending", "descending", "interleave", "max_exchange")


class Sliceformer(TokenMixer):
    """Value map, a sort of every channel over all tokens, output map.

    The paper has no heads: `num_heads` changes nothing here, `heads` sets the width within which
    Order-Interleave alternates (the other variants treat every channel alike).

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `layer_index` (and with
            `reverse` `num_layers`) set the columns of "interleave"; `dropout` is ignored.
        variant: "ascending", "descending", "interleave" (ascending, but descending in
            `rifflemix.ops.interleave_columns`) or "max_exchange".
        heads: contiguous heads the sorted channels are split into.
        reverse: count layers from the last one, as the authors' vision code does.
        inner_dim: channels that are sorted, C where unset.
        bias: add a bias to the value map.
        out_proj: have an output map; without one, the sorted values are the output.
        out_bias: give the output map a bias.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an option out of range.

    Source: Yuan and Xu, "Sliceformer: Make Multi-head Attention as Simple as Sorting in
    Discriminative Tasks", section III; the output map is in all of their code.
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="sliceformer",
        title="Sliceformer",
        paper="Yuan and Xu, Sliceformer: Make Multi-head Attention as Simple as Sorting in "
        "Discriminative Tasks",
        equations="(4)-(6)",
        complexity="O(N C log N)",
        cost_exponent=1.0,
    )

    descending: Tensor

    def __init__(
        self,
        dim: int,
        *,
        variant: str = "ascending",
        heads: int = 1,
        reverse: bool = False,
        inner_dim: int | None = None,
        bias: bool = False,
        out_proj: bool = True,
        out_bias: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("variant", variant, VARIANTS)
        self.value, self.proj = value_and_output_maps(
            self.dim, inner_dim, bias=bias, out_proj=out_proj, out_bias=out_bias
        )
        self.variant = variant
        columns = interleave_columns(
            self.value.out_features,
            self.layer_index,
            heads=heads,
            reverse=reverse,
            num_layers=self.num_layers,
        )
        if variant == "descending":
            columns = torch.ones_like(columns)
        self.register_buffer("descending", columns, persistent=False)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Sort the values channel by channel."""
        y: Tensor = self.proj(self.permute(self.value(x), key_padding_mask)[0])
        return y

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """The sort of values (B, N, C) with their mask, and where each came from.

        Returns:
            The sorted values, and the index (B, N, C) that gathers them if `with_index`.
        """
        if self.variant == "max_exchange":
            return unchecked.max_exchange(v, mask, with_index)
        descending = None if self.variant == "ascending" else self.descending
        return unchecked.group_sort(v, SortSpec(1, False, 1, descending), mask, with_index)

    def extra_repr(self) -> str:
        """The settings, for print(model)."""
        return f"dim={self.dim}, variant={self.variant}"
