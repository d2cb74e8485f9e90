"""Constants, state and argument checks that the modules of this family share."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import check_dense, check_float_dtype, check_tokens
from rifflemix.compat import has_values, take_first, values_can_be_read, widest_float
from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support

# Floors of the denominators. They are part of the definition and affect results near them.
NORM_FLOOR = 1e-12  # for the norm of a feature column over the tokens
ENERGY_FLOOR = 1e-12  # for the causal running sum of squares (a squared norm)
COUNT_OFFSET = 1e-8  # added to the number of tokens in a group

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of the tokens that the kernels on a CPU support."""
accumulation_dtype = partial(torch.promote_types, torch.float32)
"""Dtype of the sums for tokens of a dtype: float64 for float64 tokens, otherwise float32."""


class StatisticsState(NamedTuple):
    """The state of `causal_token_statistics` after the tokens so far, of constant size.

    The sums are float64 for all dtypes of tokens, because a float32 sum stops growing near 2^24
    tokens. On MPS the sums are float32, because MPS has no float64.

    Attributes:
        energy: (B, H, D) sum of w^2.
        member_energy: (B, H, D) sum of Pi * w^2.
        member_count: (B, H) sum of Pi.
        position: (B,) int64, number of valid tokens so far. It is the index of the next token in
            `denominator_bias`.

    Example:
        >>> import torch, rifflemix as rm
        >>> w = torch.randn(1, 4, 100, 8)
        >>> _, state = rm.ops.causal_token_statistics(w, torch.ones(4), return_state=True)
        >>> state.energy.shape, state.position.tolist()
        (torch.Size([1, 4, 8]), [100])
    """

    energy: Tensor
    member_energy: Tensor
    member_count: Tensor
    position: Tensor

    @classmethod
    def zeros(
        cls,
        batch_size: int,
        num_heads: int,
        head_dim: int,
        *,
        device: Any = None,
    ) -> StatisticsState:
        """Create the state before the first token.

        Args:
            batch_size: number of sequences B.
            num_heads: heads H.
            head_dim: channels D of a head.
            device: device of the state. Default: torch's default device.

        Returns:
            The state; all entries are zero.
        """
        per_feature = (batch_size, num_heads, head_dim)
        position = torch.zeros(batch_size, device=device, dtype=torch.int64)
        wide = widest_float(position.device)
        return cls(
            energy=torch.zeros(per_feature, device=device, dtype=wide),
            member_energy=torch.zeros(per_feature, device=device, dtype=wide),
            member_count=torch.zeros(per_feature[:2], device=device, dtype=wide),
            position=position,
        )


def renewal_counts(every: int | str, length: int) -> list[int]:
    """List the token counts at which all memberships are recomputed.

    They are the multiples of `every`, or the powers of two for "doubling".
    """
    if isinstance(every, int):
        return list(range(every, length + 1, every))
    return [1 << power for power in range(length.bit_length())]


def bias_per_token(
    bias: Tensor,
    length: int,
    initial_state: StatisticsState | None,
    key_padding_mask: Tensor | None,
) -> Tensor:
    """Gather the bias (B or 1, H, N) of each token.

    The position of a token counts only the valid tokens before it.
    """
    if initial_state is None and key_padding_mask is None:
        return take_first(bias, length, 1).unsqueeze(0)
    if key_padding_mask is None:
        index = torch.arange(length, device=bias.device).unsqueeze(0)
    else:
        # A padded token has the index of the token before it, or -1. This is harmless: its Pi is 0.
        index = (~key_padding_mask).cumsum(1) - 1
    if initial_state is not None:
        index = index + initial_state.position.unsqueeze(1)
    return bias[:, index].transpose(0, 1)


def end_position(
    w: Tensor, initial_state: StatisticsState | None, key_padding_mask: Tensor | None
) -> Tensor:
    """Count the valid tokens of `w` and of the state: (B,) int64."""
    if initial_state is None:
        before = torch.zeros(w.shape[0], dtype=torch.int64, device=w.device)
    else:
        before = initial_state.position
    return before + (w.shape[2] if key_padding_mask is None else (~key_padding_mask).sum(1))


def check_heads(name: str, w: Tensor) -> None:
    """Check that `w` is (B, H, N, D), floating-point and not empty.

    Only B may be 0.
    """
    check_tokens(name, w, rank=4, layout="(B, H, N, D)")
    _check_not_empty(name, w, "(B, H, N, D)")


def check_whole(name: str, z: Tensor) -> None:
    """Check that `z` is (B, N, C), floating-point and not empty.

    Only B may be 0.
    """
    check_tokens(name, z)
    _check_not_empty(name, z, "(B, N, C)")


def check_temperature(temperature: Tensor, w: Tensor) -> None:
    """Check that `temperature` is floating-point, (H,) and on w's device."""
    _check_tensor("temperature", temperature, f"(H,) = ({w.shape[1]},)", (w.shape[1],), w)
    check_float_dtype("temperature", temperature.dtype)


def check_groups(membership: Tensor, tokens: Tensor) -> None:
    """Check that `membership` is (B, H, N) for tokens (B, H, N, D) or (B, N, C)."""
    batch, length = tokens.shape[0], tokens.shape[-2]
    check_tokens("membership", membership, layout="(B, H, N)")
    heads = tokens.shape[1] if tokens.dim() == 4 else membership.shape[1]
    shape = (batch, heads, length)
    _check_tensor("membership", membership, f"(B, H, N) = {shape}", shape, tokens)
    expected = accumulation_dtype(tokens.dtype)
    if membership.dtype != expected:
        raise bad_argument("membership", f"dtype {expected}", membership.dtype)


def check_state(state: StatisticsState | None, w: Tensor) -> None:
    """Check that `state` is None or fits the tokens `w`."""
    if state is None:
        return
    if not isinstance(state, StatisticsState):
        raise bad_argument("initial_state", "a StatisticsState", type(state).__name__)
    batch, heads, _, features = w.shape
    shapes = ((batch, heads, features), (batch, heads, features), (batch, heads), (batch,))
    wide = widest_float(w.device)
    dtypes = (wide, wide, wide, torch.int64)
    for name, field, shape, dtype in zip(
        StatisticsState._fields, state, shapes, dtypes, strict=True
    ):
        _check_tensor(f"initial_state.{name}", field, shape, shape, w)
        if field.dtype != dtype:
            raise bad_argument(f"initial_state.{name}", f"dtype {dtype}", field.dtype)
    position = state.position
    if not position.numel() or not _can_be_read(position):
        return
    if (first := int(position.min())) < 0:
        raise bad_argument("initial_state.position", "at least 0", first)


def check_bias(
    bias: Tensor | None,
    w: Tensor,
    state: StatisticsState | None,
    key_padding_mask: Tensor | None,
) -> None:
    """Check that a bias (H, L) has a position for every token."""
    if bias is None:
        return
    check_tokens("denominator_bias", bias, rank=2, layout="(H, L)")
    _check_tensor(
        "denominator_bias", bias, f"(H, L) with H = {w.shape[1]}", (w.shape[1], bias.shape[1]), w
    )
    needed = w.shape[2] if state is None else _positions_used(state, w.shape[2], key_padding_mask)
    if bias.shape[1] < needed:
        raise bad_argument(
            "denominator_bias",
            f"at least {needed} positions, one for each token so far",
            bias.shape[1],
        )


def _positions_used(state: StatisticsState, length: int, key_padding_mask: Tensor | None) -> int:
    """Count the positions needed after `length` more tokens.

    The result is 0 if the values of the state cannot be read.
    """
    if len(state.position) == 0 or not _can_be_read(state.position):
        return 0
    valid = length if key_padding_mask is None else (~key_padding_mask).sum(1)
    return int((state.position + valid).max())


def _can_be_read(position: Tensor) -> bool:
    """Return whether positions can be read: not under tracing or mapping."""
    return has_values(position) and values_can_be_read()


def _check_tensor(
    name: str, value: Tensor, layout: object, shape: tuple[int, ...], like: Tensor
) -> None:
    if not isinstance(value, Tensor):
        raise bad_argument(name, f"a tensor of shape {layout}", type(value).__name__)
    check_dense(name, value)
    if tuple(value.shape) != shape:
        raise bad_argument(name, f"shape {layout}", tuple(value.shape))
    if value.device != like.device:
        raise bad_argument(name, f"device {like.device}", value.device)


def _check_not_empty(name: str, x: Tensor, layout: str) -> None:
    if 0 in x.shape[1:]:
        raise bad_argument(name, f"at least one of each in shape {layout}", tuple(x.shape))


GPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of the tokens that the GPU kernels support."""
# One program of a GPU kernel needs registers for all features of a token.
_MAX_CHANNELS = 4096


def with_triton(names: tuple[str, ...], w: Tensor) -> tuple[str, ...]:
    """Add "triton" to the backends if its kernels support `w`."""
    if w.dtype not in GPU_DTYPES:
        return names
    return triton_support.with_triton(names, w, w.shape[1] * w.shape[3] <= _MAX_CHANNELS)


def check_limits(w: Tensor) -> None:
    """Check that the GPU kernels support the tokens `w` (B, H, N, D)."""
    triton_support.check_device(w)
    channels = w.shape[1] * w.shape[3]
    if channels > _MAX_CHANNELS:
        raise bad_argument("w", f"at most {_MAX_CHANNELS:,} features of all heads", channels)


def with_whole_rows(tokens: Tensor) -> Tensor:
    """Return tokens (B, H, N, D) with adjacent features, copied only if necessary."""
    if tokens.stride(-1) == 1 or tokens.shape[-1] == 1:
        return tokens
    return tokens.transpose(1, 2).contiguous().transpose(1, 2)
