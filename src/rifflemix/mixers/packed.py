"""Packed sequences: several of them one after the other in one row of tokens, without padding."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import shown
from rifflemix.compat import has_values
from rifflemix.errors import InputError, bad_argument

_DTYPES = (torch.int32, torch.int64)


class Segments(NamedTuple):
    """The sequences of a packed row.

    Attributes:
        lengths: tokens of each sequence; their sum is the row's length.
        by_length: length -> which sequences have it. Empty sequences are not there.
    """

    lengths: list[int]
    by_length: dict[int, list[int]]

    def mix(self, mix: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
        """`mix` on every sequence of a row, on those of one length together, as a batch.

        Args:
            mix: takes (B, L, R) and returns (B, L, S), and does not let samples meet.
            row: (1, N, R).

        Returns:
            (1, N, S).
        """
        if len(self.by_length) == 1:
            (length,) = self.by_length
            return mix(row[0].unflatten(0, (-1, length))).flatten(0, 1).unsqueeze(0)
        parts = row[0].split(self.lengths)
        mixed: dict[int, Tensor] = {}
        for numbers in self.by_length.values():
            if len(numbers) == 1:  # a view will do
                together = parts[numbers[0]].unsqueeze(0)
            else:
                together = torch.stack([parts[number] for number in numbers])
            mixed.update(zip(numbers, mix(together).unbind(), strict=True))
        return torch.cat([mixed[number] for number in sorted(mixed)]).unsqueeze(0)


def segments_of(cu_seqlens: Tensor, x: Tensor, max_length: int | None) -> Segments:
    """The sequences between the bounds `cu_seqlens` of a row `x` (1, N, C).

    Raises:
        InputError: not what `TokenMixer.forward` takes.
    """
    bounds = _bounds(cu_seqlens, x)
    length = x.shape[1]
    if bounds[0] != 0:
        raise bad_argument("cu_seqlens", "0 at its start", bounds[0])
    if bounds[-1] != length:
        raise bad_argument("cu_seqlens", f"the number of tokens {length} at its end", bounds[-1])
    lengths = [end - start for start, end in pairwise(bounds)]
    for (start, end), size in zip(pairwise(bounds), lengths, strict=True):
        if size < 0:
            raise bad_argument("cu_seqlens", "numbers that do not decrease", f"{end} after {start}")
    if max_length is not None and max(lengths) > max_length:
        raise bad_argument(
            "cu_seqlens",
            f"at most max_length = {max_length} tokens in each sequence",
            max(lengths),
            "build the mixer with a larger max_length",
        )
    by_length: dict[int, list[int]] = {}
    for number, size in enumerate(lengths):
        if size:
            by_length.setdefault(size, []).append(number)
    return Segments(lengths, by_length)


def check_packed(x: Tensor, key_padding_mask: Tensor | None) -> None:
    """Raise unless `x` can be a packed row."""
    if key_padding_mask is not None:
        raise bad_argument(
            "key_padding_mask", "None beside cu_seqlens", "a mask", "leave padding out of the row"
        )
    if isinstance(x, Tensor) and x.is_nested:
        raise bad_argument(
            "x",
            "a dense tensor of shape (1, N, C) beside cu_seqlens",
            "a nested tensor",
            "of a jagged one pass x.values().unsqueeze(0) and x.offsets()",
        )
    if isinstance(x, Tensor) and x.dim() == 3 and x.shape[0] != 1:
        raise bad_argument(
            "x",
            "shape (1, N, C) beside cu_seqlens",
            tuple(x.shape),
            "put all sequences into one row",
        )


def not_in_a_stream(cu_seqlens: Tensor) -> InputError:
    """The error of a stream, whose state has a row for each sequence."""
    return bad_argument(
        "cu_seqlens", "None in a stream", shown(cu_seqlens), "give each sequence a row"
    )


def packing_refused(title: str, cu_seqlens: Tensor) -> InputError:
    """The error of a mixer whose card says packed=False."""
    return bad_argument(
        "cu_seqlens",
        f"None: {title} takes no packed sequences",
        shown(cu_seqlens),
        "give each sequence a row, and mark padding in key_padding_mask where the card allows it",
    )


def _bounds(cu_seqlens: Tensor, x: Tensor) -> list[int]:
    """The numbers in `cu_seqlens`, at least two; raise unless kind, shape and place are right."""
    expected = "an int32 or int64 tensor of shape (sequences + 1,)"
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.is_nested:
        is_nested = isinstance(cu_seqlens, Tensor)
        got = "a nested tensor" if is_nested else shown(cu_seqlens)
        raise bad_argument("cu_seqlens", expected, got)
    if cu_seqlens.dtype not in _DTYPES:
        raise bad_argument("cu_seqlens", expected, cu_seqlens.dtype)
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise bad_argument("cu_seqlens", expected, f"shape {tuple(cu_seqlens.shape)}")
    if cu_seqlens.device.type != "cpu" and cu_seqlens.device != x.device:
        places = "the CPU" if x.device.type == "cpu" else f"x's device {x.device}, or the CPU"
        raise bad_argument("cu_seqlens", places, cu_seqlens.device)
    if not has_values(cu_seqlens):
        raise bad_argument("cu_seqlens", "numbers, which decide the shapes", "a tensor without")
    bounds: list[int] = cu_seqlens.tolist()
    return bounds
