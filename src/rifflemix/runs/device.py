"""The device and the CPU threads of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rifflemix.errors import InputError, bad_argument


def check_device(device: str) -> None:
    """Raise unless `device` names one that is there."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise bad_argument("device", "cpu, cuda or cuda:<number>", repr(device)) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: expected one that is there, got {device!r}; no GPU was found")
    if kind not in ("cpu", "cuda"):
        raise bad_argument("device", "cpu, cuda or cuda:<number>", repr(device))


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let torch compute with `count` CPU threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
