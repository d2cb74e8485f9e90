"""Sliceformer: sorting each channel over the tokens instead of attention maps."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.base import MixerCard
from rifflemix.mixers.rank_windows import RankWindows, check_tokens_back
from rifflemix.mixers.value_maps import PermutedValues, value_and_output_maps
from rifflemix.ops.permutation import SortSpec, interleave_columns, unchecked
from rifflemix.ops.permutation.spec import Permuted

VARIANTS = ("ascending", "descending", "interleave", "max_exchange")
_WINDOW = 2


class Sliceformer(PermutedValues):
    """Value map, a sort of every channel over all tokens, output map.

    With `causal=True` channel c takes the value with rank c mod G among the last `window_size`
    tokens; docs/causal-permutations.md has what happens before the first token. `init_state` and
    `step` keep as many values as a window reaches back, whatever the number of tokens.

    The paper has no heads: `num_heads` changes nothing here, `heads` sets the width within which
    Order-Interleave alternates (the other variants treat every channel alike).

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `layer_index` (and with
            `reverse` `num_layers`) set the columns of "interleave"; `dropout` is ignored.
        variant: "ascending", "descending", "interleave" (ascending, but descending in
            `rifflemix.ops.interleave_columns`) or "max_exchange". Ascending with `causal=True`.
        heads: contiguous heads the sorted channels are split into.
        reverse: count layers from the last one, as the authors' vision code does.
        window_size: with `causal=True`, the tokens G in a window, at most `max_length`; 2 where
            unset.
        inner_dim: channels that are sorted, C where unset.
        bias: add a bias to the value map.
        out_proj: have an output map; without one, the sorted values are the output.
        out_bias: give the output map a bias.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an option out of range or of the other direction.

    Source: Yuan and Xu, "Sliceformer: Make Multi-head Attention as Simple as Sorting in
    Discriminative Tasks", section III; the output map is in all of their code. The causal form is
    not in the paper.
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="sliceformer",
        title="Sliceformer",
        paper="Yuan and Xu, Sliceformer: Make Multi-head Attention as Simple as Sorting in "
        "Discriminative Tasks",
        equations="(4)-(6)",
        complexity="O(N C log N); causal O(N C G), windows of G",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
        permutation_invariant=True,
    )

    descending: Tensor

    def __init__(
        self,
        dim: int,
        *,
        variant: str = "ascending",
        heads: int = 1,
        reverse: bool = False,
        window_size: int | None = None,
        inner_dim: int | None = None,
        bias: bool = False,
        out_proj: bool = True,
        out_bias: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("variant", variant, VARIANTS)
        value, self.proj = value_and_output_maps(
            self.dim, inner_dim, bias=bias, out_proj=out_proj, out_bias=out_bias
        )
        self.value, self.variant, channels = value, variant, value.out_features
        self.keep_constants(lambda: {"descending": self._descending(channels, heads, reverse)})
        self.windows = self._make_windows(window_size) if self.causal else None
        if not self.causal and window_size is not None:
            raise bad_argument("window_size", "None without causal=True", window_size)

    def _descending(self, channels: int, heads: int, reverse: bool) -> Tensor:
        """(C,) bool: the channels that are sorted the other way round."""
        columns = interleave_columns(
            channels,
            self.layer_index,
            heads=heads,
            reverse=reverse,
            num_layers=self.num_layers,
        )
        return torch.ones_like(columns) if self.variant == "descending" else columns

    def _make_windows(self, window_size: int | None) -> RankWindows:
        if self.variant != "ascending":
            raise bad_argument("variant", "'ascending' with causal=True", repr(self.variant))
        size = _WINDOW
        if window_size is not None:
            size = check_tokens_back("window_size", window_size, self.max_length)
        return RankWindows(torch.zeros(len(self.descending), dtype=torch.int64, device="cpu"), size)

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
        if self.windows is not None:
            return f"dim={self.dim}, causal=True, window_size={self.windows.window_size}"
        return f"dim={self.dim}, variant={self.variant}"
