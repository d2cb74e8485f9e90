"""Packed sequences: several of them one after the other in one row of tokens, without padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import shown
from rifflemix.compat import has_values, leaves_package
from rifflemix.errors import InputError, bad_argument

Mix = Callable[[Tensor, Tensor | None], Tensor]

_DTYPES = (torch.int32, torch.int64)
# Tokens of padding in a batch that cost less than one call more: measured on a CPU; of a GPU it is
# an estimate, what it passes over while a few kernels are launched.
_ROOM, _ROOM_ON_GPU = {"cpu": 256}, 8192


class Segments(NamedTuple):
    """The sequences of a packed row.

    Attributes:
        lengths: tokens of each sequence, not all of them 0.
    """

    lengths: list[int]

    def mix(self, mix: Mix, row: Tensor, *, exact: bool = True) -> Tensor:
        """`mix` on every sequence of a row, on those of about one length together, as a batch.

        Args:
            mix: takes (B, L, R) and a mask (B, L) of padding, which stands last and holds zeros,
                or None where there is none; returns (B, L, S), finite also at padded positions.
            row: (1, N, R).
            exact: only equal lengths go together; otherwise also lengths so near to each other that
                a little padding costs less than a call.

        Returns:
            (1, N, S).
        """
        room = 0 if exact else _ROOM.get(row.device.type, _ROOM_ON_GPU)
        batches = _batches(self.lengths, room)
        lengths = [length for length in self.lengths if length]
        if len(batches) == len(lengths):  # each is one of its own: nothing has to be moved
            return _mixed(mix, row[0], [_Batch(1, length) for length in lengths]).unsqueeze(0)
        if len(set(lengths)) == 1:
            return _mixed(mix, row[0], batches).unsqueeze(0)
        token_at, place_of, padding = (t.to(row.device) for t in _places(self.lengths, batches))
        tokens = _take(row[0], token_at, place_of, padding)
        y = _mixed(mix, tokens, batches, token_at < 0 if len(padding) else None)
        return _take(y, place_of, token_at, padding).unsqueeze(0)


class _Batch(NamedTuple):
    """So many sequences of so many tokens, `padding` of which are none."""

    sequences: int
    tokens: int
    padding: int = 0


def _batches(lengths: list[int], room: int) -> list[_Batch]:
    """The batches of a row, the longest first; each has at most `room` padding."""
    batches: list[_Batch] = []
    for length, count in sorted(Counter(lengths).items(), reverse=True):
        if not length:
            continue
        if batches:
            last = batches[-1]
            padding = last.padding + (last.tokens - length) * count
            if padding <= room:
                batches[-1] = _Batch(last.sequences + count, last.tokens, padding)
                continue
        batches.append(_Batch(count, length))
    return batches


def _mixed(mix: Mix, tokens: Tensor, batches: list[_Batch], mask: Tensor | None = None) -> Tensor:
    """`mix` on batches that stand one after the other in tokens (P, R), as is their mask (P,).

    Returns:
        (P, S).
    """
    parts = tokens.split([batch.sequences * batch.tokens for batch in batches])
    mixed, end = [], 0
    for batch, part in zip(batches, parts, strict=True):
        start, end = end, end + len(part)
        size = (batch.sequences, batch.tokens)
        padded = mask[start:end].view(size) if mask is not None and batch.padding else None
        mixed.append(mix(part.unflatten(0, size), padded).flatten(0, 1))
    return torch.cat(mixed) if len(mixed) > 1 else mixed[0]


def _places(lengths: list[int], batches: list[_Batch]) -> tuple[Tensor, Tensor, Tensor]:
    """The token that each place in the batches takes, or -1; each token's place; where it is -1."""
    size = torch.tensor(lengths, device="cpu")
    widths = torch.tensor([b.tokens for b in batches for _ in range(b.sequences)], device="cpu")
    by_length = size.argsort(descending=True, stable=True)[: len(widths)]
    first_place = torch.zeros_like(size)
    first_place[by_length] = widths.cumsum(0) - widths
    first_token = size.cumsum(0) - size
    tokens = torch.arange(sum(lengths), device="cpu")
    place_of = tokens + (first_place - first_token).repeat_interleave(size)
    token_at = torch.full((int(widths.sum()),), -1, device="cpu")
    token_at[place_of] = tokens
    return token_at, place_of, (token_at < 0).nonzero().squeeze(1)


class _Take(torch.autograd.Function):
    """Rows of a table, zeros where the index is -1; each row is taken once.

    So the gradient is the same with the index the other way round, and nothing is summed.
    """

    @staticmethod
    def forward(table: Tensor, index: Tensor, back: Tensor, padding: Tensor) -> Tensor:
        """(M, R), indices (P,) and (M,), and where the longer one of them is -1 -> (P, R)."""
        taken = table.index_select(0, index.clamp_min(0))
        return taken if len(index) <= len(back) else taken.index_fill_(0, padding, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the indices."""
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Take the other way."""
        index, back, padding = ctx.saved_tensors
        return _take(grads[0], back, index, padding), None, None, None


_take: Callable[..., Tensor] = _Take.apply


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
    return Segments(lengths)


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
    if leaves_package():
        raise bad_argument(
            "cu_seqlens",
            "None in an exported or traced program, which would hold for these lengths alone",
            shown(cu_seqlens),
        )
    if not has_values(cu_seqlens):
        raise bad_argument("cu_seqlens", "numbers, which decide the shapes", "a tensor without")
    bounds: list[int] = cu_seqlens.tolist()
    return bounds
