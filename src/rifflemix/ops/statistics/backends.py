"""Choice of the backend of a call: one of the modules reference, eager, cpu and triton.

The functions do not check their arguments, because mixers and public functions have checked them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rifflemix.ops.dispatch import PLAIN, Family
from rifflemix.ops.dropout.backends import dropout
from rifflemix.ops.native import note_slow_call
from rifflemix.ops.statistics import cpu, eager, reference
from rifflemix.ops.statistics.common import StatisticsState, with_triton
from rifflemix.ops.triton_support import INTERPRETED


def _load_triton() -> Any:
    from rifflemix.ops.statistics import triton

    return triton


FAMILY = Family(reference, eager, cpu=cpu, load_triton=_load_triton)


def for_tokens(w: Tensor, backend: str = "auto") -> Any:
    """Choose the module for `token_statistics` and `causal_token_statistics`."""
    names: tuple[str, ...] = PLAIN
    if cpu.supports(w):
        names = (*PLAIN, "cpu")
    else:
        note_slow_call(w)
    if w.is_cuda or INTERPRETED:
        names = with_triton(names, w)
    return FAMILY.pick(backend, names)


def token_statistics(
    w: Tensor,
    temperature: Tensor,
    normalize: bool = True,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run `rifflemix.ops.token_statistics`; return the output and the membership."""
    module = for_tokens(w, backend)
    y, membership = module.token_statistics(
        w, temperature, normalize=normalize, key_padding_mask=key_padding_mask
    )
    if dropout_p:
        # The gate is a factor of y and the same for all tokens, so apply its dropout to y.
        batch, heads, _, features = w.shape
        ones = w.new_ones((batch, heads, 1, features), dtype=membership.dtype)
        y = (y * dropout(ones, dropout_p)).to(y.dtype)
    return y, membership


def causal_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None = None,
    initial_state: StatisticsState | None = None,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, StatisticsState]:
    """Run `rifflemix.ops.causal_token_statistics`; return output, membership and state."""
    module = for_tokens(w, backend)
    y, membership, state = module.causal_token_statistics(
        w,
        temperature,
        denominator_bias,
        initial_state=initial_state,
        key_padding_mask=key_padding_mask,
    )
    return dropout(y, dropout_p), membership, state


def renormalized_token_statistics(
    w: Tensor,
    temperature: Tensor,
    denominator_bias: Tensor | None,
    every: int | str,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute causal token statistics with memberships that are recomputed periodically.

    After every `every` tokens ("doubling": after 1, 2, 4, ... tokens), the memberships of all
    tokens so far are recomputed from the energy so far. The sums continue from the new memberships.
    Memberships do not change between these steps. every=1 is equation (33), every >= N is
    equation (34).

    Args:
        w: (B, H, N, D) projected tokens; any padding must be right padding.
        temperature: (H,).
        denominator_bias: (H, at least N) or None; the bias of a token does not change.
        every: an integer of at least 1, or "doubling".
        key_padding_mask: (B, N) bool, True = padding.
        dropout_p: see `causal_token_statistics`.
        backend: "auto", "reference" or "eager".

    Returns:
        y (B, H, N, D), and the first membership of each token (B, H, N). Time is O(N^2 D / every),
        or O(N D) for "doubling". Memory is O(N^2 / every) per head, or O(N D) for "doubling".
    """
    y, membership = FAMILY.pick(backend).renormalized_token_statistics(
        w, temperature, denominator_bias, every=every, key_padding_mask=key_padding_mask
    )
    return dropout(y, dropout_p), membership
