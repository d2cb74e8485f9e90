"""CSP: channel-wise sample permutation in place of attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_bool, check_divides, check_integer
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.causal_csp import CausalCSP
from rifflemix.mixers.permutation_mixer import PermutationMixer, check_shift
from rifflemix.mixers.token_groups import GroupLayout, TokenGroups, reference_length
from rifflemix.ops.permutation import ShiftSchedule, SortSpec, backends
from rifflemix.ops.permutation.arguments import Permuted

ORDERS = ("reference", "ascending")


class CSP(PermutationMixer):
    """Project values, shift and group-sort each channel, project the result.

    With `causal=True` the class builds `CausalCSP`, which has other options.

    The paper has no heads, so `num_heads` has no effect. With `heads`, every head has its own
    reference channel. In reference order, a schedule for `shift` never shifts the reference
    channels. An explicit list is used unchanged.

    Args:
        dim: channels C; see `PermutationMixer` and `TokenMixer` for the shared arguments. The
            schedules "power" and "code_exp" use `layer_index` and `num_layers`; `dropout` is
            ignored.
        num_groups: groups K of ceil(N / K) tokens each; 1 sorts the whole sequence.
        group_size: tokens G in a group. With 1 the mixer only shifts. Default: 2, unless
            `num_groups` is set.
        shift: a kind of `rifflemix.ops.shift_steps`, or C integers (a sequence, array or tensor).
            Default: "linear".
        order: "reference" (as published, the default) or "ascending" (as in all experiments of
            the paper).
        pad: let the last group be shorter if the group size does not divide N; False raises an
            error. Default: False if `num_groups` or `group_size` is set, else True.
        layout: length that `num_groups` and the schedules of `shift` divide. "max_length" (the
            default if `max_length` is set): the result does not depend on the lengths of other
            samples. "length": the tokens of the input, padding included.
        heads: number of contiguous heads into which the permuted channels are split.
        shared: other arguments of `PermutationMixer` and `TokenMixer`. `shift` lists and `heads`
            refer to the `inner_dim` channels.

    Raises:
        InputError: an option is out of range, or both `num_groups` and `group_size` are set.

    Source: Yuan and Xu, "Towards Better Multi-head Attention via Channel-wise Sample
    Permutation", equations (3)-(5) and section 3.2.2.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("csp", 64, group_size=4, shift="power")
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="csp",
        title="CSP",
        paper="Yuan and Xu, Towards Better Multi-head Attention via Channel-wise Sample "
        "Permutation",
        equations="(3)-(5)",
        complexity="O(N C log(N/K)); causal O(N C G), windows of G",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
        by_position="its groups are neighboring positions",
    )
    causal_class = CausalCSP

    steps: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        num_groups: int | None = None,
        group_size: int | None = None,
        shift: str | Sequence[int] | Tensor | None = None,
        order: str | None = None,
        pad: bool | None = None,
        layout: str | None = None,
        heads: int = 1,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.order = "reference" if order is None else order
        check_choice("order", self.order, ORDERS)
        self.heads = check_divides("heads", heads, self.inner_dim, "the permuted channels")
        length = reference_length(layout, self.max_length)
        self.groups = _checked_groups(num_groups, group_size, pad, length)
        self.depends_on_length = self.groups.reference_length is None or not self.groups.pad
        self.shift = check_shift("linear" if shift is None else shift, self.inner_dim)
        self.schedule = self._make_schedule()
        self.keep_constants(lambda: {"steps": self._constant_steps()})

    def _make_schedule(self) -> ShiftSchedule | None:
        """Create the schedule of the shift; None for a list or without a shift."""
        if not isinstance(self.shift, str) or self.shift == "none":
            return None
        return ShiftSchedule(
            self.shift,
            self.inner_dim,
            self.layer_index,
            self.num_layers,
            self.heads,
            fixed_references=self.order == "reference",
        )

    def _constant_steps(self) -> Tensor | None:
        """(C,) steps, or None if unused or dependent on the sequence length."""
        length = self.groups.reference_length
        if not isinstance(self.shift, str):
            return torch.tensor(self.shift)
        if self.schedule is None or length is None:
            return None
        return self.schedule.steps(length, self.groups.size_in(length), torch.device("cpu"))

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """Shift and sort values (B, N, C) channel by channel.

        Args:
            v: (B, N, C) values.
            mask: (B, N) bool, True = padding, or None.
            with_index: also return the index.

        Returns:
            Permuted values and, if `with_index`, the index (B, N, C) that gathers them.
        """
        return self.groups.run(self.permute_groups, v, mask, with_index)

    def permute_groups(
        self, v: Tensor, mask: Tensor | None, layout: GroupLayout, with_index: bool
    ) -> Permuted:
        """Run `permute` for groups that fill the sequence.

        Args:
            v: (B, N, C) values. N is the number of groups times the group size.
            mask: (B, N) bool, True = padding, or None.
            layout: number and size of the groups.
            with_index: also return the index.

        Returns:
            Permuted values and, if `with_index`, the index (B, N, C) that gathers them.
        """
        steps = self.steps
        if steps is None:
            steps = self.scheduled_steps(layout, v.device)
        spec = SortSpec(layout.groups, self.order == "reference", self.heads)
        module = backends.for_sort(v, spec, with_index)
        return module.permute(v, steps, spec, mask, with_index)

    def scheduled_steps(self, layout: GroupLayout, device: torch.device) -> Tensor | None:
        """Compute the steps of the schedule.

        Args:
            layout: size of the groups and length of the sequence.
            device: device of the steps.

        Returns:
            (C,) steps, or None if the mixer has no schedule.
        """
        if self.schedule is None:
            return None
        return self.schedule.steps(layout.length, layout.size, device)

    def size_and_steps(self, length: int) -> tuple[int, list[int]]:
        """Compute the group size and the steps for sequences of a length.

        Args:
            length: number of tokens.

        Returns:
            The number of tokens in a group and the step of each channel, as Python numbers.
        """
        whole = self.groups.reference_length or length
        size = self.groups.size_in(whole)
        if not isinstance(self.shift, str):
            return min(size, length), list(self.shift)
        if self.schedule is None:
            return min(size, length), [0] * self.inner_dim
        return min(size, length), self.schedule.steps(whole, size, torch.device("cpu")).tolist()

    def extra_repr(self) -> str:
        count, size = self.groups.count, self.groups.size
        groups = f"group_size={size}" if count is None else f"num_groups={count}"
        shift = self.shift if isinstance(self.shift, str) else "list"
        return f"dim={self.dim}, {groups}, shift={shift}, order={self.order}, heads={self.heads}"


def _checked_groups(
    num_groups: int | None, group_size: int | None, pad: bool | None, length: int | None
) -> TokenGroups:
    """Check the settings of the groups, for a layout over `length` tokens."""
    if num_groups is not None and group_size is not None:
        raise bad_argument("group_size", "None with num_groups", group_size)
    if num_groups is not None:
        num_groups = check_integer("num_groups", num_groups, 1)
    size = 2 if group_size is None else check_integer("group_size", group_size, 1)
    default = num_groups is None and group_size is None
    return TokenGroups(size, num_groups, length, default if pad is None else check_bool("pad", pad))
