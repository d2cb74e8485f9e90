"""Batch norm while activations are computed a second time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from rifflemix.compat import BatchNorm


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a batch norm, which changes its running statistics in training, is part of it."""
    return bool(_batch_norms(module))


def once_in_statistics(
    module: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the two passes of gradient checkpointing: only the first changes statistics."""
    return nullcontext(), kept_running_statistics(module)


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
