"""How many functions of this package a small forward pass calls: what Python costs there.

At (1, 64, 64) the arithmetic takes microseconds; each call of a function adds to that. Arguments
are checked once, at the mixer's door.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
import torch

from rifflemix.lab.bench.calls import package_calls
from rifflemix.mixers import create_mixer
from rifflemix.ops.dispatch import prefer_backend
from rifflemix.ops.native import library

# With the compiled kernels, where there are any, and without. A few of them ask whether a size is a
# symbol, so that one exported graph serves every length. A kernel is two calls away: they take 3 us
# in place of the 55 of torch's dispatcher. Sinkhorn asks for each of its two kernels whether it can
# run: they take the place of hundreds of torch's small operators. Without kernels, each choice of a
# backend also reads the preference that the test sets.
MOST_CALLS = {
    "csp": (30, 36),
    "tssa": (28, 21),
    "sinkhorn": (68, 62),
    "butterfly": (43, 49),
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
        mixer(x)  # what is made once and kept
        calls = package_calls(lambda: mixer(x))
    with_kernels, without = MOST_CALLS[name]
    has_kernels = backend == "auto" and library() is not None
    assert calls.total() <= (with_kernels if has_kernels else without), calls
