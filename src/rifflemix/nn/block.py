"""The residual block of most models, and its short convolution over tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_bool, check_integer
from rifflemix.compat import stable_order
from rifflemix.errors import bad_argument, check_choice
from rifflemix.nn.layers import Dropout, DropPath, LayerScale
from rifflemix.ops.convolution.backends import short_convolution


class ShortConvolution(nn.Module):
    """Depthwise convolution over a few tokens: y[n, c] = bias[c] + sum_j weight[j, c] x[n - j, c].

    Causal, j is 0 to size - 1. Centered, j is -(size - 1) / 2 to (size - 1) / 2. Tokens outside
    the sequence are zero. Padding, anywhere, counts as absent: the neighbor of a token is the next
    valid token. The initialization is the default of torch.nn.Conv1d.

    Args:
        dim: channels C.
        size: number of tokens, at least 2; an odd number unless `causal`.
        causal: read only the token and the tokens before it.

    Raises:
        InputError: `size` is out of range, or even without `causal`.

    Example:
        >>> import torch
        >>> from rifflemix.nn.block import ShortConvolution
        >>> ShortConvolution(8, 3, causal=True)(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])

    Source: Arora et al. 2023, "Zoology", appendix E, and its released code; Gu and Dao 2023,
    "Mamba", section 3.4.
    """

    def __init__(self, dim: int, size: int, *, causal: bool) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.size = check_integer("short_conv", size, 2)
        self.causal = check_bool("causal", causal)
        if not causal and self.size % 2 == 0:
            raise bad_argument("short_conv", "an odd number with bidirectional mixers", size)
        self.first = 0 if causal else -(self.size // 2)
        bound = 1 / math.sqrt(self.size)
        self.weight = nn.Parameter(torch.empty(self.size, dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Convolve (B, N, C) tokens.

        Args:
            x: (B, N, C) tokens.
            key_padding_mask: (B, N) bool, True = padding. Outputs at padded positions are finite.
            cu_seqlens: offsets of the sequences in a packed batch (1, N, C).
        """
        if cu_seqlens is not None:
            places, length = self._apart(x, cu_seqlens)
            apart = x.new_zeros(1, length, x.shape[2]).index_copy(1, places, x)
            return self._convolve(apart).index_select(1, places)
        if key_padding_mask is None:
            return self._convolve(x)
        moved, order = _valid_first(x, key_padding_mask)
        y = self._convolve(moved)
        return y.gather(1, order.argsort(1).unsqueeze(-1).expand_as(y))

    def init_state(self, batch_size: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Create the streaming state (B, size - 1, C): the last tokens, zero at first."""
        return torch.zeros(batch_size, self.size - 1, self.dim, device=device, dtype=dtype)

    def state_size(self, length: int) -> int:
        """Count the numbers of the streaming state; 0 for a centered convolution."""
        return (self.size - 1) * self.dim if self.causal else 0

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve the next token (B, C); return it and the next state."""
        window = torch.cat((state, x_t.unsqueeze(1)), 1)
        return (window * self.weight.flip(0)).sum(1) + self.bias, window[:, 1:]

    def prefill(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve a prompt (B, N, C); return it and the state after its valid tokens."""
        y = self(x, key_padding_mask=key_padding_mask)
        lengths = torch.full((len(x),), x.shape[1], device=x.device)
        if key_padding_mask is not None:
            x, _ = _valid_first(x, key_padding_mask)
            lengths = (~key_padding_mask).sum(1)
        kept = self.size - 1
        x = F.pad(x, (0, 0, kept, 0))
        index = lengths.unsqueeze(1) + torch.arange(kept, device=x.device)
        return y, x.gather(1, index.unsqueeze(-1).expand(-1, -1, self.dim))

    def _convolve(self, x: Tensor) -> Tensor:
        oldest = 1 - self.size - self.first
        return short_convolution(x, self.weight.flip(0), self.bias, oldest, x.shape[1])

    def _apart(self, x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, int]:
        """Return the positions of packed tokens with zeros between the sequences, and the length.

        With size - 1 zeros, no output reads two sequences.
        """
        places, gap = torch.arange(x.shape[1], device=x.device), self.size - 1
        sequence = torch.bucketize(places, cu_seqlens[1:].to(x.device), right=True)
        return places + gap * sequence, x.shape[1] + gap * (len(cu_seqlens) - 2)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, size={self.size}, causal={self.causal}"


def _valid_first(x: Tensor, key_padding_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the valid tokens to the front, zero the others, and return their places (B, N)."""
    order = stable_order(key_padding_mask.to(torch.uint8), 1)
    x = torch.where(key_padding_mask.unsqueeze(-1), 0.0, x)
    return x.gather(1, order.unsqueeze(-1).expand_as(x)), order


NORMS = ("pre", "post")
_WINDOW = "short_conv"  # name of the state of the short convolution in the state of a block


class Block(nn.Module):
    """A token mixer and a feed-forward branch, each with a norm and a residual connection.

    - "pre": x += path(g1 * drop(mixer(LN(x)))); x += path(g2 * mlp(LN(x))).
    - "post": x = LN(x + path(g1 * drop(mixer(x)))); x = LN(x + path(g2 * mlp(x))).

    Args:
        mixer: a module (B, N, C) -> (B, N, C) that accepts `key_padding_mask`.
        mlp: the feed-forward branch.
        dim: channels C.
        dropout: dropout probability in [0, 1) after the mixer.
        norm: "pre" or "post".
        norm_eps: constant that the norms add to the variance.
        norm_bias: add a bias to the norms.
        layer_scale: initial value of the learned channel factors g1 and g2; None for no factors.
        drop_path: probability in [0, 1) of dropping a branch, per sample.
        short_conv: tokens of a `ShortConvolution` between the norm and the mixer; None for no
            convolution. It is causal if the mixer is causal, else centered.

    Raises:
        InputError: an argument is out of range.
    """

    mixer: Any  # a token mixer, or any module with the same call signature

    def __init__(
        self,
        mixer: nn.Module,
        mlp: nn.Module,
        dim: int,
        *,
        dropout: float = 0.0,
        norm: str = "pre",
        norm_eps: float = 1e-5,
        norm_bias: bool = True,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        short_conv: int | None = None,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps, bias=norm_bias)
        self.short_conv: ShortConvolution | None = None
        if short_conv is not None:
            is_causal = getattr(mixer, "causal", False)
            self.short_conv = ShortConvolution(dim, short_conv, causal=is_causal)
        self.mixer = mixer
        self.drop = Dropout(dropout)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps, bias=norm_bias)
        self.mlp = mlp
        self.scale1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.scale2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path)
        self.is_post_norm = norm == "post"

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Map (B, N, C) to (B, N, C).

        Args:
            x: (B, N, C) tokens.
            key_padding_mask: (B, N) bool, True = padding.
            cu_seqlens: offsets of the sequences in a packed batch, see `TokenMixer.forward`.

        Raises:
            InputError: the mixer does not accept an input, or `cu_seqlens` is given in training
                with `drop_path` above 0.
        """
        if self.is_post_norm:
            x = self.norm1(x + self._mixed(x, key_padding_mask, cu_seqlens))
            return self.norm2(x + self._fed_forward(x))
        x = x + self._mixed(self.norm1(x), key_padding_mask, cu_seqlens)
        return x + self._fed_forward(self.norm2(x))

    def init_state(
        self, batch_size: int, *, device: torch.device, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Create the state before the first token: of the mixer and the short convolution."""
        state: dict[str, Tensor] = self.mixer.init_state(batch_size, device=device, dtype=dtype)
        if self.short_conv is None:
            return state
        window = self.short_conv.init_state(batch_size, device=device, dtype=dtype)
        return {**state, _WINDOW: window}

    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Map the next token (B, C) and return the next state.

        Use it in evaluation mode, with norm="pre" and a mixer that supports streaming.
        """
        inputs, windows = self.norm1(x_t), {}
        if self.short_conv is not None:
            inputs, windows[_WINDOW] = self.short_conv.step(inputs, state[_WINDOW])
            state = {name: part for name, part in state.items() if name != _WINDOW}
        mixed, state = self.mixer.step(inputs, state)
        x_t = x_t + self.scale1(mixed)
        return x_t + self._fed_forward(self.norm2(x_t)), {**state, **windows}

    def prefill(
        self, x: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Map the first tokens (B, N, C) and return the state for `step`."""
        inputs, windows = self.norm1(x), {}
        if self.short_conv is not None:
            inputs, windows[_WINDOW] = self.short_conv.prefill(inputs, key_padding_mask)
        mixed, state = self.mixer.prefill(inputs, key_padding_mask=key_padding_mask)
        x = x + self.scale1(mixed)
        return x + self._fed_forward(self.norm2(x)), {**state, **windows}

    def _mixed(
        self, x: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> Tensor:
        options = {}
        if cu_seqlens is not None:
            if self.training and self.drop_path.p:
                raise bad_argument(
                    "cu_seqlens",
                    "None in training with drop_path, since it drops whole samples",
                    "a packed batch",
                )
            options["cu_seqlens"] = cu_seqlens
        if self.short_conv is not None:
            x = self.short_conv(x, key_padding_mask=key_padding_mask, cu_seqlens=cu_seqlens)
        branch = self.mixer(x, key_padding_mask=key_padding_mask, **options)
        return self.drop_path(self.scale1(self.drop(branch)))

    def _fed_forward(self, x: Tensor) -> Tensor:
        return self.drop_path(self.scale2(self.mlp(x)))
