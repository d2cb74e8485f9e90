"""State that the second forward pass of gradient checkpointing must share with the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from rifflemix.compat import BatchNorm
from rifflemix.ops.dispatch import prefer_backend, preferred_backend


def contexts_of_passes(
    module: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts for both passes of gradient checkpointing.

    Call this function before the first pass. Only the first pass updates the statistics of batch
    norms. The second pass uses the same backends as the first. On a GPU it runs on an autograd
    thread without a preferred backend.
    """
    return nullcontext(), _second_pass(module, preferred_backend() or "auto")


@contextmanager
def _second_pass(module: nn.Module, backend: str) -> Iterator[None]:
    with prefer_backend(backend), kept_running_statistics(module):
        yield


@contextmanager
def kept_running_statistics(module: nn.Module) -> Iterator[None]:
    """Keep the running statistics and counts of batch norms unchanged during training."""
    norms = _batch_norms(module)
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


def _batch_norms(module: nn.Module) -> list[BatchNorm]:
    return [part for part in module.modules() if isinstance(part, BatchNorm)]
