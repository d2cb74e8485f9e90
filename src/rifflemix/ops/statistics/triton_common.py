"""Layout and tiles of tensors for the GPU kernels of this family."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from rifflemix.ops.statistics import triton_kernels as kernels
from rifflemix.ops.triton_support import ROUNDED, launch

# All tiles were timed on an H100. Numbers in a tile of tokens with all their heads: 16 a thread.
_TILE = 2048
# Tokens a program sums over, at least: their sum takes as much room as a token.
_CHUNK = 64
# Numbers in a head's tile for each warp, 32 a lane, and in a tile of sums of chunks.
_OF_WARP, _SUMS = 1024, 16384


def with_whole_rows(tokens: Tensor) -> Tensor:
    """Tokens (B, H, N, D) whose D features lie side by side: a copy only where they do not."""
    if tokens.stride(-1) == 1 or tokens.shape[-1] == 1:
        return tokens
    return tokens.transpose(1, 2).contiguous().transpose(1, 2)


def empty_tokens(w: Tensor) -> Tensor:
    """(B, H, N, D) in a (B, N, H, D) storage, so that putting heads together is free."""
    batch, heads, length, features = w.shape
    return w.new_empty((batch, length, heads, features)).transpose(1, 2)


def float32(like: Tensor, *shape: int) -> Tensor:
    """Room for float32 numbers beside a tensor."""
    return like.new_empty(shape, dtype=torch.float32)


def mask_bytes(mask: Tensor | None) -> Tensor | None:
    """A mask as kernels read it."""
    return None if mask is None else mask.contiguous().view(torch.uint8)


def sum_tile(chunks: int, width: int) -> dict[str, int]:
    """Tile of the sums of chunks: all of them at once, where they are not too many."""
    columns = triton.next_power_of_2(width)
    rows = max(1, min(triton.next_power_of_2(chunks), 128, _SUMS // columns))
    warps = 8 if rows * columns > 4096 else 4
    return {"ROWS": rows, "WIDTH": columns, "num_warps": warps, **ROUNDED}


def sums_layout(sums: Tensor) -> tuple[int, dict[str, int]]:
    """Programs and tile that add up sums (B, H, chunks, width), each some of the columns."""
    batch, heads, chunks, width = sums.shape
    tile = sum_tile(chunks, min(width, 32))
    return batch * heads * -(-width // tile["WIDTH"]), tile


def head_tile(w: Tensor) -> tuple[int, dict[str, int]]:
    """Chunks of a sample, and the tile of tokens with all their heads."""
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
    """Programs, chunks of a sample and tile where each head of each chunk is on its own."""
    batch, heads, length, features = w.shape
    width = triton.next_power_of_2(features)
    warps = max(1, min(8, width // 32))
    tile = {"ROWS": max(1, _OF_WARP * warps // max(width, 16)), "WIDTH": width, "num_warps": warps}
    chunks = -(-length // tile["ROWS"])
    return batch * heads * chunks, chunks, tile


def sum_squares(w: Tensor, mask: Tensor | None, layout: tuple[int, int, dict[str, int]]) -> Tensor:
    """(B, H, chunks, D): sums of w^2 over the chunks of a layout."""
    batch, heads, length, features = w.shape
    programs, chunks, tile = layout
    sums = float32(w, batch, heads, chunks, features)
    launch(
        kernels.sum_squares, programs, w,
        w, mask, sums, *w.stride()[:3], heads, length, features, chunks, **tile, **ROUNDED,
    )  # fmt: skip
    return sums
