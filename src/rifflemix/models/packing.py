"""Packed sequences in models: positions and class tokens of each sequence."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.mixers.packed import check_packed, segments_of
from rifflemix.nn.positions import packed_positions


def positions_in_row(
    x: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor, max_length: int
) -> Tensor:
    """Return the position of each token of a packed batch in its sequence.

    Returns:
        (1, N) int64.

    Raises:
        InputError: `TokenMixer.forward` would not accept the arguments.
    """
    return packed_positions(lengths_in_row(x, key_padding_mask, cu_seqlens, max_length), x.device)


def lengths_in_row(
    x: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor, max_length: int
) -> list[int]:
    """Return the length of each sequence of a packed batch (1, N, C).

    Raises:
        InputError: `TokenMixer.forward` would not accept the arguments.
    """
    check_packed(x, key_padding_mask)
    return segments_of(cu_seqlens, x, max_length).lengths


def check_no_empty(lengths: list[int]) -> None:
    """Raise InputError if a sequence is empty, since it cannot be pooled."""
    if 0 in lengths:
        raise bad_argument(
            "cu_seqlens", "at least one token in each sequence", f"none in {lengths.index(0)}"
        )


def with_class_tokens(token: Tensor, x: Tensor, lengths: list[int]) -> Tensor:
    """Insert the class token before each sequence: (1, N, C) -> (1, N + S, C)."""
    size = torch.tensor(lengths, device="cpu")
    number = torch.arange(len(lengths), device="cpu").repeat_interleave(size)
    own = (torch.arange(len(number), device="cpu") + number + 1).to(x.device)
    first = torch.tensor([0, *accumulate(length + 1 for length in lengths)][:-1], device=x.device)
    row = x.new_zeros(1, len(own) + len(first), x.shape[2]).index_copy(1, own, x)
    return row.index_copy(1, first, token.to(x.dtype).expand(1, len(first), -1))
