"""Argument checks shared by the operator families."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rifflemix.errors import InputError, bad_argument, check_choice

BACKENDS = ("auto", "reference", "eager", "cpu", "triton")


def check_backend(backend: str, available: Iterable[str]) -> str:
    """The backend that will run: the last of `available` for "auto", else `backend` itself.

    Args:
        backend: what the caller asked for, one of `BACKENDS`.
        available: the backends that support these arguments here, slowest first.

    Raises:
        InputError: an unknown name, or a backend that cannot run these arguments here.
    """
    check_choice("backend", backend, BACKENDS)
    names = list(available)
    if backend == "auto":
        return names[-1]
    if backend not in names:
        raise bad_argument(
            "backend",
            f"one that supports these arguments here ({', '.join(names)})",
            repr(backend),
            'use backend="auto"',
        )
    return backend


def check_tokens(name: str, x: Tensor, *, rank: int = 3, layout: str = "(B, N, C)") -> None:
    """Raise unless `x` is a floating-point tensor of the given rank."""
    if not isinstance(x, Tensor):
        raise bad_argument(name, f"a tensor of shape {layout}", type(x).__name__)
    if x.dim() != rank:
        raise bad_argument(name, f"shape {layout}", tuple(x.shape))
    if not x.is_floating_point():
        raise bad_argument(name, "a floating-point dtype", x.dtype)


def check_padding_mask(mask: Tensor | None, x: Tensor, token_dim: int = 1) -> None:
    """Raise unless `mask` is None or a (B, N) bool tensor on x's device; True marks padding."""
    if mask is None:
        return
    expected = (x.shape[0], x.shape[token_dim])
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise bad_argument("key_padding_mask", "a bool tensor, True = padding", got)
    if tuple(mask.shape) != expected:
        raise bad_argument("key_padding_mask", f"shape (B, N) = {expected}", tuple(mask.shape))
    if mask.device != x.device:
        raise bad_argument("key_padding_mask", f"device {x.device}", mask.device)


def check_divides(name: str, divisor: int, length: int, of_what: str, hint: str = "") -> None:
    """Raise unless `divisor` is positive and divides `length`."""
    if divisor < 1 or length % divisor:
        raise bad_argument(name, f"a divisor of {of_what} = {length}", divisor, hint)


__all__ = [
    "BACKENDS",
    "InputError",
    "check_backend",
    "check_divides",
    "check_padding_mask",
    "check_tokens",
]
