"""Token statistics self-attention: the mixer of the Token Statistics Transformer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_integer
from rifflemix.compat import stable_order
from rifflemix.errors import bad_argument
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.mixers.packed import Segments
from rifflemix.ops.statistics import StatisticsState, backends
from rifflemix.ops.statistics.common import check_state


class TSSA(TokenMixer):
    """Token statistics self-attention, in linear time and memory.

    `in_proj` contains the bases U_1 ... U_H of the paper, transposed. `out_proj` is a separate
    parameter, as in the released code. `dropout` drops entries of the factor
    1 / (1 + second moment), as the attention dropout of the released code does. With `causal=True`
    the sums run over the tokens so far, and streaming needs constant memory.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        bias: add a bias to `in_proj`.
        out_bias: add a bias to `out_proj`.
        normalize: scale each feature to unit norm over the tokens before the membership. False is
            the ablation in Table 8 of the paper, for the bidirectional variant only.
        denominator_bias: learn a bias per head and position in the causal variant. It starts at 0
            and needs `max_length`. The bidirectional variant ignores this option.
        renormalize_every: interval, in tokens, for recomputing the memberships of all tokens so
            far from the sums so far. "doubling": after 1, 2, 4, ... tokens. 1 is equation (33), in
            O(N^2). Default: never recompute a membership, equation (34). Only with `causal=True`;
            not in streaming.
        shared: other arguments of `TokenMixer`.

    Raises:
        InputError: `causal=True` with `normalize=False`, or with `denominator_bias` but without
            `max_length`. Also if `renormalize_every` is out of range or without `causal=True`, or
            if a mixer with this option streams.

    Source: Wu et al. 2024, equations (10), (11), (31), (32); causal: (28), (29), (33), (34).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("tssa", 64, num_heads=4, max_length=1024, causal=True)
        >>> y, state = mixer.prefill(torch.randn(2, 1000, 64))
        >>> y_next, state = mixer.step(torch.randn(2, 64), state)
        >>> y_next.shape
        torch.Size([2, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="tssa",
        title="Token statistics (TSSA)",
        paper="Wu et al. 2024, Token Statistics Transformer: Linear-Time Attention via "
        "Variational Rate Reduction",
        equations="(10), (11), (31), (32); causal (28), (29), (33), (34)",
        complexity="O(N C)",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        packed=True,
        permutation_equivariant=True,
        thread_sums="the softmax over heads with renormalize_every, at some lengths",
    )

    def __init__(
        self,
        dim: int,
        *,
        bias: bool = True,
        out_bias: bool = True,
        normalize: bool = True,
        denominator_bias: bool = True,
        renormalize_every: int | str | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        if self.causal and not normalize:
            raise bad_argument("normalize", "True with causal=True", False)
        self.normalize = normalize
        self.renormalize_every = self._checked_renewal(renormalize_every)
        self.in_proj = nn.Linear(self.dim, self.dim, bias=bias)
        self.out_proj = nn.Linear(self.dim, self.dim, bias=out_bias)
        self.temperature = nn.Parameter(torch.ones(self.num_heads))
        self.denominator_bias = self._make_denominator_bias() if denominator_bias else None

    def _checked_renewal(self, every: int | str | None) -> int | str | None:
        if isinstance(every, str) and every != "doubling":
            raise bad_argument("renormalize_every", "an integer or 'doubling'", repr(every))
        if every is not None and not isinstance(every, str):
            every = check_integer("renormalize_every", every, 1)
        if every is not None and not self.causal:
            raise bad_argument("renormalize_every", "None without causal=True", repr(every))
        return every

    def _check_streams(self) -> None:
        super()._check_streams()
        if self.renormalize_every is not None:
            raise bad_argument(
                "renormalize_every",
                "None for streaming, since the state stores sums and no tokens",
                repr(self.renormalize_every),
            )

    def _make_denominator_bias(self) -> nn.Parameter | None:
        if not self.causal:
            return None
        if self.max_length is None:
            raise bad_argument(
                "max_length",
                "a maximum number of tokens for the bias per position",
                None,
                "set it, or pass denominator_bias=False",
            )
        return nn.Parameter(torch.zeros(self.num_heads, self.max_length))

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        w = self.project(x)
        y, _ = self._statistics(w, key_padding_mask, self.dropout_now)
        return self.out_proj(y.transpose(1, 2).flatten(2))

    def mix_packed(self, x: Tensor, segments: Segments) -> Tensor:
        def statistics(bases: Tensor, padding: Tensor | None) -> Tensor:
            w = bases.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            # Padding comes last: causal outputs of valid tokens do not depend on it.
            mask = None if self.causal else padding
            return self._statistics(w, mask, self.dropout_now)[0].transpose(1, 2).flatten(2)

        return self.out_proj(segments.mix(statistics, self.in_proj(x), exact=False))

    def project(self, x: Tensor) -> Tensor:
        """Project tokens (B, N, C) onto the bases of the heads.

        The coding rate of the paper is a function of these projections.

        Args:
            x: (B, N, C) tokens.

        Returns:
            (B, H, N, C / H).
        """
        heads: Tensor = self.in_proj(x).unflatten(-1, (self.num_heads, -1))
        return heads.transpose(1, 2)

    def membership(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Compute the probability of each token to belong to each head.

        Args:
            x: (B, N, C) tokens.
            key_padding_mask: (B, N) bool, True = padding. The membership of padding is zero.

        Returns:
            (B, H, N) float32 or float64. Sums over H are 1 at valid tokens.
        """
        self._check_input(x, key_padding_mask)
        if key_padding_mask is not None:
            x = torch.where(key_padding_mask.unsqueeze(-1), 0.0, x)
        return self._statistics(self.project(x), key_padding_mask, 0.0)[1]

    def _statistics(
        self, w: Tensor, key_padding_mask: Tensor | None, dropout_p: float
    ) -> tuple[Tensor, Tensor]:
        """Compute output and membership of projected tokens (B, H, N, D)."""
        if not self.causal:
            return backends.token_statistics(
                w, self.temperature, self.normalize, key_padding_mask, dropout_p
            )
        if self.renormalize_every is not None:
            return self._renormalized(w, self.renormalize_every, key_padding_mask, dropout_p)
        return backends.causal_token_statistics(
            w, self.temperature, self.denominator_bias, None, key_padding_mask, dropout_p
        )[:2]

    def _renormalized(
        self, w: Tensor, every: int | str, key_padding_mask: Tensor | None, dropout_p: float
    ) -> tuple[Tensor, Tensor]:
        """`_statistics` with recomputed memberships, for any pattern of padding."""
        temperature, bias = self.temperature, self.denominator_bias
        if key_padding_mask is None:
            return backends.renormalized_token_statistics(
                w, temperature, bias, every, None, dropout_p
            )
        order = stable_order(key_padding_mask.to(torch.uint8), 1)
        y, membership = backends.renormalized_token_statistics(
            w.gather(2, order[:, None, :, None].expand_as(w)),
            temperature,
            bias,
            every,
            key_padding_mask.gather(1, order),
            dropout_p,
        )
        # No take_along_dim: its graph would support this batch size only.
        back = order.argsort(1).unsqueeze(1)
        y = y.gather(2, back.unsqueeze(-1).expand_as(y))
        return y, membership.gather(2, back.expand_as(membership))

    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        """Create the sums before the first token.

        Args:
            batch_size: number of sequences B.
            device: device of the state.
            dtype: dtype of the tokens; the state does not depend on it.

        Returns:
            The fields of `StatisticsState`, zero.
        """
        width = self.dim // self.num_heads
        return StatisticsState.zeros(batch_size, self.num_heads, width, device=device)._asdict()

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        w = self.project(x_t.unsqueeze(1))
        before = StatisticsState(*(state[name] for name in StatisticsState._fields))
        check_state(before, w)
        y, after = self._statistics_so_far(w, before, None)
        return self.out_proj(y.flatten(1)), after

    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = self._statistics_so_far(self.project(x), None, key_padding_mask)
        return self.out_proj(y.transpose(1, 2).flatten(2)), after

    def _statistics_so_far(
        self, w: Tensor, before: StatisticsState | None, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute outputs (B, H, N, D) of tokens after `before`, and the new state."""
        y, _, after = backends.causal_token_statistics(
            w, self.temperature, self.denominator_bias, before, key_padding_mask, self.dropout_now
        )
        return y, after._asdict()

    def no_weight_decay(self) -> set[str]:
        names = {"temperature"}
        return names if self.denominator_bias is None else names | {"denominator_bias"}
