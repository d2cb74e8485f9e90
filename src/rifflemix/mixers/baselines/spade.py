"""SPADE: a state space for distant tokens and local attention for near tokens."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.mixers._attention.multi_head import ValidTokensFirst, short_block_size
from rifflemix.mixers._attention.softmax_parts import attend_to_cache, new_cache, with_token
from rifflemix.mixers._attention.window import window_attention
from rifflemix.mixers._convolution.long_convolution import NO_ONNX
from rifflemix.mixers.baselines.s4 import S4
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.padding import last_tokens


class Spade(ValidTokensFirst):
    """y = W [LN(S4(x)), LN(local attention(x))] in the bottom layer, local attention above it.

    Local attention is a sliding window over `radius` tokens on each side, or on the left side only
    with `causal=True`. The streaming state contains the keys and values of one window, and the
    state of S4.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `layer_index` decides whether
            the layer has a state space. `dropout` acts on the attention weights.
        radius: tokens that a query sees on each side. Default: 64, or an eighth of `max_length` if
            that is less.
        ssm_every: period of the layers with a state space, starting at the bottom layer. Default:
            the bottom layer only, as published.
        state_size: numbers in the state of each S4 channel.
        shared: other arguments of `ValidTokensFirst`, `MultiHeadMixer` and `TokenMixer`.

    Raises:
        InputError: an option out of range.

    Source: Zuo et al. 2022, "Efficient Long Sequence Modeling via State Space Augmented
    Transformer", section 3, without the relative position bias of its local attention.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("spade", 64, num_heads=4, radius=16, num_layers=2)
        >>> mixer(torch.randn(2, 256, 64)).shape
        torch.Size([2, 256, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="spade",
        title="SPADE (state space + local attention)",
        paper="Zuo et al. 2022, Efficient Long Sequence Modeling via State Space Augmented "
        "Transformer",
        equations="section 3",
        complexity="O(N C (log N + state + window))",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        thread_sums="the gradients of the LayerNorms",
        no_onnx=NO_ONNX,
    )
    fixed_options: ClassVar[frozenset[str]] = frozenset({"keep_positions"})  # S4 moves padding last

    def __init__(
        self,
        dim: int,
        *,
        radius: int | None = None,
        ssm_every: int | None = None,
        state_size: int = 64,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        if radius is None:
            radius = short_block_size(self.max_length)
        self.radius = check_integer("radius", radius, 1)
        period = self.num_layers if ssm_every is None else check_integer("ssm_every", ssm_every, 1)
        self.ssm: S4 | None = None
        if self.layer_index % period == 0:
            self.ssm = S4(self.dim, state_size=state_size, causal=self.causal)
            self.norm_global = nn.LayerNorm(self.dim)
            self.norm_local = nn.LayerNorm(self.dim)
            self.aggregate = nn.Linear(2 * self.dim, self.dim)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        local = super().mix(x, key_padding_mask)
        if self.ssm is None:
            return local
        return self._combine(self.ssm.mix(x, key_padding_mask), local)

    def _combine(self, far: Tensor, near: Tensor) -> Tensor:
        """Combine the outputs (..., C) of the state space and the attention."""
        both = torch.cat((self.norm_global(far), self.norm_local(near)), -1)
        return self.aggregate(both)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return window_attention(
            q,
            k,
            v,
            before=self.radius,
            after=0 if self.causal else self.radius,
            key_padding_mask=key_padding_mask,
            dropout=self.dropout_now,
        )

    @property
    def most_cached(self) -> int:
        return self.radius

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create an empty cache, and the state of S4 if this layer has a state space.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens.

        Returns:
            "keys" and "values", both (B, H, 0, D), which grow to `radius` tokens. With a state
            space also "state", see `S4.start_stream`.
        """
        empty = torch.zeros(
            (batch_size, self.num_heads, 0, self.head_dim),
            device=device,
            dtype=dtype,
        )
        far = {} if self.ssm is None else self.ssm.start_stream(batch_size, device, dtype)
        return {"keys": empty, "values": empty, **far}

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.split(self.qkv(x_t.unsqueeze(1)))
        window = with_token(state, keys=k, values=v)
        keys, values = window["keys"], window["values"]
        near = self.proj(attend_to_cache(q, keys, values, window, dropout=self.dropout_now))
        first = max(0, keys.shape[2] - self.radius)
        padding = window.get("padding")
        after = new_cache(
            None if padding is None else padding[:, first:],
            keys=keys[:, :, first:],
            values=values[:, :, first:],
        )
        if self.ssm is None:
            return near, after
        far, state_after = self.ssm.advance_stream(x_t, state)
        return self._combine(far, near), {**after, **state_after}

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        near, state = super().fill_stream(x, key_padding_mask)
        if self.ssm is None:
            return near, state
        far, state_after = self.ssm.fill_stream(x, key_padding_mask)
        return self._combine(far, near), {**state, **state_after}

    def remember(self, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> dict[str, Tensor]:
        keys, padding = last_tokens(k, key_padding_mask, self.radius, dim=2)
        values, _ = last_tokens(v, key_padding_mask, self.radius, dim=2)
        return new_cache(padding, keys=keys, values=values)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, radius={self.radius}"
