"""Base class of CSP and Sliceformer: projections around a channel-wise permutation.

In causal variants, each channel selects one rank in a sliding window instead.
docs/causal-permutations.md defines them and compares alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_integers
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.packed import Segments
from rifflemix.mixers.padding import fill_valid_tokens, mix_valid_tokens, take_tokens
from rifflemix.nn.layers import KeepsConstants
from rifflemix.ops.permutation import SHIFT_KINDS, backends, eager
from rifflemix.ops.permutation.arguments import Permuted


def check_tokens_back(name: str, value: int, max_length: int | None) -> int:
    """Check that a window or reach has at most `max_length` tokens."""
    count = check_integer(name, value, 1)
    if max_length is not None and count > max_length:
        expected = f"at most max_length = {max_length} tokens with causal=True"
        raise bad_argument(name, expected, count, "no sequence has more")
    return count


class RankWindows(KeepsConstants):
    """Select a value by rank in a sliding window of each channel.

    The window of channel c contains G tokens and ends J_c tokens back. The output is the value with
    rank c mod G. Values before the first token are zero. The module has no parameters.

    Args:
        steps: (C,) int64 on the CPU; the window of channel c ends J_c = steps[c] tokens back.
        window_size: tokens G in a window.
    """

    steps: Tensor
    ranks: Tensor
    sources: Tensor

    def __init__(self, steps: Tensor, window_size: int) -> None:
        super().__init__()
        self.longest, self.window_size = int(steps.max()), window_size
        self.depth = self.longest + window_size - 1
        """Number of earlier tokens on which an output depends."""
        self.keep_constants(
            lambda: {
                "steps": steps,
                "ranks": torch.arange(len(steps)) % window_size,
                # (G, C): indices of the window among the last `depth + 1` tokens.
                "sources": self.depth - steps - torch.arange(window_size).flip(0).unsqueeze(1),
            }
        )

    def forward(self, v: Tensor) -> Tensor:
        """Filter values (B, N, C); padding must come last."""
        if self.longest > 0:
            v = backends.for_tokens(v).causal_shift(v, self.steps, self.longest)
        if self.window_size > 1:
            module = backends.for_windows(v, self.window_size)
            v = module.rank_filter(v, self.ranks, self.window_size)
        return v

    def step(self, v_t: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Filter the next value (B, C) of each sequence.

        `past` (B, depth, C) contains the last values. It is not modified, so a ring buffer would
        need a copy too.

        Returns:
            Output (B, C), and the next `past`.
        """
        seen = torch.cat((past, v_t.unsqueeze(1)), 1)
        window = seen.gather(1, self.sources.expand(seen.shape[0], -1, -1))
        return eager.token_of_rank(window, self.ranks), seen[:, 1:]

    def remember(self, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Return the last valid values (B, depth, C); padding must come last."""
        end: Any = v.shape[1] if key_padding_mask is None else (~key_padding_mask).sum(1, True)
        index = end - self.depth + torch.arange(self.depth, device=v.device)
        return take_tokens(v, index.expand(v.shape[0], -1), 1)


class PermutationMixer(KeepsConstants, TokenMixer):
    """Project values, permute each channel, project the result.

    A bidirectional subclass implements `permute`. A causal subclass sets `windows` instead.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        inner_dim: number of permuted channels. Default: C.
        value_proj: use a value projection. Without a projection, the tokens are permuted.
        bias: add a bias to the value projection.
        out_proj: use an output projection. Without a projection, the permuted values are the
            output.
        out_bias: add a bias to the output projection.
        shared: other arguments of `TokenMixer`.

    Raises:
        InputError: `inner_dim` is less than 1, or differs from C although a projection is missing.
            Also for `value_proj=False` with `bias`.
    """

    value: nn.Linear | nn.Identity
    proj: nn.Linear | nn.Identity
    windows: RankWindows | None
    depends_on_length = False
    """Whether `permute` depends on the padded length or raises for some lengths."""

    def __init__(
        self,
        dim: int,
        *,
        inner_dim: int | None = None,
        value_proj: bool = True,
        bias: bool = False,
        out_proj: bool = True,
        out_bias: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        inner = self.dim if inner_dim is None else check_integer("inner_dim", inner_dim, 1)
        if not out_proj and inner != self.dim:
            raise bad_argument("inner_dim", f"dim = {dim} without an output projection", inner)
        if not value_proj and (bias or inner != self.dim):
            raise bad_argument("value_proj", "True with a bias or another inner_dim", False)
        self.inner_dim = inner
        # `value` draws its weights first but is registered last: seeds and the optimizer states in
        # checkpoints depend on these orders.
        value = nn.Linear(self.dim, inner, bias=bias)
        self.proj = nn.Linear(inner, self.dim, bias=out_bias) if out_proj else nn.Identity()
        self.value = value if value_proj else nn.Identity()
        self.windows = None

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """Permute values (B, N, C) channel by channel (bidirectional variant).

        Args:
            v: (B, N, C) values.
            mask: (B, N) bool, True = padding, or None.
            with_index: also return the index.

        Returns:
            Permuted values and, if `with_index`, the index (B, N, C) that gathers them.
        """
        raise NotImplementedError

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        v, windows = self.value(x), self.windows
        if windows is None:
            mixed = self.permute(v, key_padding_mask)[0]
        else:
            mixed = mix_valid_tokens(lambda ordered, _: windows(ordered), v, key_padding_mask)
        return self.proj(mixed)

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        def permute(v: Tensor, padding: Tensor | None) -> Tensor:
            return self.permute(v, padding)[0] if self.windows is None else self.windows(v)

        exact = self.windows is None and self.depends_on_length
        return self.proj(segments.mix(permute, self.value(x), exact=exact))

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create zeros for the values before the first token.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens.

        Returns:
            "past", (B, D, inner_dim): the last D values, on which an output may depend.
        """
        windows = self._streaming_windows()
        shape = (batch_size, windows.depth, windows.steps.numel())
        return {"past": torch.zeros(shape, device=device, dtype=dtype)}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mixed, past = self._streaming_windows().step(self.value(x_t), state["past"])
        return self.proj(mixed), {"past": past}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        windows = self._streaming_windows()

        def fill(v: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
            return windows(v), {"past": windows.remember(v, mask)}

        mixed, state = fill_valid_tokens(fill, self.value(x), key_padding_mask)
        return self.proj(mixed), state

    def _streaming_windows(self) -> RankWindows:
        if self.windows is None:
            raise AssertionError("a bidirectional mixer does not stream")
        return self.windows


def check_shift(shift: str | Sequence[int] | Tensor, channels: int) -> str | tuple[int, ...]:
    """Check the shift of each channel: a kind of `shift_steps`, or one integer per channel."""
    if isinstance(shift, str):
        check_choice("shift", shift, SHIFT_KINDS)
        return shift
    steps = check_integers("shift", shift)
    if len(steps) != channels:
        expected = f"a kind of shift or {channels} integers"
        raise bad_argument("shift", expected, f"{len(steps)} integers")
    return steps
