"""Which blocks Triton's kernels attend to, decided without a GPU."""

from __future__ import annotations

import pytest
import torch

from rifflemix.ops import triton_support
from rifflemix.ops.dispatch import PLAIN
from rifflemix.ops.sinkhorn.triton_limits import with_triton_attention


def as_on_a_gpu(names: tuple[str, ...], _: object, *conditions: bool) -> tuple[str, ...]:
    return (*names, "triton") if all(conditions) else names


@pytest.mark.parametrize(
    ("kib", "blocks", "block_size", "width", "dtype", "fits"),
    [
        (227, 64, 64, 64, torch.float32, True),
        (227, 128, 128, 128, torch.bfloat16, True),
        (99, 64, 64, 64, torch.float32, False),
        (99, 32, 32, 64, torch.float32, True),
        (99, 64, 64, 128, torch.bfloat16, True),
        (99, 64, 128, 64, torch.bfloat16, False),
        (163, 128, 128, 128, torch.bfloat16, False),
        (64, 1, 1, 1, torch.bfloat16, False),
    ],
)
def test_blocks_fit_the_shared_memory_of_the_gpu(
    kib: int,
    blocks: int,
    block_size: int,
    width: int,
    dtype: torch.dtype,
    fits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_support, "with_triton", as_on_a_gpu)
    monkeypatch.setattr(triton_support, "shared_memory", lambda _: 1024 * kib)
    q = torch.empty(1, 1, blocks * block_size, width, dtype=dtype)
    sort = torch.empty(1, 1, blocks, blocks, dtype=dtype)
    found = with_triton_attention(PLAIN, q, sort, block_size)
    assert found == ((*PLAIN, "triton") if fits else PLAIN)
