"""Counter-based random numbers with an independent stream per sample.

Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (2014): SplitMix64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Rows = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Streams:
    """One stream of 64-bit words per sample.

    A stream does not depend on the other samples.

    Args:
        seed: Integer from 0 to 2**64 - 1.
        part: Number of the split. Streams of different parts are unrelated.
        samples: (S,) sample numbers.
    """

    def __init__(self, seed: int, part: int, samples: Rows) -> None:
        root = mix(mix(np.array([seed], dtype=np.uint64)) + np.uint64(part))
        self._keys = mix(root + samples.astype(np.uint64))
        self._drawn = np.zeros(len(samples), dtype=np.uint64)

    def of(self, rows: Rows) -> Streams:
        """Copy the streams at positions `rows`, including their current positions."""
        copies = Streams.__new__(Streams)
        copies._keys, copies._drawn = self._keys[rows], self._drawn[rows]
        return copies

    def draw(self, rows: Rows, count: int) -> Words:
        """Draw the next `count` words at positions `rows`: (len(rows), count)."""
        steps: Words = np.arange(1, count + 1).astype(np.uint64)
        positions = self._drawn[rows, None] + steps
        self._drawn[rows] += np.uint64(count)
        return mix(self._keys[rows, None] + positions * _GOLDEN)

    def uniform(self, rows: Rows, count: int) -> NDArray[np.float32]:
        """Draw floats in [0, 1) on a grid of 2**-24: (len(rows), count)."""
        words = self.draw(rows, count) >> np.uint64(40)
        return words.astype(np.float32) * np.float32(2.0**-24)


def mix(words: Words) -> Words:
    """Mix all 64 bits with the last step of SplitMix64, a bijection."""
    words = (words ^ (words >> np.uint64(30))) * _FACTORS[0]
    words = (words ^ (words >> np.uint64(27))) * _FACTORS[1]
    return words ^ (words >> np.uint64(31))
