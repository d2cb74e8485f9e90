"""One GPU for several trainings at once, by NVIDIA's multi-process service where it is there.

Without it processes take turns on the GPU, and a kernel of a small model leaves most of it idle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_SERVICE = "nvidia-cuda-mps-control"
_TRIAL = "import torch; torch.ones(1, device='cuda').sum().item()"
_SECONDS = 60


@contextmanager
def shared_gpu(jobs: int) -> Iterator[dict[str, str]]:
    """Start the service for as long as it is needed; yields what its clients need to know of it.

    Nothing is started for one job, or where there is no service or none that works: then this
    yields nothing, and processes take turns.
    """
    if jobs == 1 or shutil.which(_SERVICE) is None:
        yield {}
        return
    # A socket's path must be short, so that it cannot lie in any state folder.
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        clients = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        if not _ends_well([_SERVICE, "-d"], clients):
            yield {}
            return
        try:
            yield clients if _ends_well([sys.executable, "-c", _TRIAL], clients) else {}
        finally:
            _ends_well([_SERVICE], clients, "quit\n")


def _ends_well(command: list[str], clients: dict[str, str], says: str = "") -> bool:
    try:
        done = subprocess.run(
            command,
            input=says,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **clients},
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
