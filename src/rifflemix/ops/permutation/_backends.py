"""What a module that implements the family offers."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

Permuted = tuple[Tensor, Tensor | None]


class Permutations(Protocol):
    """Functions return the values, and the index or None; see `eager` for each."""

    def circular_shift(
        self, x: Tensor, steps: Tensor, mask: Tensor | None, with_index: bool
    ) -> Permuted:
        """Roll channel c by steps[c] within the valid tokens of each sample."""
        ...

    def group_sort(
        self,
        x: Tensor,
        num_groups: int,
        reference: bool,
        heads: int,
        descending: Tensor | None,
        mask: Tensor | None,
        with_index: bool,
    ) -> Permuted:
        """Sort each channel within groups of tokens."""
        ...

    def channel_permute(
        self,
        x: Tensor,
        steps: Tensor,
        num_groups: int,
        reference: bool,
        heads: int,
        descending: Tensor | None,
        mask: Tensor | None,
        with_index: bool,
    ) -> Permuted:
        """Shift, then sort."""
        ...


class Implementation(Permutations, Protocol):
    """The whole family."""

    def max_exchange(self, x: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
        """Swap the first valid token of each channel with the channel's largest."""
        ...
