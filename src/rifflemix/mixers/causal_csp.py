"""Causal CSP: shifts to later tokens, and one rank in a sliding window of each channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from rifflemix.checks import check_divides
from rifflemix.errors import bad_argument
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.permutation_mixer import (
    PermutationMixer,
    RankWindows,
    check_shift,
    check_tokens_back,
)
from rifflemix.ops.permutation import shift_steps

_GROUP, _REACH = 2, 32


class CausalCSP(PermutationMixer):
    """Project values, shift each channel, select a rank in each window, project the result.

    The shift does not wrap around, and sliding windows of the last `group_size` tokens replace the
    groups of `CSP`. Channel c selects the value with rank c mod G in its window. See
    docs/causal-permutations.md for the reason and for the first tokens of a sequence. The
    streaming state has a fixed size: it stores the values that the windows can reach.

    `CSP` with `causal=True` builds this class.

    Args:
        dim: channels C; see `PermutationMixer` and `TokenMixer` for the shared arguments. The
            schedules "power" and "code_exp" use `layer_index` and `num_layers`; `dropout` is
            ignored.
        group_size: tokens G in a window, at most `max_length`. With 1 the mixer only shifts.
            Default: 2.
        shift: a kind of `rifflemix.ops.shift_steps`, or C integers of at least 0. Default:
            "power".
        reach: tokens over which a schedule spreads the channels, in place of N, at most
            `max_length`. Default: 32, or `max_length` if that is less.
        heads: number of contiguous heads into which the channels are split, for shift="head".
        causal: True, the only supported value.
        shared: other arguments of `PermutationMixer` and `TokenMixer`.

    Raises:
        InputError: an option is out of range.

    Source: docs/causal-permutations.md; it is not in the paper of CSP.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("csp", 64, causal=True, group_size=4, reach=16)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
        >>> mixer.state_size(1000) == mixer.state_size(10**6)
        True
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="csp",
        title="CSP",
        paper="Yuan and Xu, Towards Better Multi-head Attention via Channel-wise Sample "
        "Permutation",
        equations="causal variant, not in the paper",
        complexity="O(N C G), windows of G",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
    )

    def __init__(
        self,
        dim: int,
        *,
        group_size: int | None = None,
        shift: str | Sequence[int] | Tensor | None = None,
        reach: int | None = None,
        heads: int = 1,
        causal: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, causal=causal, **shared)
        if not causal:
            raise bad_argument("causal", "True, since CSP is the bidirectional variant", causal)
        self.heads = check_divides("heads", heads, self.inner_dim, "the permuted channels")
        self.shift = check_shift("power" if shift is None else shift, self.inner_dim)
        size = _GROUP
        if group_size is not None:
            size = check_tokens_back("group_size", group_size, self.max_length)
        self.windows = RankWindows(self._steps_back(reach, size), size)

    def _steps_back(self, reach: int | None, group_size: int) -> Tensor:
        """(C,) steps back, on the CPU."""
        if not isinstance(self.shift, str):
            if reach is not None:
                raise bad_argument("reach", "None with a list of shifts", reach)
            if min(self.shift) < 0:
                raise bad_argument("shift", "steps of at least 0", min(self.shift))
            return torch.tensor(self.shift, device="cpu")
        if reach is None:
            reach = _REACH if self.max_length is None else min(_REACH, self.max_length)
        return shift_steps(
            self.shift,
            check_tokens_back("reach", reach, self.max_length),
            self.inner_dim,
            layer_index=self.layer_index,
            num_layers=self.num_layers,
            group_size=group_size,
            heads=self.heads,
            device="cpu",
        )

    def extra_repr(self) -> str:
        shift = self.shift if isinstance(self.shift, str) else "list"
        windows = cast(RankWindows, self.windows)
        return (
            f"dim={self.dim}, causal=True, group_size={windows.window_size}, shift={shift}, "
            f"reach={windows.longest + 1}"
        )
