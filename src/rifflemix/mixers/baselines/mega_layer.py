"""The layer behind MEGA and MEGA-chunk."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_probability, check_tokens, shown
from rifflemix.compat import statically_known_true, take_first
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.cache import (
    new_cache,
    token_positions,
    visible,
    with_token,
)
from rifflemix.mixers._convolution.ema import DampedEMA
from rifflemix.mixers._convolution.state_space import both_directions
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.padding import (
    block_of,
    fill_valid_tokens,
    missing_tokens,
    mix_valid_tokens,
    newest_in_slots,
    take_tokens,
)
from rifflemix.ops.dropout.unchecked import dropout as drop
from rifflemix.ops.dropout.unchecked import dropout_attention

ATTENTION_FNS = ("softmax", "laplace")
MIXINGS = ("attention", "csp")
CSP_OPTIONS = ("num_groups", "group_size", "shift", "order", "pad", "layout", "heads")


class RelativeBias(nn.Module):
    """A learned bias for each distance between two of at most `max_length` tokens.

    Args:
        max_length: most tokens.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.rel_pos_bias = nn.Parameter(torch.empty(2 * max_length - 1).normal_(std=0.02))

    def forward(self, length: int) -> Tensor:
        """(length, length): for query i and key j the bias of the distance j - i."""
        positions = torch.arange(length, device=self.rel_pos_bias.device)
        return self.at(positions - positions.unsqueeze(1))

    def at(self, distance: Tensor) -> Tensor:
        """The bias of each of the distances, int64 of any shape, from query to key."""
        return self.rel_pos_bias[distance + self.max_length - 1]


class MegaLayer(TokenMixer):
    """MEGA's layer without its norm: moving average, attention of one head, two gates.

    mx = EMA(x), v = silu(W_v x), z = silu(W mx), q and k = gamma z + beta, h = attention(q, k) v,
    y = x + u (silu(hx + W_h (h r)) - x), with u = sigmoid, r = silu and hx linear in mx.

    The residual connection is in that formula. `forward` takes what it is given for the residual
    stream too, so that in a block x + mixer(norm(x)) the gate u chooses between norm(x) and the
    new value, and the stream passes beside it. `gated_residual` is the layer as published, where
    the gate is on the stream itself: a host of MEGA's own calls it and adds nothing.

    Valid tokens are moved together first: distances, chunks and averages are those of the valid
    sequence. Parameters have the names of the released code.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments. `num_heads` has no use: MEGA
            has one head. `dropout` drops attention weights; the others of the paper follow.
        chunk_size: tokens within which attention stays; None for all of `max_length`.
        z_dim: channels of queries and keys, max(1, C // 2) where unset.
        hidden_dim: channels of the values, 2 C where unset.
        ema_dim: moving averages per channel.
        bidirectional: average over later tokens too; where unset, unless `causal`.
        attention_fn: "softmax" (of q k / sqrt(z_dim) + bias) or "laplace" (elementwise, of q k
            over the number of keys in view, + bias).
        mixing: "attention", or "csp" to permute the values instead; there are then no queries, keys
            and position bias.
        hidden_dropout: probability of dropping an entry of v; not with mixing="csp", as released.
        layer_dropout: the same for the moving average and for the new value.
        csp_options: options of `CSP` for mixing="csp": num_groups, group_size, shift, order, pad,
            layout, heads.
        shared: the other arguments of `TokenMixer`.

    Raises:
        InputError: an option out of range, or two that exclude each other.

    Source: Ma et al. 2023, equations (3)-(14); laplace: (16); mixing="csp": Yuan and Xu,
    "Towards Better Multi-head Attention via Channel-wise Sample Permutation", section 4.
    """

    def __init__(
        self,
        dim: int,
        *,
        chunk_size: int | None,
        z_dim: int | None,
        hidden_dim: int | None,
        ema_dim: int,
        bidirectional: bool | None,
        attention_fn: str,
        hidden_dropout: float,
        layer_dropout: float,
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
        """The layer with x itself as the residual stream."""
        return self._gate(x, x, key_padding_mask)

    def gated_residual(
        self, x: Tensor, residual: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """The layer on normed tokens, with the residual stream under its gate.

        Args:
            x: (B, N, C) tokens, normed in a pre-norm block.
            residual: (B, N, C) the stream they were taken from.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, N, C), the stream after the layer; as it was at padded positions.

        Raises:
            InputError: wrong shape, dtype or device, or N over `max_length`.
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
        """(B, N, 2 C): the gate u and what it lets in; padding stands last."""
        v = F.silu(self.v_proj(x))
        return self._attended(v, self._moved(self.move(x)), mask)

    def _moved(self, mx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._split(drop(mx, self.layer_dropout if self.training else 0.0))

    def _attended(
        self, v: Tensor, maps: tuple[Tensor, Tensor, Tensor, Tensor], mask: Tensor | None
    ) -> Tensor:
        """(B, N, 2 C): the gate u and what it lets in, from values and maps of the average."""
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
        """The maps of the moving average: u, z, r (activated) and hx (not yet)."""
        sizes = [self.dim, self.z_dim, self.hidden_dim, self.dim]
        u, z, r, hx = self.mx_proj(mx).split(sizes, -1)
        return u.sigmoid(), F.silu(z), F.silu(r), hx

    def _queries_and_keys(self, z: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (z.unsqueeze(-2) * self.gamma + self.beta).unbind(-2)
        return q, k

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """(B, N, z) queries and keys and (B, N, h) values -> (B, N, h), chunk by chunk."""
        length = q.shape[1]
        size, missing = length, 0
        if self.chunk_size is not None:
            size = block_of(self.chunk_size, length)
            missing = missing_tokens(size, length)
        if not statically_known_true(missing == 0):
            q, k, v = (F.pad(t, (0, 0, 0, missing)) for t in (q, k, v))
            if mask is None:
                mask = torch.zeros(q.shape[0], length, dtype=torch.bool, device=q.device)
            mask = F.pad(mask, (0, missing), value=True)
        q, k, v = (t.unflatten(1, (-1, size)) for t in (q, k, v))
        visible = self._visible(size, mask, q.device)
        bias = self.rel_pos_bias(size).to(q.dtype)
        return take_first(self._weigh(q, k, v, bias, visible).flatten(1, 2), length, 1)

    def _visible(self, size: int, mask: Tensor | None, device: torch.device) -> Tensor | None:
        """The keys that a query sees, broadcasting to (B, chunks, size, size); None for all."""
        if self.causal:
            # Padding stands last, where no valid token looks.
            return torch.ones(size, size, dtype=torch.bool, device=device).tril()
        if mask is None:
            return None
        chunks: Tensor = mask.unflatten(1, (-1, 1, size))
        # A chunk of nothing but padding sees itself: a softmax over nothing would be NaN.
        return ~chunks | chunks.all(-1, keepdim=True)

    def _weigh(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, visible: Tensor | None
    ) -> Tensor:
        """Attention of (..., Q, z) to (..., K, z), with a bias that broadcasts to (..., Q, K)."""
        dropout = self.dropout if self.training else 0.0
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
        """The moving averages, and a cache: of all tokens, or of constant size for a chunk."""
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
        """One token (B, C): into the averages and the cache, then attention to the cache."""
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
        """The cache with one more token, how far each is from it, and which of them it sees."""
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
        """`mix`, the averages after it, and the cache of its keys and values."""
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
        """Return the names of the parameters that weight decay skips."""
        return set() if self.mixing == "csp" else {"gamma", "beta", "rel_pos_bias.rel_pos_bias"}

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, z_dim={self.z_dim}, hidden_dim={self.hidden_dim}, "
            f"mixing={self.mixing}, attention_fn={self.attention_fn}, causal={self.causal}"
        )


def _laplace(scores: Tensor) -> Tensor:
    """The normal distribution function of mean sqrt(1 / 2) and variance 1 / (4 pi)."""
    deviation = math.sqrt(1.0 / (4.0 * math.pi))
    return 0.5 * (1.0 + torch.erf((scores - math.sqrt(0.5)) / (deviation * math.sqrt(2.0))))
