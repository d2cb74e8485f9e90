"""When Triton kernels are available, tested without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from rifflemix.ops import triton_support
from rifflemix.ops.dispatch import PLAIN


def test_forward_mode_does_not_use_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels have no tangents: in forward mode, torch would treat their results as constants."""
    monkeypatch.setattr(triton_support, "INSTALLED", True)
    monkeypatch.setattr(triton_support, "INTERPRETED", True)
    x = torch.zeros(1)
    assert triton_support.with_triton(PLAIN, x) == ("triton", *PLAIN)
    with forward_ad.dual_level():
        assert triton_support.with_triton(PLAIN, x) == PLAIN
    assert torch.vmap(lambda _: torch.tensor("triton" in triton_support.with_triton(PLAIN, x)))(
        x
    ).tolist() == [False]
