"""Device and CPU threads of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rifflemix.errors import InputError, bad_argument


def resolve_device(device: str) -> str:
    """Replace `auto` by cuda if a GPU is available, else by cpu."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Raise InputError unless `device` is available."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise bad_argument("device", "cpu, cuda or cuda:<number>", repr(device)) from None
    kind = found.type
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: expected one that is there, got {device!r}; no GPU was found")
    if kind == "cuda" and (found.index or 0) >= (count := torch.cuda.device_count()):
        raise bad_argument("device", f"an index under {count}", repr(device))
    if kind not in ("cpu", "cuda") or (kind == "cpu" and found.index):
        raise bad_argument("device", "cpu, cuda or cuda:<number>", repr(device))


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Set the number of torch's CPU threads to `count` inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
