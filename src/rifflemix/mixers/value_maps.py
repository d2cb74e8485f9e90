"""Base class of CSP and Sliceformer: projections before and after a channel-wise permutation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.packed import Segments
from rifflemix.mixers.padding import fill_valid_tokens, mix_valid_tokens
from rifflemix.mixers.rank_windows import RankWindows
from rifflemix.nn.constants import KeepsConstants
from rifflemix.ops.permutation.spec import Permuted


class PermutedValues(KeepsConstants, TokenMixer):
    """Project values, permute each channel, project the result.

    The permutation is `windows` with `causal=True`, else `permute`. A subclass sets `value`, `proj`
    and `windows`; `windows` is None in a bidirectional mixer.
    """

    value: nn.Linear | nn.Identity
    proj: nn.Linear | nn.Identity
    windows: RankWindows | None
    depends_on_length = False
    """Whether `permute` depends on the padded length or raises for some lengths."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """Permute values (B, N, C) channel by channel (bidirectional variant).

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
        y: Tensor = self.proj(mixed)
        return y

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        def permute(v: Tensor, padding: Tensor | None) -> Tensor:
            return self.permute(v, padding)[0] if self.windows is None else self.windows(v)

        exact = self.windows is None and self.depends_on_length
        y: Tensor = self.proj(segments.mix(permute, self.value(x), exact=exact))
        return y

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create zeros for the values before the first token."""
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
            raise AssertionError("a mixer of both directions does not stream")
        return self.windows


def value_and_output_maps(
    dim: int, inner_dim: int | None, *, bias: bool, out_proj: bool, out_bias: bool
) -> tuple[nn.Linear, nn.Linear | nn.Identity]:
    """Build the value projection W_V and the output projection W_O.

    W_V maps C channels to `inner_dim` channels, and W_O maps them back. Without `out_proj`, W_O is
    the identity.

    Raises:
        InputError: `inner_dim` is less than 1, or differs from C without an output projection.
    """
    inner = dim if inner_dim is None else check_integer("inner_dim", inner_dim, 1)
    if not out_proj and inner != dim:
        raise bad_argument("inner_dim", f"dim = {dim} without an output map", inner)
    value = nn.Linear(dim, inner, bias=bias)
    return value, nn.Linear(inner, dim, bias=out_bias) if out_proj else nn.Identity()
