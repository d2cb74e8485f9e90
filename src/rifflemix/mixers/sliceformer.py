"""Sliceformer: sort each channel over the tokens in place of attention weights."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.permutation_mixer import PermutationMixer, RankWindows, check_tokens_back
from rifflemix.ops.permutation import SortSpec, backends, interleave_columns
from rifflemix.ops.permutation.arguments import Permuted

VARIANTS = ("ascending", "descending", "interleave", "max_exchange")
_WINDOW = 2


class Sliceformer(PermutationMixer):
    """Project values, sort each channel over all tokens, project the result.

    With `causal=True` channel c selects the value with rank c mod G among the last `window_size`
    tokens. See docs/causal-permutations.md for the first tokens of a sequence. The streaming state
    has a fixed size: it stores the values that the window can reach.

    The paper has no heads, so `num_heads` has no effect. `heads` sets the width of a head, within
    which "interleave" alternates the directions. The other variants ignore `heads`.

    Args:
        dim: channels C; see `PermutationMixer` and `TokenMixer` for the shared arguments.
            "interleave" uses `layer_index` and, with `reverse`, `num_layers`; `dropout` is ignored.
        variant: "ascending", "descending", "interleave" or "max_exchange". "interleave" sorts the
            channels of `rifflemix.ops.interleave_columns` in descending order, the others in
            ascending order. `causal=True` supports "ascending" only.
        heads: number of contiguous heads into which the sorted channels are split.
        reverse: count layers from the last layer, as the vision code of the authors does.
        window_size: tokens G in a window, at most `max_length`; only with `causal=True`.
            Default: 2.
        shared: other arguments of `PermutationMixer` and `TokenMixer`.

    Raises:
        InputError: an option is out of range or does not fit `causal`.

    Source: Yuan and Xu, "Sliceformer: Make Multi-head Attention as Simple as Sorting in
    Discriminative Tasks", section III. All code of the authors has the output projection. The
    causal variant is not in the paper.

    Example:
        >>> import torch, rifflemix as rm
        >>> options = {"variant": "interleave", "layer_index": 1, "num_layers": 6}
        >>> mixer = rm.create_mixer("sliceformer", 64, **options)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
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

    fixed_options: ClassVar[frozenset[str]] = frozenset({"value_proj"})
    descending: Tensor

    def __init__(
        self,
        dim: int,
        *,
        variant: str = "ascending",
        heads: int = 1,
        reverse: bool = False,
        window_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("variant", variant, VARIANTS)
        self.variant = variant
        self.keep_constants(lambda: {"descending": self._descending(heads, reverse)})
        if self.causal:
            self.windows = self._make_windows(window_size)
        elif window_size is not None:
            raise bad_argument("window_size", "None without causal=True", window_size)

    def _descending(self, heads: int, reverse: bool) -> Tensor:
        """(C,) bool, True = channel sorted in descending order."""
        columns = interleave_columns(
            self.inner_dim,
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
        return RankWindows(torch.zeros(self.inner_dim, dtype=torch.int64, device="cpu"), size)

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """Sort values (B, N, C) channel by channel.

        Args:
            v: (B, N, C) values.
            mask: (B, N) bool, True = padding, or None.
            with_index: also return the index.

        Returns:
            Sorted values and, if `with_index`, the index (B, N, C) that gathers them.
        """
        permuted: Permuted
        if self.variant == "max_exchange":
            permuted = backends.for_tokens(v).max_exchange(v, mask, with_index)
        else:
            descending = None if self.variant == "ascending" else self.descending
            spec = SortSpec(1, False, 1, descending)
            module = backends.for_sort(v, spec, with_index)
            permuted = module.permute(v, None, spec, mask, with_index)
        return permuted

    def extra_repr(self) -> str:
        if self.windows is not None:
            return f"dim={self.dim}, causal=True, window_size={self.windows.window_size}"
        return f"dim={self.dim}, variant={self.variant}"
