"""Tensors for attacks: all kinds of values, sizes around every boundary, all memory layouts."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Sizes around vectors of 4 to 32 lanes, chunks of 64 tokens, sorting networks, and 16-bit keys and
# indices.
EDGES = tuple(
    sorted({2**power + offset for power in range(17) for offset in (-1, 0, 1)} - {0} | {3, 5, 1000})
)

Layout = Callable[[Tensor], Tensor]


def size(draw: random.Random, most: int) -> int:
    """Draw a size up to `most`, usually next to a power of two."""
    if draw.random() < 0.3:
        return draw.randint(1, most)
    return draw.choice([edge for edge in EDGES if edge <= most])


def divisor(draw: random.Random, number: int) -> int:
    """Draw a divisor of a positive number."""
    return draw.choice([d for d in range(1, number + 1) if number % d == 0])


def ordinary(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def tied(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randint(-2, 3, shape).to(dtype)


def zeros_of_both_signs(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.where(torch.rand(shape) < 0.5, -0.0, 0.0).to(dtype)


def denormal(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Create multiples of the smallest subnormal number, with either sign, and zeros."""
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    return torch.randint(-3, 4, shape).to(dtype) * smallest


def extreme(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Create several kinds of NaN, infinities, extreme numbers, and zeros of either sign."""
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    special = torch.tensor(
        [float("inf"), info.max, info.smallest_normal, smallest, 0.0, 1.0, float("nan")],
        dtype=dtype,
    )
    special = torch.cat((special, -special))  # -NaN and NaN have different bits
    return special[torch.randint(len(special), shape)]


def increasing(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)


KINDS = (ordinary, tied, zeros_of_both_signs, denormal, extreme, increasing)
FINITE = (ordinary, tied, zeros_of_both_signs, increasing)


def values(draw: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Create values of one kind, or a mixture of two kinds."""
    kind, other = draw.choice(KINDS), draw.choice(KINDS)
    x = kind(shape, dtype)
    if draw.random() < 0.5:
        x = torch.where(torch.rand(shape) < draw.random(), x, other(shape, dtype))
    return x


def numbers(draw: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Create finite values of about one, with some ties, zeros and zero features.

    Sums of other values may overflow, and then there is nothing to compare.
    """
    x = torch.randn(shape, dtype=torch.float64)
    if draw.random() < 0.3:
        x = (x * 2).round() / 2
    if draw.random() < 0.2:
        x = x * (torch.rand(shape[-1]) < 0.7)
    return x.to(dtype)


LAYOUTS: dict[str, Layout] = {
    "as it comes": lambda x: x,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "batch last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "part of wider rows": lambda x: torch.cat((x, x), -1)[..., x.shape[-1] :],
    "part of more rows": lambda x: torch.cat((x, x), -2)[..., : x.shape[-2], :],
    "every second row": lambda x: torch.stack((x, x), -2).flatten(-3, -2)[..., ::2, :],
    "every second feature": lambda x: torch.stack((x, x), -1)[..., 1],
    "at an odd address": lambda x: torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape),
    "one row for all": lambda x: x[..., :1, :].expand_as(x),
    "one sample for all": lambda x: x[:1].expand_as(x),
    "one feature for all": lambda x: x[..., :1].expand_as(x),
    "negated": lambda x: torch._neg_view(-x),
}


def layout(draw: random.Random, padded: Tensor | None = None) -> Layout:
    """Draw a memory layout.

    With padding, no layout repeats tokens: the poisoned values at padded positions are invalid
    for valid tokens.
    """
    repeats = () if padded is None else ("one row for all", "one sample for all")
    return LAYOUTS[draw.choice([name for name in LAYOUTS if name not in repeats])]


def mask(draw: random.Random, batch: int, length: int) -> Tensor | None:
    """Draw a padding mask: none, random, at one end, or everywhere."""
    kind = draw.choice(("none", "none", "few", "many", "leading", "trailing", "all", "nowhere"))
    if kind == "none":
        return None
    if kind in ("leading", "trailing"):
        ends = torch.randint(0, length + 1, (batch, 1))
        padded = torch.arange(length) < ends
        return padded if kind == "leading" else padded.flip(1)
    share = {"few": 0.1, "many": 0.8, "all": 1.0, "nowhere": 0.0}[kind]
    return torch.rand(batch, length) < share


def poisoned(draw: random.Random, x: Tensor, padded: Tensor | None) -> Tensor:
    """Sometimes fill padded positions of `x` (B, ..., N, C) with NaN and infinities."""
    if padded is None or draw.random() < 0.5:
        return x
    places = padded.view(len(padded), *(1,) * (x.dim() - 3), -1, 1)
    return torch.where(places, extreme(tuple(x.shape), x.dtype), x)


def plain(x: Tensor) -> Tensor:
    return x


def any_dtype(draw: random.Random) -> torch.dtype:
    return draw.choice(DTYPES)


def eighths(*shape: int, dtype: torch.dtype) -> Tensor:
    """Create weights with exact sums in every type, independent of the summation order."""
    return (torch.randint(0, 9, shape) / 8).to(dtype)
