"""Causal permutation mixing: each channel takes one rank of a window that slides over the tokens.

docs/causal-permutations.md has the definition, and what was tried beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rifflemix.checks import check_integer
from rifflemix.errors import bad_argument
from rifflemix.mixers.padding import take_tokens
from rifflemix.nn.constants import KeepsConstants
from rifflemix.ops.permutation import unchecked


def check_tokens_back(name: str, value: int, max_length: int | None) -> int:
    """`value`, tokens of a window or a reach; raise unless a sequence has as many."""
    count = check_integer(name, value, 1)
    if max_length is not None and count > max_length:
        expected = f"at most max_length = {max_length} tokens with causal=True"
        raise bad_argument(name, expected, count, "no sequence has more")
    return count


class RankWindows(KeepsConstants):
    """Channel c takes, J_c tokens back, the value with rank c mod G of the last G tokens.

    Tokens before the first are zero. There are no parameters.

    Args:
        steps: (C,) int64 on the CPU, how far back the window of each channel ends.
        window_size: tokens G in a window.
    """

    steps: Tensor
    ranks: Tensor
    sources: Tensor

    def __init__(self, steps: Tensor, window_size: int) -> None:
        super().__init__()
        self.longest, self.window_size = int(steps.max()), window_size
        self.depth = self.longest + window_size - 1
        """Tokens before the own one that matter."""
        self.keep_constants(
            lambda: {
                "steps": steps,
                "ranks": torch.arange(len(steps)) % window_size,
                # (G, C): where a window's tokens are among the last ones, the own one included.
                "sources": self.depth - steps - torch.arange(window_size).flip(0).unsqueeze(1),
            }
        )

    def forward(self, v: Tensor) -> Tensor:
        """Values (B, N, C), of which padding stands last, to the same shape."""
        if self.longest > 0:
            v = unchecked.causal_shift(v, self.steps, self.longest)
        if self.window_size > 1:
            v = unchecked.rank_filter(v, self.ranks, self.window_size)
        return v

    def step(self, v_t: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """One more token of values (B, C) after the last ones (B, depth, C): its output, and them.

        A state is not changed: a ring would have to be copied as well as one that moves on.
        """
        seen = torch.cat((past, v_t.unsqueeze(1)), 1)
        window = seen.gather(1, self.sources.expand(seen.shape[0], -1, -1))
        return unchecked.token_of_rank(window, self.ranks), seen[:, 1:]

    def remember(self, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """The last ones (B, depth, C) of values (B, N, C) whose padding stands last."""
        end: Any = v.shape[1] if key_padding_mask is None else (~key_padding_mask).sum(1, True)
        index = end - self.depth + torch.arange(self.depth, device=v.device)
        return take_tokens(v, index.expand(v.shape[0], -1), 1)
