"""Where the tests of Triton kernels run: on a GPU, or interpreted on the CPU.

Interpretation is decided when Triton is imported, for a whole process: test_triton_interpreter.py
runs the files that use this in one of their own.
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
    """Skip a whole file where its kernels cannot run."""
    pytest.importorskip("triton", reason="needs triton: pip install -e '.[gpu]'")
    if DEVICE == "cpu" and not INTERPRETED:
        reason = "needs a GPU, or TRITON_INTERPRET=1 as test_triton_interpreter.py sets it"
        pytest.skip(reason, allow_module_level=True)
