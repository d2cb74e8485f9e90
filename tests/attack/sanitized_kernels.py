"""A pytest plugin that `sanitize.py` loads, so that the tests use the sanitized kernels."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from rifflemix.ops import native

native._FOLDER = Path(os.environ["RIFFLEMIX_KERNELS"])
assert native.library() is not None, native.find_library()[1]
if "RIFFLEMIX_KERNEL_THREADS" in os.environ:
    # Only for the kernels: torch is not instrumented and keeps one thread.
    torch.get_num_threads = lambda: int(os.environ["RIFFLEMIX_KERNEL_THREADS"])
    torch.set_num_threads = lambda _: None
