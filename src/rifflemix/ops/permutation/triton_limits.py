"""Limits of the GPU kernels of this family, without importing Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rifflemix.errors import bad_argument
from rifflemix.ops import triton_support

BITS = {torch.bfloat16: 16, torch.float16: 16, torch.float32: 32}
INFINITY_BITS = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}
# Longest window that one program can sort, by bits per value.
MAX_WINDOW = {16: 16384, 32: 8192}
# Longest window, by bits per value, for which "auto" selects the kernels. Up to this length the
# kernels were faster than the eager backend on an H100 or H200 (docs/gpu.md). Longer windows were
# not measured.
FASTEST_WINDOW = {16: 16384, 32: 1024}
MAX_OFFSET = 2**31 - 1


def with_triton(names: tuple[str, ...], x: Tensor, group_size: int = 1) -> tuple[str, ...]:
    """Add "triton" to the backends if its kernels can sort `x`."""
    if x.dtype not in BITS:
        return names
    fits = group_size <= longest_window(x)
    batch, length, channels = x.shape
    found = triton_support.with_triton(
        names, x, fits, length * channels <= MAX_OFFSET, batch * length <= MAX_OFFSET
    )
    if found is names or group_size <= FASTEST_WINDOW[BITS[x.dtype]]:
        return found
    return ("triton", *names)


def longest_window(x: Tensor) -> int:
    """Return the longest window that one program can sort."""
    # The programs for the longest windows exchange all slots of two channels in shared memory.
    bits = BITS[x.dtype]
    room = triton_support.shared_memory(x.device) // (2 * 2 * bits // 8)
    return min(MAX_WINDOW[bits], 1 << (room.bit_length() - 1))


def check_limits(x: Tensor, group_size: int) -> None:
    """Check that the kernels support tokens (B, N, C) and groups of this size."""
    triton_support.check_device(x)
    longest = longest_window(x)
    if group_size > longest:
        raise bad_argument("x", f"groups of at most {longest:,} tokens", f"{group_size:,}")
    batch, length, channels = x.shape
    if length * channels > MAX_OFFSET:
        raise bad_argument("x", f"at most {MAX_OFFSET:,} values a sample", tuple(x.shape))
    if batch * length > MAX_OFFSET:
        raise bad_argument("x", f"at most {MAX_OFFSET:,} tokens", tuple(x.shape))
