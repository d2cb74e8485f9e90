"""What the implementations of this family share: the seed, the threshold, the scale.

Element i has a number of 32 random bits, a function of the seed and of i alone: half i % 16 % 2 of
word i % 64 // 16 of block 8 (i // 64) + i % 16 // 2 is its upper half, in the first stream of
Threefry-4x32 with 13 rounds, and its lower half, in the second. It is dropped where its number is
below p 2^32.

Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 64
"""Elements whose numbers are drawn together."""
BLOCKS_PER_TILE = 8
ROUNDS = 13
"""One more than the fewest with which the generator passes every test of BigCrush."""
ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
PARITY = 0x1BD11BDA


def draw_seed(device: torch.device | str = "cpu") -> Tensor:
    """() int64: one number of torch's generator on a device, which checkpoints save."""
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)


def threshold(p: float) -> int:
    """P 2^32 to the nearest: numbers below it are dropped."""
    return min(round(p * 2**32), 2**32 - 1)


def scale(p: float) -> float:
    """What kept elements are multiplied by."""
    return 1.0 / (1.0 - p)
