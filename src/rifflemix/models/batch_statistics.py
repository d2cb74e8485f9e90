"""The second forward pass of gradient checkpointing: what must be as in the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from rifflemix.compat import BatchNorm
from rifflemix.ops.dispatch import prefer_backend, preferred_backend


def contexts_of_passes(
    module: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the two passes of gradient checkpointing; call it before the first.

    Only the first pass changes the statistics of batch norms. The second pass uses the backends of
    the first, although a GPU runs it on a thread of autograd, which has no preferred backend.
    """
    return nullcontext(), _second_pass(module, preferred_backend() or "auto")


@contextmanager
def _second_pass(module: nn.Module, backend: str) -> Iterator[None]:
    with prefer_backend(backend), kept_running_statistics(module):
        yield


@contextmanager
def kept_running_statistics(module: nn.Module) -> Iterator[None]:
    """Within, batch norms in training leave their running statistics and counts as they are."""
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
