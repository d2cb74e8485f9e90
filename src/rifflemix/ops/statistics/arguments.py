"""Argument checks of the token statistics family."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.checks import check_dense, check_float_dtype, check_tokens
from rifflemix.compat import has_values, values_can_be_read, widest_float
from rifflemix.errors import bad_argument
from rifflemix.ops.statistics.common import StatisticsState, accumulation_dtype


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
