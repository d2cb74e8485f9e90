"""Memory layouts and tiles for the GPU kernels of this family."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from rifflemix.ops.statistics import triton_kernels as kernels
from rifflemix.ops.triton_support import ROUNDED, launch

# All tile sizes are tuned on an H100. Elements in a tile of tokens with all heads: 16 per thread.
_TILE = 2048
# Fewest tokens per program, because the sum of a program needs as much memory as one token.
_CHUNK = 64
# Elements per warp in the tile of one head (32 per lane), and elements in a tile of chunk sums.
_OF_WARP, _SUMS = 1024, 16384


def empty_tokens(w: Tensor) -> Tensor:
    """Allocate (B, H, N, D) with (B, N, H, D) storage, so that merging heads needs no copy."""
    batch, heads, length, features = w.shape
    return w.new_empty((batch, length, heads, features)).transpose(1, 2)


def float32(like: Tensor, *shape: int) -> Tensor:
    """Allocate a float32 tensor on the device of `like`."""
    return like.new_empty(shape, dtype=torch.float32)


def mask_bytes(mask: Tensor | None) -> Tensor | None:
    """View a mask as contiguous bytes for the kernels."""
    return None if mask is None else mask.contiguous().view(torch.uint8)


def sum_tile(chunks: int, width: int) -> dict[str, int]:
    """Choose the tile for chunk sums, all in one if possible."""
    columns = triton.next_power_of_2(width)
    rows = max(1, min(triton.next_power_of_2(chunks), 128, _SUMS // columns))
    warps = 8 if rows * columns > 4096 else 4
    return {"ROWS": rows, "WIDTH": columns, "num_warps": warps, **ROUNDED}


def sums_layout(sums: Tensor) -> tuple[int, dict[str, int]]:
    """Choose programs and tile to add up chunk sums.

    The sums are (B, H, chunks, width). Each program adds some of the columns.
    """
    batch, heads, chunks, width = sums.shape
    tile = sum_tile(chunks, min(width, 32))
    return batch * heads * -(-width // tile["WIDTH"]), tile


def head_tile(w: Tensor) -> tuple[int, dict[str, int]]:
    """Return chunks per sample and tile, with all heads per program."""
    _, heads, length, features = w.shape
    heads, width = triton.next_power_of_2(heads), triton.next_power_of_2(features)
    tokens = min(_CHUNK, max(1, _TILE // (heads * width)))
    steps = _CHUNK // tokens
    tile = {
        "TOKENS": tokens,
        "HEADS": heads,
        "WIDTH": width,
        "STEPS": steps,
        "num_warps": min(16, 4 * max(1, heads * width // _TILE)),
        **ROUNDED,
    }
    return -(-length // (tokens * steps)), tile


def token_layout(w: Tensor) -> tuple[int, int, dict[str, int]]:
    """Return programs, chunks per sample and tile, with one head per program."""
    batch, heads, length, features = w.shape
    width = triton.next_power_of_2(features)
    warps = max(1, min(8, width // 32))
    tile = {"ROWS": max(1, _OF_WARP * warps // max(width, 16)), "WIDTH": width, "num_warps": warps}
    chunks = -(-length // tile["ROWS"])
    return batch * heads * chunks, chunks, tile


def sum_squares(w: Tensor, mask: Tensor | None, layout: tuple[int, int, dict[str, int]]) -> Tensor:
    """Sum w^2 over the chunks of a layout: (B, H, chunks, D)."""
    batch, heads, length, features = w.shape
    programs, chunks, tile = layout
    sums = float32(w, batch, heads, chunks, features)
    launch(
        kernels.sum_squares, programs, w,
        w, mask, sums, *w.stride()[:3], heads, length, features, chunks, **tile, **ROUNDED,
    )  # fmt: skip
    return sums
