"""CSP: channel-wise sample permutation in place of attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_divides, check_integer, check_integers
from rifflemix.compat import as_operand, is_known, statically_known_true, take_first
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.base import MixerCard
from rifflemix.mixers.padding import blocks_and_size, layout_length
from rifflemix.mixers.rank_windows import RankWindows, check_tokens_back
from rifflemix.mixers.value_maps import PermutedValues, value_and_output_maps
from rifflemix.ops.permutation import SHIFT_KINDS, SortSpec, shift_steps, unchecked
from rifflemix.ops.permutation.schedules import scheduled_steps
from rifflemix.ops.permutation.spec import Permuted

ORDERS = ("reference", "ascending")
_REACH = 32
_TOKENS = "the number of tokens N"
_PAD_HINT = "use pad=True to let the last group be shorter"


class CSP(PermutedValues):
    """Project values, shift and group-sort each channel, project the result.

    With `causal=True` the shift does not wrap around, and sliding windows of the last `group_size`
    tokens replace the groups. Channel c selects the value with rank c mod G in its window. See
    docs/causal-permutations.md for the reason and for the first tokens of a sequence. The
    streaming state has a fixed size: it stores the values that the windows can reach.

    The paper has no heads, so `num_heads` has no effect. With `heads`, every head has its own
    reference channel. In reference order, a schedule for `shift` never shifts the reference
    channels. An explicit list is used unchanged.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. The schedules "power" and
            "code_exp" use `layer_index` and `num_layers`; `dropout` is ignored.
        num_groups: groups K of ceil(N / K) tokens each; 1 sorts the whole sequence. Not with
            `causal=True`.
        group_size: tokens G in a group. With `causal=True`, tokens in a window, at most
            `max_length`. With 1 the mixer only shifts. Default: 2, unless `num_groups` is set.
        shift: a kind of `rifflemix.ops.shift_steps`, or C integers (a sequence, array or tensor).
            Default: "linear", or "power" with `causal=True`.
        order: "reference" (as published, the default) or "ascending" (as in all experiments of
            the paper). Not with `causal=True`.
        pad: let the last group be shorter if the group size does not divide N; False raises an
            error. Default: False if `num_groups` or `group_size` is set, else True. Not with
            `causal=True`.
        layout: length that `num_groups` and the schedules of `shift` divide. "max_length" (the
            default if `max_length` is set): the result does not depend on the lengths of other
            samples. "length": the tokens of the input, padding included. Not with `causal=True`.
        reach: only with `causal=True`: the tokens over which a schedule spreads the channels, in
            place of N, at most `max_length`. Default: 32, or `max_length` if that is less.
        heads: number of contiguous heads into which the permuted channels are split.
        inner_dim: number of permuted channels. `shift` lists and `heads` refer to these channels.
            Default: C.
        value_proj: use a value projection. Without a projection, the tokens are permuted.
        bias: add a bias to the value projection.
        out_proj: use an output projection. Without a projection, the permuted values are the
            output.
        out_bias: add a bias to the output projection.
        shared: other arguments of `TokenMixer`.

    Raises:
        InputError: an option is out of range or does not fit `causal`, both `num_groups` and
            `group_size` are set, or `value_proj=False` with `bias` or another `inner_dim`.

    Source: Yuan and Xu, "Towards Better Multi-head Attention via Channel-wise Sample
    Permutation", equations (3)-(5) and section 3.2.2. The causal variant is not in the paper.
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
        by_position="its groups are neighbouring positions",
    )

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
        reach: int | None = None,
        heads: int = 1,
        inner_dim: int | None = None,
        value_proj: bool = True,
        bias: bool = False,
        out_proj: bool = True,
        out_bias: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        self.order = "reference" if order is None else order
        check_choice("order", self.order, ORDERS)
        value, self.proj = value_and_output_maps(
            self.dim, inner_dim, bias=bias, out_proj=out_proj, out_bias=out_bias
        )
        self.inner_dim = value.out_features
        if not value_proj and (bias or self.inner_dim != self.dim):
            raise bad_argument("value_proj", "True with a bias or another inner_dim", False)
        self.value = value if value_proj else nn.Identity()
        self.heads = check_divides("heads", heads, self.inner_dim, "the permuted channels")
        self.num_groups, self.group_size = _check_groups(num_groups, group_size)
        default = num_groups is None and group_size is None
        self.pad = default if pad is None else check_bool("pad", pad)
        self.layout_length = layout_length(layout, self.max_length)
        self.depends_on_length = self.layout_length is None or not self.pad
        if shift is None:
            shift = "power" if self.causal else "linear"
        self.shift = _check_shift(shift, self.inner_dim)
        self.keep_constants(lambda: {"steps": self._constant_steps()})
        self.windows = None
        if self.causal:
            self._refuse(num_groups=num_groups, order=order, pad=pad, layout=layout)
            if group_size is not None:
                check_tokens_back("group_size", self.group_size, self.max_length)
            self.windows = RankWindows(self._causal_steps(reach), self.group_size)
        elif reach is not None:
            raise bad_argument("reach", "None without causal=True", reach)

    def _refuse(self, **options: Any) -> None:
        """Raise if an option is set that only the bidirectional variant supports."""
        for name, value in options.items():
            if value is not None:
                raise bad_argument(name, "None with causal=True, which has no groups", repr(value))

    def _constant_steps(self) -> Tensor | None:
        """(C,) steps, or None if unused or dependent on the sequence length."""
        if self.causal:
            return None
        if not isinstance(self.shift, str):
            return torch.tensor(self.shift)
        most = self.layout_length
        if most is None:
            return None
        return self._scheduled_steps(most, most, self._group_size(most), torch.device("cpu"))

    def _causal_steps(self, reach: int | None) -> Tensor:
        """(C,) steps back, on the CPU."""
        if not isinstance(self.shift, str):
            if reach is not None:
                raise bad_argument("reach", "None beside a list of shifts", reach)
            if min(self.shift) < 0:
                raise bad_argument("shift", "steps of at least 0", min(self.shift))
            return torch.tensor(self.shift, device="cpu")
        if reach is None:
            reach = _REACH if self.max_length is None else min(_REACH, self.max_length)
        reach = check_tokens_back("reach", reach, self.max_length)
        return shift_steps(
            self.shift,
            reach,
            self.inner_dim,
            layer_index=self.layer_index,
            num_layers=self.num_layers,
            group_size=self.group_size,
            heads=self.heads,
            device="cpu",
        )

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """Shift and sort values (B, N, C) channel by channel.

        Returns:
            Permuted values and, if `with_index`, the index (B, N, C) that gathers them.
        """
        length = v.shape[1]
        if not self.pad:
            self._check_groups_fill(length)
        if not is_known(length):
            return self._permute_any_length(v, mask, with_index)
        laid_out, count = self.layout_length or length, self.num_groups
        # Inlined `_group_size`: a function call would slow down small inputs.
        size = min(self.group_size, laid_out) if count is None else -(-laid_out // count)
        steps = self._shift_steps(laid_out, laid_out, size, v.device)
        size = min(size, length)
        groups = -(-length // size)
        if groups * size == length:
            return self.permute_groups(v, steps, groups, mask, with_index)
        v, mask = filled(v, mask, groups * size - length)
        y, index = self.permute_groups(v, steps, groups, mask, with_index)
        return y[:, :length], None if index is None else index[:, :length]

    def _group_size(self, laid_out: int) -> int:
        """Tokens per group if the groups divide `laid_out` tokens."""
        if self.num_groups is None:
            return min(self.group_size, laid_out)
        return -(-laid_out // self.num_groups)

    def size_and_steps(self, length: int) -> tuple[int, list[int]]:
        """Return the group size and the steps as Python numbers."""
        laid_out = self.layout_length or length
        size = self._group_size(laid_out)
        if not isinstance(self.shift, str):
            return min(size, length), list(self.shift)
        steps = self._scheduled_steps(laid_out, laid_out, size, torch.device("cpu"))
        return min(size, length), [0] * self.inner_dim if steps is None else steps.tolist()

    def permute_groups(
        self, v: Tensor, steps: Tensor | None, groups: int, mask: Tensor | None, with_index: bool
    ) -> Permuted:
        """Run `permute` with steps (C,) for groups that fill the sequence."""
        spec = SortSpec(groups, self.order == "reference", self.heads)
        if steps is None:
            return unchecked.group_sort(v, spec, mask, with_index)
        return unchecked.channel_permute(v, steps, spec, mask, with_index)

    def _permute_any_length(self, v: Tensor, mask: Tensor | None, with_index: bool) -> Permuted:
        """Run `permute` for a symbolic length in a traced graph."""
        length = v.shape[1]
        tokens = cast(Tensor, as_operand(length, v.device))  # a symbolic size becomes a tensor
        if self.layout_length is not None:
            most = self.layout_length
            size = self._group_size(most)
            steps = self._shift_steps(most, most, size, v.device)
            is_one = self.num_groups == 1
            groups, size = (1, length) if is_one else blocks_and_size(size, length)
        elif self.num_groups is None:
            groups, size = blocks_and_size(self.group_size, length)
            steps = self._shift_steps(length, tokens, tokens.clamp(max=self.group_size), v.device)
        elif self.num_groups == 1:
            groups, size = 1, length
            steps = self._shift_steps(length, tokens, tokens, v.device)
        else:
            return self._permute_spread(v, tokens, mask, with_index)
        missing = groups * size - length
        if statically_known_true(missing == 0):
            return self.permute_groups(v, steps, groups, mask, with_index)
        v, mask = filled(v, mask, missing)
        y, index = self.permute_groups(v, steps, groups, mask, with_index)
        return take_first(y, length, 1), None if index is None else take_first(index, length, 1)

    def _permute_spread(
        self, v: Tensor, tokens: Tensor, mask: Tensor | None, with_index: bool
    ) -> Permuted:
        """Run `permute` for a symbolic length and a fixed number of groups.

        Each group gets one extra padded position. Otherwise a group could have a single token, a
        size for which compilers make a separate graph. Shift and sort ignore padding anywhere.
        """
        groups, length = cast(int, self.num_groups), v.shape[1]
        places = (length - 1) // groups + 2  # as a sum: compilers can prove it is at least 2
        wider = as_operand(places, v.device)
        here = wider - 1
        place = torch.arange(groups * places, device=v.device)
        token = place // wider * here + place % wider
        padded = (place % wider == here) | (token >= tokens)
        token = torch.minimum(token, tokens - 1)
        if mask is not None:
            padded = padded | mask.index_select(1, token)
        steps = self._shift_steps(length, tokens, here, v.device)
        y, index = self.permute_groups(
            v.index_select(1, token), steps, groups, padded.expand(v.shape[0], -1), with_index
        )
        position = torch.arange(length, device=v.device)
        place = position // here * wider + position % here
        return y.index_select(1, place), None if index is None else token[index[:, place]]

    def _check_groups_fill(self, length: int) -> None:
        most = self.layout_length
        if self.num_groups is None:
            check_divides("group_size", self.group_size, length, _TOKENS, _PAD_HINT)
        elif most is None:
            check_divides("num_groups", self.num_groups, length, _TOKENS, _PAD_HINT)
        else:
            check_divides("num_groups", self.num_groups, most, "max_length", _PAD_HINT)
            size = self._group_size(most)
            if size < most:  # a single group fills a sequence of any length
                check_divides("max_length / num_groups", size, length, _TOKENS, _PAD_HINT)

    def _shift_steps(
        self, length: int, modulus: int | Tensor, size: int | Tensor, device: torch.device
    ) -> Tensor | None:
        """(C,) steps for groups of `size` tokens, or None without a shift."""
        if self.steps is not None:
            return self.steps
        return self._scheduled_steps(length, modulus, size, device)

    def _scheduled_steps(
        self, length: int, modulus: int | Tensor, size: int | Tensor, device: torch.device
    ) -> Tensor | None:
        """`_shift_steps` from the schedule."""
        if self.shift == "none":
            return None
        steps = scheduled_steps(
            cast(str, self.shift),
            length,
            modulus,
            self.inner_dim,
            self.layer_index,
            self.num_layers,
            size,
            self.heads,
            device,
        )
        if self.order == "ascending":
            return steps
        channels = torch.arange(self.inner_dim, device=device)
        return steps.masked_fill(channels % (self.inner_dim // self.heads) == 0, 0)

    def extra_repr(self) -> str:
        groups = (
            f"num_groups={self.num_groups}" if self.num_groups else f"group_size={self.group_size}"
        )
        shift = self.shift if isinstance(self.shift, str) else "list"
        if self.windows is not None:
            reach = f"reach={self.windows.longest + 1}"
            return f"dim={self.dim}, causal=True, {groups}, shift={shift}, {reach}"
        return f"dim={self.dim}, {groups}, shift={shift}, order={self.order}, heads={self.heads}"


def filled(v: Tensor, mask: Tensor | None, missing: int) -> tuple[Tensor, Tensor]:
    """Append `missing` padded positions to values and mask."""
    mask = v.new_zeros(v.shape[:2], dtype=torch.bool) if mask is None else mask
    return F.pad(v, (0, 0, 0, missing)), F.pad(mask, (0, missing), value=True)


def _check_groups(num_groups: int | None, group_size: int | None) -> tuple[int | None, int]:
    """Check both settings; `num_groups` takes precedence over the returned group size."""
    if num_groups is not None and group_size is not None:
        raise bad_argument("group_size", "None beside num_groups", group_size)
    if num_groups is not None:
        num_groups = check_integer("num_groups", num_groups, 1)
    return num_groups, 2 if group_size is None else check_integer("group_size", group_size, 1)


def _check_shift(shift: str | Sequence[int] | Tensor, channels: int) -> str | tuple[int, ...]:
    if isinstance(shift, str):
        check_choice("shift", shift, SHIFT_KINDS)
        return shift
    steps = check_integers("shift", shift)
    if len(steps) != channels:
        raise bad_argument(
            "shift", f"a kind of shift or {channels} integers", f"{len(steps)} of them"
        )
    return steps
