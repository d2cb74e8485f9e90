"""Causal permutation mixing: each channel selects one rank in a sliding window.

See docs/causal-permutations.md for the definition and for alternatives that were tried.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument
from rifflemix.mixers.padding import take_tokens
from rifflemix.nn.layers import KeepsConstants
from rifflemix.ops.permutation import backends, eager


def check_tokens_back(name: str, value: int, max_length: int | None) -> int:
    """Check that a window or reach has at most `max_length` tokens."""
    count = check_integer(name, value, 1)
    if max_length is not None and count > max_length:
        expected = f"at most max_length = {max_length} tokens with causal=True"
        raise bad_argument(name, expected, count, "no sequence has more")
    return count


class RankWindows(KeepsConstants):
    """Select a value by rank in a sliding window of each channel.

    The window of channel c contains G tokens and ends J_c tokens back. The output is the value with
    rank c mod G. Values before the first token are zero. The module has no parameters.

    Args:
        steps: (C,) int64 on the CPU; the window of channel c ends J_c = steps[c] tokens back.
        window_size: tokens G in a window.
    """

    steps: Tensor
    ranks: Tensor
    sources: Tensor

    def __init__(self, steps: Tensor, window_size: int) -> None:
        super().__init__()
        self.longest, self.window_size = int(steps.max()), window_size
        self.depth = self.longest + window_size - 1
        """Number of earlier tokens on which an output depends."""
        self.keep_constants(
            lambda: {
                "steps": steps,
                "ranks": torch.arange(len(steps)) % window_size,
                # (G, C): indices of the window among the last `depth + 1` tokens.
                "sources": self.depth - steps - torch.arange(window_size).flip(0).unsqueeze(1),
            }
        )

    def forward(self, v: Tensor) -> Tensor:
        """Filter values (B, N, C); padding must come last."""
        if self.longest > 0:
            v = backends.for_tokens(v).causal_shift(v, self.steps, self.longest)
        if self.window_size > 1:
            module = backends.for_windows(v, self.window_size)
            v = module.rank_filter(v, self.ranks, self.window_size)
        return v

    def step(self, v_t: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Filter the next value (B, C) of each sequence.

        `past` (B, depth, C) contains the last values. It is not modified, so a ring buffer would
        need a copy too.

        Returns:
            Output (B, C), and the next `past`.
        """
        seen = torch.cat((past, v_t.unsqueeze(1)), 1)
        window = seen.gather(1, self.sources.expand(seen.shape[0], -1, -1))
        return eager.token_of_rank(window, self.ranks), seen[:, 1:]

    def remember(self, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Return the last valid values (B, depth, C); padding must come last."""
        end: Any = v.shape[1] if key_padding_mask is None else (~key_padding_mask).sum(1, True)
        index = end - self.depth + torch.arange(self.depth, device=v.device)
        return take_tokens(v, index.expand(v.shape[0], -1), 1)
