"""Definitions shared by all dropout backends: the seed, the threshold and the scale.

Element i has a number of 32 random bits that depends only on the seed and on i. Both halves of the
number come from Threefry-4x32 with 13 rounds: half i % 16 % 2 of word i % 64 // 16 of block
8 (i // 64) + i % 16 // 2. The first stream contains the upper half and the second stream the lower
half. An element is dropped if its number is less than p 2^32.

Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 64
"""Number of elements in a tile; the numbers of a tile are generated together."""
BLOCKS_PER_TILE = 8
ROUNDS = 13
"""One round more than the generator needs to pass every BigCrush test."""
ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
PARITY = 0x1BD11BDA


def draw_seed(device: torch.device | str = "cpu") -> Tensor:
    """Draw a () int64 seed from torch's generator.

    Checkpoints save the state of this generator.
    """
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)


def threshold(p: float) -> int:
    """Round p 2^32 to an integer; elements with smaller numbers are dropped."""
    return min(round(p * 2**32), 2**32 - 1)


def scale(p: float) -> float:
    """Return the factor of the kept elements."""
    return 1.0 / (1.0 - p)
