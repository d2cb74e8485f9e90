"""Which blocks the Triton kernels accept, tested without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.ops import triton_support
from rifflemix.ops.dispatch import PLAIN
from rifflemix.ops.sinkhorn import backends
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


@pytest.mark.parametrize("causal", [False, True])
def test_layers_under_autocast_may_have_kernels(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under autocast, the float32 sort matrix is cast to the dtype of q, as the kernels need."""
    asked: list[torch.dtype] = []

    def ask(names: tuple[str, ...], q: Tensor, sort: Tensor, _: int) -> tuple[str, ...]:
        asked.extend((q.dtype, sort.dtype))
        return names

    monkeypatch.setattr(backends, "INTERPRETED", True)
    monkeypatch.setattr(backends, "with_triton_attention", ask)
    layer = rm.create_mixer("sinkhorn", 16, num_heads=2, max_length=32, causal=causal)
    x = torch.randn(1, 32, 16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x).sum().backward()
    assert asked == [torch.bfloat16] * 2
    assert x.grad is not None
    assert x.grad.isfinite().all()
