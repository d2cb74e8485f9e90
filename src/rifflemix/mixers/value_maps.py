"""What CSP and Sliceformer share: two linear maps around what is done to each channel."""

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
    """Value map, `permute` or, with causal=True, `windows`, output map.

    A subclass sets the three layers; `windows` is None in a mixer of both directions.
    """

    value: nn.Linear | nn.Identity
    proj: nn.Linear | nn.Identity
    windows: RankWindows | None
    depends_on_length = False
    """Whether more padding could change what `permute` does, or refuses."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        """Permute values (B, N, C) with their mask channel by channel, in both directions.

        Returns:
            The permuted values, and the index (B, N, C) that gathers them if `with_index`.
        """
        raise NotImplementedError

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Map, permute or filter, map."""
        v, windows = self.value(x), self.windows
        if windows is None:
            mixed = self.permute(v, key_padding_mask)[0]
        else:
            mixed = mix_valid_tokens(lambda ordered, _: windows(ordered), v, key_padding_mask)
        y: Tensor = self.proj(mixed)
        return y

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        """`mix`, the maps on the whole row."""

        def permute(v: Tensor, padding: Tensor | None) -> Tensor:
            return self.permute(v, padding)[0] if self.windows is None else self.windows(v)

        exact = self.windows is None and self.depends_on_length
        y: Tensor = self.proj(segments.mix(permute, self.value(x), exact=exact))
        return y

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """The values that a window may still reach, before the first token zeros."""
        windows = self._streaming_windows()
        shape = (batch_size, windows.depth, windows.steps.numel())
        return {"past": torch.zeros(shape, device=device, dtype=dtype)}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One token (B, C): at the same cost after any number of tokens."""
        mixed, past = self._streaming_windows().step(self.value(x_t), state["past"])
        return self.proj(mixed), {"past": past}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`mix`, and the last values."""
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
    """W_V from C to the permuted channels, and W_O back; the identity where there is no W_O.

    Raises:
        InputError: `inner_dim` under 1, or other than C without an output map.
    """
    inner = dim if inner_dim is None else check_integer("inner_dim", inner_dim, 1)
    if not out_proj and inner != dim:
        raise bad_argument("inner_dim", f"dim = {dim} without an output map", inner)
    value = nn.Linear(dim, inner, bias=bias)
    return value, nn.Linear(inner, dim, bias=out_bias) if out_proj else nn.Identity()
