"""Device for the tests of Triton kernels: a GPU, or the CPU with Triton's interpreter.

Triton decides about interpretation at import, for the whole process. test_triton_interpreter.py
therefore runs these test files in a separate process.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU"),
]


def require_kernels() -> None:
    """Skip a whole file if its kernels cannot run."""
    pytest.importorskip("triton", reason="needs triton: pip install -e '.[gpu]'")
    if DEVICE == "cpu" and not INTERPRETED:
        reason = "needs a GPU, or TRITON_INTERPRET=1 as test_triton_interpreter.py sets it"
        pytest.skip(reason, allow_module_level=True)
