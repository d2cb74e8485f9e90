"""Packed sequences through the Triton kernels: one call for each length."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from triton_device import DEVICE, require_kernels

import rifflemix as rm
from rifflemix.ops.dispatch import prefer_backend

require_kernels()

LENGTHS = (3, 1, 0, 7, 3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tssa", {}),
        ("tssa", {"causal": True}),
        ("csp", {"group_size": 3, "pad": True, "shift": "power", "num_layers": 2}),
        ("sliceformer", {}),
    ],
    ids=str,
)
def test_packed_sequences_in_triton(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    mixer = rm.create_mixer(name, 4, num_heads=2, max_length=8, **options).to(DEVICE)
    x = torch.randn(1, sum(LENGTHS), 4, device=DEVICE).requires_grad_()
    leaves = (x, *mixer.parameters())

    def with_gradients(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = torch.linspace(-1, 1, y.numel(), device=DEVICE).view_as(y)
        return y, *torch.autograd.grad((y * weights).sum(), leaves)

    bounds = torch.tensor((0, *accumulate(LENGTHS)), device=DEVICE)
    with prefer_backend("triton"):
        together = with_gradients(mixer(x, cu_seqlens=bounds))
    with prefer_backend("eager"):
        parts = [mixer(part) for part in x.split(LENGTHS, 1) if part.shape[1]]
        alone = with_gradients(torch.cat(parts, 1))
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
