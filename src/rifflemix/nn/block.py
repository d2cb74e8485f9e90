"""The residual block of most models: a mixer, then a feed-forward branch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rifflemix.errors import bad_argument, check_choice
from rifflemix.nn.drop_path import DropPath
from rifflemix.nn.dropout import Dropout
from rifflemix.nn.layer_scale import LayerScale

NORMS = ("pre", "post")


class Block(nn.Module):
    """A mixer and a feed-forward branch, each with its norm and residual connection.

    "pre": x += path(g1 * drop(mixer(LN(x)))); x += path(g2 * mlp(LN(x))). "post":
    x = LN(x + path(g1 * drop(mixer(x)))); x = LN(x + path(g2 * mlp(x))).

    Args:
        mixer: a module (B, N, C) -> (B, N, C) that takes `key_padding_mask`.
        mlp: the feed-forward branch.
        dim: channels C.
        dropout: probability in [0, 1) after the mixer.
        norm: "pre" or "post".
        norm_eps: what the norms add to a variance.
        norm_bias: give the norms a bias.
        layer_scale: g1 and g2 at the start, learned for each channel; None leaves them out.
        drop_path: probability in [0, 1) of dropping a branch, per sample.

    Raises:
        InputError: an option out of range.
    """

    mixer: Any  # a token mixer, or any module that is called like one

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
        """(B, N, C) -> (B, N, C).

        Args:
            x: tokens.
            key_padding_mask: (B, N) bool, True = padding.
            cu_seqlens: the sequences of one packed row, as `TokenMixer.forward` takes them.

        Raises:
            InputError: as the mixer, or a packed row where branches drop for whole sequences.
        """
        if self.is_post_norm:
            x = self.norm1(x + self._mixed(x, key_padding_mask, cu_seqlens))
            y: Tensor = self.norm2(x + self._fed_forward(x))
            return y
        x = x + self._mixed(self.norm1(x), key_padding_mask, cu_seqlens)
        return x + self._fed_forward(self.norm2(x))

    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, C) -> (B, C): one token after those in the mixer's state, and the next state.

        For "pre" blocks whose mixer streams, outside training.
        """
        mixed, state = self.mixer.step(self.norm1(x_t), state)
        x_t = x_t + self.scale1(mixed)
        return x_t + self._fed_forward(self.norm2(x_t)), state

    def prefill(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, N, C) -> (B, N, C): the first tokens at once, and the state for `step`; as there."""
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
