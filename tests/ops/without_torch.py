"""Sort pairs of descending floats with the kernels alone, in a process without torch.

Without torch there is no thread team to share, so the library starts its own threads.

    python without_torch.py KERNELS [ALLOCATIONS]

With ALLOCATIONS, KERNELS needs an allocator that fails on demand. Each allocation fails in
turn.
"""

from __future__ import annotations

import ctypes
import sys

BATCH, LENGTH, CHANNELS, THREADS = 3, 512, 128, 3
BITS = (4, 0x7F800000, 0x7FC00000)  # bytes of a float, infinity, NaN
OUT_OF_MEMORY = -1


class Pairs:
    """A problem that is set up once and solved repeatedly."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self.values = [float(-i) for i in range(BATCH * LENGTH * CHANNELS)]
        self.x = (ctypes.c_float * len(self.values))(*self.values)
        self.y = (ctypes.c_float * len(self.values))()
        at = ctypes.addressof
        strides = (LENGTH * CHANNELS, CHANNELS)
        sizes = (BATCH, LENGTH, CHANNELS, 2)
        fields = [at(self.x), *strides, at(self.y), 0, 0, 0, 0, 0, 0, *sizes, 0, *BITS, 0, THREADS]
        self.problem = (ctypes.c_int64 * 20)(*fields)
        self.kernel = kernels.rifflemix_sort_pairs
        self.kernel.restype = ctypes.c_int64
        self.scratch = (ctypes.c_char * self.kernel(self.problem))()
        self.problem[18] = at(self.scratch)

    def sort(self) -> bool:
        """Sort and check the result; return False if out of memory."""
        ctypes.memset(self.y, 0, ctypes.sizeof(self.y))
        if self.kernel(self.problem) == OUT_OF_MEMORY:
            return False
        for row in range(0, BATCH * LENGTH, 2):
            low, middle, high = (CHANNELS * r for r in (row, row + 1, row + 2))
            assert list(self.y[low:high]) == self.values[middle:high] + self.values[low:middle]
        return True


def main(path: str, allocations: int = 0) -> None:
    kernels = ctypes.CDLL(path)
    assert not hasattr(ctypes.CDLL(None), "GOMP_parallel")
    pairs = Pairs(kernels)
    if not allocations:
        assert all(pairs.sort() for _ in range(20))
        return
    kernels.fail_allocation.argtypes = [ctypes.c_long]
    failed = 0
    for number in range(allocations):
        kernels.fail_allocation(number)
        failed += not pairs.sort()
    assert failed in range(1, allocations), failed


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
