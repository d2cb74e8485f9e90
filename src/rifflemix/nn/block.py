"""The residual block of most models: a token mixer, then a feed-forward branch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument, check_choice
from rifflemix.nn.layers import Dropout, DropPath, LayerScale
from rifflemix.nn.short_convolution import ShortConvolution

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
            y: Tensor = self.norm2(x + self._fed_forward(x))
            return y
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
        y: Tensor = self.drop_path(self.scale1(self.drop(branch)))
        return y

    def _fed_forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop_path(self.scale2(self.mlp(x)))
        return y
