"""Packed batches: several sequences in a single tensor (1, N, C), without padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rifflemix.checks import check_offsets, shown
from rifflemix.errors import InputError, bad_argument

Mix = Callable[[Tensor, Tensor | None], Tensor]

# Padded tokens in a batch that cost less than another call. Measured on a CPU. For a GPU this is an
# estimate: the tokens that it processes during the launch of a few kernels.
_ROOM, _ROOM_ON_GPU = {"cpu": 256}, 8192


class Segments(NamedTuple):
    """The sequences of a packed batch.

    Attributes:
        lengths: number of tokens of each sequence. At least one length is positive.
    """

    lengths: list[int]

    def mix(self, mix: Mix, row: Tensor, *, exact: bool = True) -> Tensor:
        """Run `mix` on every sequence of a packed batch.

        Sequences of similar length are mixed together, in a batch.

        Args:
            mix: function of tokens (B, L, R) and a padding mask (B, L), or None without padding.
                Padding comes last and is zero. The result (B, L, S) must be finite everywhere.
            row: (1, N, R) packed batch.
            exact: combine sequences of equal length only. If False, also combine similar lengths
                when the padding costs less than another call.

        Returns:
            (1, N, S).
        """
        room = 0 if exact else _ROOM.get(row.device.type, _ROOM_ON_GPU)
        batches = _batches(self.lengths, room)
        lengths = [length for length in self.lengths if length]
        if len(batches) == len(lengths):  # one sequence per batch: keep the order
            return _mixed(mix, row[0], [_Batch(1, length) for length in lengths]).unsqueeze(0)
        if len(set(lengths)) == 1:
            return _mixed(mix, row[0], batches).unsqueeze(0)
        token_at, place_of, padding = (t.to(row.device) for t in _places(self.lengths, batches))
        tokens = _take(row[0], token_at, place_of, padding)
        y = _mixed(mix, tokens, batches, token_at < 0 if len(padding) else None)
        return _take(y, place_of, token_at, padding).unsqueeze(0)


class _Batch(NamedTuple):
    """A batch of `sequences` x `tokens`, including `padding` padded tokens."""

    sequences: int
    tokens: int
    padding: int = 0


def _batches(lengths: list[int], room: int) -> list[_Batch]:
    """Group lengths into batches, longest first, with `room` padded tokens at most."""
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
    """Run `mix` on consecutive batches in `tokens`.

    Args:
        mix: see `Segments.mix`.
        tokens: (P, R) tokens of all batches.
        batches: sizes of the batches.
        mask: (P,) bool, True = padding.

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
    """Compute the order of the tokens in the batches.

    Returns:
        The index of the token at each batch position (-1 for padding), the batch position of each
        token, and the batch positions with padding.
    """
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
    """Gather rows by index, with zeros for index -1.

    Each row is gathered once, so the gradient gathers with the inverse index and needs no sum.
    """

    @staticmethod
    def forward(table: Tensor, index: Tensor, back: Tensor, padding: Tensor) -> Tensor:
        """Gather rows of `table` (M, R).

        Args:
            table: (M, R) rows.
            index: (P,) row for each output, or -1.
            back: (M,) inverse of `index`, or -1.
            padding: positions of -1 in the longer of both indices.

        Returns:
            (P, R).
        """
        taken = table.index_select(0, index.clamp_min(0))
        return taken if len(index) <= len(back) else taken.index_fill_(0, padding, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        index, back, padding = ctx.saved_tensors
        return _take(grads[0], back, index, padding), None, None, None


_take: Callable[..., Tensor] = _Take.apply


def segments_of(cu_seqlens: Tensor, x: Tensor, max_length: int | None) -> Segments:
    """Read the sequence lengths of a packed batch from `cu_seqlens`.

    Raises:
        InputError: `cu_seqlens` does not fit; see `TokenMixer.forward`.
    """
    bounds = check_offsets(cu_seqlens, x.shape[1], x.device)
    lengths = [end - start for start, end in pairwise(bounds)]
    if max_length is not None and max(lengths) > max_length:
        raise bad_argument(
            "cu_seqlens",
            f"at most max_length = {max_length} tokens in each sequence",
            max(lengths),
            "build the mixer with a larger max_length",
        )
    return Segments(lengths)


def check_packed(x: Tensor, key_padding_mask: Tensor | None) -> None:
    """Raise unless `x` is a dense (1, N, C) tensor without a mask."""
    if key_padding_mask is not None:
        raise bad_argument(
            "key_padding_mask", "None with cu_seqlens", "a mask", "remove the padding"
        )
    if isinstance(x, Tensor) and x.is_nested:
        raise bad_argument(
            "x",
            "a dense tensor of shape (1, N, C) with cu_seqlens",
            "a nested tensor",
            "pass x.values().unsqueeze(0) and x.offsets() of a jagged tensor",
        )
    if isinstance(x, Tensor) and x.dim() == 3 and x.shape[0] != 1:
        raise bad_argument(
            "x",
            "shape (1, N, C) with cu_seqlens",
            tuple(x.shape),
            "concatenate all sequences",
        )


def packing_refused(title: str, cu_seqlens: Tensor) -> InputError:
    """Create the error of a mixer that does not support packed batches."""
    return bad_argument(
        "cu_seqlens",
        f"None, since {title} does not support packed sequences",
        shown(cu_seqlens),
        "pad the sequences to a batch, and pass a key_padding_mask",
    )
