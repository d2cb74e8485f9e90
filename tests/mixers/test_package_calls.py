"""How many functions of this package a small forward pass calls: what Python costs there.

At (1, 64, 64) the arithmetic takes microseconds; each call of a function adds to that. Arguments
are checked once, at the mixer's door.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import rifflemix
from rifflemix.mixers import create_mixer
from rifflemix.ops.dispatch import prefer_backend
from rifflemix.ops.native import library

PACKAGE = str(Path(rifflemix.__file__).parent)
# With the compiled kernels, where there are any, and without.
MOST_CALLS = {"csp": (25, 30), "tssa": (25, 25), "sinkhorn": (40, 40)}


def package_calls(module: nn.Module, *inputs: Any) -> Counter[str]:
    """Functions of the package that `module(*inputs)` calls, by file and name."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls[f"{Path(code.co_filename).relative_to(PACKAGE)} {code.co_name}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        module(*inputs)
    finally:
        sys.setprofile(before)
    return calls


def test_every_call_is_counted() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = inner(inner(x))
            return y

    inner = create_mixer("identity", 8)
    calls = package_calls(Twice(), torch.randn(1, 4, 8))
    assert calls["mixers/base.py forward"] == 2
    assert not any("test_package_calls" in name for name in calls)


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("name", MOST_CALLS)
def test_a_small_forward_calls_few_functions(name: str, backend: str) -> None:
    mixer = create_mixer(name, 64, num_heads=4, max_length=64).eval()
    x = torch.randn(1, 64, 64)
    preferred = nullcontext() if backend == "auto" else prefer_backend(backend)
    with torch.no_grad(), preferred:
        mixer(x)  # what is made once and kept
        calls = package_calls(mixer, x)
    with_kernels, without = MOST_CALLS[name]
    has_kernels = backend == "auto" and library() is not None
    assert calls.total() <= (with_kernels if has_kernels else without), calls
