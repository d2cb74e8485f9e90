"""Number of rifflemix functions that a small forward pass calls.

At (1, 64, 64) the arithmetic takes microseconds, so every Python call matters. Mixers check their
arguments once, at their entry point.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
import torch

from rifflemix.lab.runs.measure import package_calls
from rifflemix.mixers import create_mixer
from rifflemix.ops.dispatch import prefer_backend
from rifflemix.ops.native import library

# Counts with the compiled kernels, if available, and without. A few calls check whether a size is
# symbolic, so that one exported graph serves every length. A kernel needs three calls and 3 us
# instead of the 55 us of torch's dispatcher. Sinkhorn checks for each of its two kernels whether it
# can run. They replace hundreds of small torch operators. Without kernels, each choice of a backend
# also reads the preference that the test sets.
MOST_CALLS = {
    "csp": (25, 32),
    "tssa": (25, 21),
    "sinkhorn": (42, 48),
    "butterfly": (36, 39),
}


def test_every_call_is_counted() -> None:
    mixer, x = create_mixer("identity", 8), torch.randn(1, 4, 8)
    calls = package_calls(lambda: mixer(mixer(x)))
    assert calls["mixers/base.py forward"] == 2
    assert calls["mixers/base.py _check_input"] == 2
    assert not any("test_package_calls" in name for name in calls)
    assert sys.getprofile() is None


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("name", MOST_CALLS)
def test_a_small_forward_calls_few_functions(name: str, backend: str) -> None:
    mixer = create_mixer(name, 64, num_heads=4, max_length=64).eval()
    x = torch.randn(1, 64, 64)
    preferred = nullcontext() if backend == "auto" else prefer_backend(backend)
    with torch.no_grad(), preferred:
        mixer(x)  # fills the caches
        calls = package_calls(lambda: mixer(x))
    with_kernels, without = MOST_CALLS[name]
    has_kernels = backend == "auto" and library() is not None
    assert calls.total() <= (with_kernels if has_kernels else without), calls
