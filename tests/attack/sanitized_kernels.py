"""A plugin of pytest that `sanitize.py` loads: the tests take the kernels that it built."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from rifflemix.ops import native

native._FOLDER = Path(os.environ["RIFFLEMIX_KERNELS"])
assert native.library() is not None, native.find_library()[1]
if "RIFFLEMIX_KERNEL_THREADS" in os.environ:
    # For the kernels alone: torch, which is not instrumented, stays with one thread.
    torch.get_num_threads = lambda: int(os.environ["RIFFLEMIX_KERNEL_THREADS"])
    torch.set_num_threads = lambda _: None
