"""The shared layer of MEGA and MEGA-chunk."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_probability, check_tokens, shown
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.softmax_parts import (
    new_cache,
    token_positions,
    visible,
    with_token,
)
from rifflemix.mixers._convolution.state_space import DampedEMA, both_directions
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.padding import (
    fill_valid_tokens,
    mix_valid_tokens,
    newest_in_slots,
    take_tokens,
)
from rifflemix.mixers.token_groups import fill_groups, group_size, join_groups
from rifflemix.ops.dropout.backends import dropout as drop
from rifflemix.ops.dropout.backends import dropout_attention

ATTENTION_FNS = ("softmax", "laplace")
MIXINGS = ("attention", "csp")
CSP_OPTIONS = ("num_groups", "group_size", "shift", "order", "pad", "layout", "heads")


class RelativeBias(nn.Module):
    """A learned bias for each distance between two of at most `max_length` tokens.

    Args:
        max_length: maximum number of tokens.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.rel_pos_bias = nn.Parameter(torch.empty(2 * max_length - 1).normal_(std=0.02))

    def forward(self, length: int) -> Tensor:
        """Return the bias of distance j - i for query i and key j."""
        positions = torch.arange(length, device=self.rel_pos_bias.device)
        return self.at(positions - positions.unsqueeze(1))

    def at(self, distance: Tensor) -> Tensor:
        """Return the bias of each distance from query to key (int64, any shape)."""
        return self.rel_pos_bias[distance + self.max_length - 1]


class MegaLayer(TokenMixer):
    """MEGA layer without its norm: moving average, single-head attention and two gates.

    mx = EMA(x), v = silu(W_v x), z = silu(W mx), q and k = gamma z + beta, h = attention(q, k) v,
    y = x + u (silu(hx + W_h (h r)) - x). The gate u (sigmoid), r (silu) and hx (no activation) are
    projections of mx.

    This formula contains a residual connection. `forward` uses its input x as the residual stream.
    In a block x + mixer(norm(x)), the gate u therefore chooses between norm(x) and the new value.
    It does not act on the residual stream of the block. `gated_residual` is the layer as published:
    the gate acts on the residual stream. A MEGA host model calls it and adds no residual
    connection.

    Valid tokens are moved to the front first, so distances, chunks and averages ignore padding.
    Parameters have the names of the released code.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` has no effect: MEGA
            has one head. `dropout` acts on the attention weights.
        chunk_size: tokens in an attention chunk; None for attention over all tokens.
        z_dim: channels of queries and keys. Default: max(1, C // 2).
        hidden_dim: channels of the values. Default: 2 C.
        ema_dim: moving averages per channel.
        bidirectional: also average over later tokens. Default: True unless `causal`.
        attention_fn: "softmax" of q k / sqrt(z_dim) + bias, or "laplace", elementwise, of
            q k / (number of visible keys) + bias.
        mixing: "attention", or "csp" to permute the values instead. "csp" has no queries, keys or
            position bias.
        hidden_dropout: probability of dropping an entry of v. No effect with mixing="csp", as in
            the released code.
        layer_dropout: probability of dropping an entry of the moving average and the new value.
        csp_options: options of `CSP` for mixing="csp": num_groups, group_size, shift, order, pad,
            layout, heads.
        shared: other arguments of `TokenMixer`.

    Raises:
        InputError: an option is out of range, or two options exclude each other.

    Source: Ma et al. 2023, equations (3)-(14); laplace: (16); mixing="csp": Yuan and Xu,
    "Towards Better Multi-head Attention via Channel-wise Sample Permutation", section 4.
    """

    def __init__(
        self,
        dim: int,
        *,
        chunk_size: int | None = None,
        z_dim: int | None = None,
        hidden_dim: int | None = None,
        ema_dim: int = 16,
        bidirectional: bool | None = None,
        attention_fn: str = "softmax",
        hidden_dropout: float = 0.0,
        layer_dropout: float = 0.0,
        mixing: str = "attention",
        csp_options: dict[str, Any] | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("attention_fn", attention_fn, ATTENTION_FNS)
        check_choice("mixing", mixing, MIXINGS)
        z_dim = max(1, self.dim // 2) if z_dim is None else check_integer("z_dim", z_dim, 1)
        hidden_dim = 2 * self.dim if hidden_dim is None else hidden_dim
        self.z_dim = 0 if mixing == "csp" else z_dim
        self.hidden_dim = check_integer("hidden_dim", hidden_dim, 1)
        self.hidden_dropout = check_probability("hidden_dropout", hidden_dropout)
        self.layer_dropout = check_probability("layer_dropout", layer_dropout)
        self.chunk_size = chunk_size
        self.attention_fn, self.mixing = attention_fn, mixing
        self.move = DampedEMA(
            self.dim, ema_dim, bidirectional=both_directions(bidirectional, self.causal)
        )
        self.v_proj = nn.Linear(self.dim, self.hidden_dim)
        self.mx_proj = nn.Linear(self.dim, self.z_dim + self.hidden_dim + 2 * self.dim)
        self.h_proj = nn.Linear(self.hidden_dim, self.dim)
        for linear in (self.v_proj, self.mx_proj, self.h_proj):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        if mixing == "csp":
            self.permutation = self._make_permutation(csp_options or {})
        else:
            self._make_attention(csp_options)

    def _make_attention(self, csp_options: dict[str, Any] | None) -> None:
        if csp_options is not None:
            raise bad_argument("csp_options", "None without mixing='csp'", csp_options)
        self.gamma = nn.Parameter(torch.empty(2, self.z_dim).normal_(std=0.02))
        self.beta = nn.Parameter(torch.zeros(2, self.z_dim))
        longest = self.max_length if self.chunk_size is None else self.chunk_size
        self.rel_pos_bias = RelativeBias(check_integer("max_length", longest, 1))

    def _make_permutation(self, options: Any) -> CSP:
        if self.causal:
            raise bad_argument("mixing", "'attention' with causal=True", "'csp'")
        if not isinstance(options, dict):
            raise bad_argument("csp_options", "a dict of options", shown(options))
        for name in options:
            check_choice("csp_options", name, CSP_OPTIONS)
        return CSP(
            self.hidden_dim,
            value_proj=False,
            out_proj=False,
            max_length=self.max_length,
            layer_index=self.layer_index,
            num_layers=self.num_layers,
            **options,
        )

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        # `x` is also the residual stream.
        return self._gate(x, x, key_padding_mask)

    def gated_residual(
        self, x: Tensor, residual: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Apply the layer with its gate on a separate residual stream.

        Args:
            x: (B, N, C) tokens, normalized in a pre-norm block.
            residual: (B, N, C) residual stream of these tokens.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, N, C) residual stream after the layer, unchanged at padded positions.

        Raises:
            InputError: wrong shape, dtype or device, or N above `max_length`.
        """
        self._check_input(x, key_padding_mask)
        check_tokens("residual", residual)
        if residual.shape != x.shape:
            raise bad_argument("residual", f"the shape {tuple(x.shape)} of x", residual.shape)
        if key_padding_mask is None:
            return self._gate(x, residual, None)
        padded = key_padding_mask.unsqueeze(-1)
        y = self._gate(
            torch.where(padded, 0.0, x), torch.where(padded, 0.0, residual), key_padding_mask
        )
        return torch.where(padded, residual, y)

    def _gate(self, x: Tensor, residual: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        both = mix_valid_tokens(self._gate_and_value, x, key_padding_mask)
        gate, value = both.chunk(2, -1)
        return residual + gate * (value - residual)

    def _gate_and_value(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute (B, N, 2 C): the gate u and the new value. Padding is last."""
        v = F.silu(self.v_proj(x))
        return self._attended(v, self._moved(self.move(x)), mask)

    def _moved(self, mx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._split(drop(mx, self.layer_dropout if self.training else 0.0))

    def _attended(
        self, v: Tensor, maps: tuple[Tensor, Tensor, Tensor, Tensor], mask: Tensor | None
    ) -> Tensor:
        """Compute the gate u and the new value, (B, N, 2 C), from v and the output of `_split`."""
        u, z, r, hx = maps
        if self.mixing == "csp":
            h = self.permutation(v, key_padding_mask=mask)
        else:
            q, k = self._queries_and_keys(z)
            v = drop(v, self.hidden_dropout if self.training else 0.0)
            h = self._attend(q, k, v, mask)
        value = F.silu(hx + self.h_proj(h * r))
        return torch.cat((u, drop(value, self.layer_dropout if self.training else 0.0)), -1)

    def _split(self, mx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project the moving average to u, z, r (activated) and hx (not activated)."""
        sizes = [self.dim, self.z_dim, self.hidden_dim, self.dim]
        u, z, r, hx = self.mx_proj(mx).split(sizes, -1)
        return u.sigmoid(), F.silu(z), F.silu(r), hx

    def _queries_and_keys(self, z: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (z.unsqueeze(-2) * self.gamma + self.beta).unbind(-2)
        return q, k

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend within chunks: (B, N, z) queries and keys, (B, N, h) values -> (B, N, h)."""
        length = q.shape[1]
        size = length
        if self.chunk_size is not None:
            size = group_size(self.chunk_size, length)
            k, v = (fill_groups(t, None, size, masked=False)[0] for t in (k, v))
            q, mask = fill_groups(q, mask, size)
        q, k, v = (t.unflatten(1, (-1, size)) for t in (q, k, v))
        visible = self._visible(size, mask, q.device)
        bias = self.rel_pos_bias(size).to(q.dtype)
        return join_groups(self._weigh(q, k, v, bias, visible), length, 1)

    def _visible(self, size: int, mask: Tensor | None, device: torch.device) -> Tensor | None:
        """Return a mask of visible keys, broadcastable to (B, chunks, size, size), or None."""
        if self.causal:
            # Padding is last, so no valid token sees it.
            return torch.ones(size, size, dtype=torch.bool, device=device).tril()
        if mask is None:
            return None
        chunks: Tensor = mask.unflatten(1, (-1, 1, size))
        # A chunk with only padding sees itself, because a softmax over nothing is NaN.
        return ~chunks | chunks.all(-1, keepdim=True)

    def _weigh(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, visible: Tensor | None
    ) -> Tensor:
        """Attend from (..., Q, z) to (..., K, z), with a bias broadcastable to (..., Q, K)."""
        dropout = self.dropout_now
        if self.attention_fn == "softmax":
            if visible is not None:
                bias = bias.masked_fill(~visible, -math.inf)
            bias = bias.expand(*q.shape[:-1], k.shape[-2])
            return dropout_attention(q, k, v, mask=bias, dropout_p=dropout)
        if visible is None:
            weights = _laplace(q @ k.mT / k.shape[-2] + bias)
        else:
            weights = _laplace(q @ k.mT / visible.sum(-1, keepdim=True) + bias) * visible
        return drop(weights, dropout) @ v

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create the moving averages and a cache.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the keys and values.

        Returns:
            "averages" (B, C, ema_dim), "keys" (B, M, z_dim) and "values" (B, M, hidden_dim). M is
            `chunk_size`. Without chunks, M is 0 and grows by one token per step.
        """
        empty = torch.zeros(
            batch_size,
            self.chunk_size or 0,
            1,
            device=device,
            dtype=dtype,
        )
        return {
            "averages": self.move.init_state(batch_size).to(empty.device),
            "keys": empty.expand(-1, -1, self.z_dim),
            "values": empty.expand(-1, -1, self.hidden_dim),
        }

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mx, averages = self.move.step(x_t, state["averages"])
        u, z, r, hx = self._split(mx)
        q, k = self._queries_and_keys(z)
        v = F.silu(self.v_proj(x_t))
        cache, distance, seen = self._remembered(k.unsqueeze(1), v.unsqueeze(1), state)
        bias = self.rel_pos_bias.at(distance).to(q.dtype)
        h = self._weigh(q.unsqueeze(1), cache["keys"], cache["values"], bias, seen).squeeze(1)
        y = x_t + u * (F.silu(hx + self.h_proj(h * r)) - x_t)
        return y, {"averages": averages, **cache}

    def _remembered(
        self, k: Tensor, v: Tensor, state: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Add a token to the cache; return the cache, distances and mask."""
        position = state["position"].view(-1, 1, 1)
        if self.chunk_size is None:
            cache = with_token(state, keys=k, values=v)
            seen = visible(cache)
            tokens = token_positions(cache, cache["keys"].shape[1], k.device)
            if seen is None:
                return cache, tokens - tokens[-1], None
            return cache, tokens.unsqueeze(1) - position, seen.unsqueeze(1)
        slots = torch.arange(self.chunk_size, device=k.device)
        slot = position % self.chunk_size
        here = (slots == slot).mT
        cache = {
            "keys": torch.where(here, k, state["keys"]),
            "values": torch.where(here, v, state["values"]),
        }
        return cache, slots - slot, slots <= slot

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        both, state = fill_valid_tokens(self._fill, x, key_padding_mask)
        gate, value = both.chunk(2, -1)
        return x + gate * (value - x), state

    def _fill(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        mx, averages = self.move.fill(x, mask)
        maps, v = self._moved(mx), F.silu(self.v_proj(x))
        k = self._queries_and_keys(maps[1])[1]
        if self.chunk_size is None:
            cache = new_cache(mask, keys=k, values=v)
        else:
            slots = newest_in_slots(k, mask, self.chunk_size, dim=1)
            cache = {"keys": take_tokens(k, slots, 1), "values": take_tokens(v, slots, 1)}
        return self._attended(v, maps, mask), {"averages": averages, **cache}

    def no_weight_decay(self) -> set[str]:
        return set() if self.mixing == "csp" else {"gamma", "beta", "rel_pos_bias.rel_pos_bias"}

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, z_dim={self.z_dim}, hidden_dim={self.hidden_dim}, "
            f"mixing={self.mixing}, attention_fn={self.attention_fn}, causal={self.causal}"
        )


def _laplace(scores: Tensor) -> Tensor:
    """Evaluate the normal CDF with mean sqrt(1 / 2) and variance 1 / (4 pi)."""
    deviation = math.sqrt(1.0 / (4.0 * math.pi))
    return 0.5 * (1.0 + torch.erf((scores - math.sqrt(0.5)) / (deviation * math.sqrt(2.0))))
