"""The residual block of most models: a token mixer, then a feed-forward branch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rifflemix.errors import bad_argument, check_choice
from rifflemix.nn.drop_path import DropPath
from rifflemix.nn.dropout import Dropout
from rifflemix.nn.layer_scale import LayerScale

NORMS = ("pre", "post")


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
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps, bias=norm_bias)
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

    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Map the next token (B, C) and return the next state.

        Use it in evaluation mode, with norm="pre" and a mixer that supports streaming.
        """
        mixed, state = self.mixer.step(self.norm1(x_t), state)
        x_t = x_t + self.scale1(mixed)
        return x_t + self._fed_forward(self.norm2(x_t)), state

    def prefill(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Map the first tokens (B, N, C) and return the state for `step`."""
        mixed, state = self.mixer.prefill(self.norm1(x))
        x = x + self.scale1(mixed)
        return x + self._fed_forward(self.norm2(x)), state

    def _mixed(
        self, x: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> Tensor:
        options = {}
        if cu_seqlens is not None:
            if self.training and self.drop_path.p:
                raise bad_argument(
                    "cu_seqlens", "None where drop_path drops sequences, one a row", "a packed row"
                )
            options["cu_seqlens"] = cu_seqlens
        branch = self.mixer(x, key_padding_mask=key_padding_mask, **options)
        y: Tensor = self.drop_path(self.scale1(self.drop(branch)))
        return y

    def _fed_forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop_path(self.scale2(self.mlp(x)))
        return y
