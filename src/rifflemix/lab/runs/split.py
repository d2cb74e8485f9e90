"""Training with context parallelism: models that split whole batches and gather their outputs.

All processes that share a sequence get the same batch from the training loop.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.runs.processes import count_processes
from rifflemix.lab.tasks import Task
from rifflemix.lab.train.engine import Engine, check_context_parallel
from rifflemix.models import Model
from rifflemix.models.vision.vit import ViT
from rifflemix.parallel import check_sharded_form, shard_sequence
from rifflemix.parallel.layers import ShardedEncoder, ShardedGPT
from rifflemix.parallel.shards import SequenceGroup


def check_processes(context_parallel: int) -> None:
    """Raise InputError unless torchrun started a multiple of `context_parallel` processes."""
    processes = count_processes()
    if context_parallel > 1 and processes == 1:
        raise InputError(
            f"context_parallel: expected {context_parallel} processes or a multiple of them, but "
            f"this is one alone; start it with torchrun --nproc-per-node {context_parallel} -m "
            "rifflemix in place of rifflemix"
        )
    check_context_parallel(context_parallel, processes)


def check_split(model: Model, task: Task, context_parallel: int) -> None:
    """Raise InputError unless the model and the task support `context_parallel` processes."""
    if context_parallel == 1:
        return
    check_sharded_form(model)
    if isinstance(model, ViT):
        what, length = "number of patches", model.num_patches
    else:
        what, length = f"max_length of task {task.name}", task.max_length
    if length % context_parallel:
        raise bad_argument(
            "context_parallel", f"a divisor of the {what}, {length}", context_parallel
        )


def split_model(model: Model, engine: Engine) -> Model:
    """Split a model's sequences over the processes that share them, in place.

    The model still accepts whole batches, equal on these processes, and returns whole outputs. A
    `GPT` gathers all logits on each process.

    Raises:
        InputError: `rifflemix.parallel.shard_sequence` does not support the model. Calls of the
            model also raise it if a batch needs padding and the pooling counts padding.
    """
    if engine.context_parallel > 1:
        shard_sequence(model.to(engine.device), engine.sequence_mesh())
        whole = _WHOLE.get(type(model))
        if whole is not None:
            model.__class__ = whole
    return model


class _WholeEncoder(ShardedEncoder):
    """Sharded encoder that accepts whole inputs and splits them."""

    def forward(
        self,
        inputs: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Run `SequenceClassifier.forward` on inputs that are equal on all processes."""
        _check_not_packed(cu_seqlens)
        dim = 1 if self.num_sequences == 1 else 2
        kind = getattr(self.pool, "kind", "")
        if kind == "position_mean" and inputs.shape[dim] % self.sequence.size:
            raise bad_argument(
                "inputs",
                f"a number of tokens that {self.sequence.size} processes divide, since "
                "pool='position_mean' counts padding",
                inputs.shape[dim],
            )
        inputs, mask = _own_part(inputs, key_padding_mask, self.sequence, dim)
        return super().forward(inputs, key_padding_mask=mask)


class _WholeGPT(ShardedGPT):
    """Sharded language model that accepts whole inputs, splits them and gathers the logits."""

    def forward(
        self,
        tokens: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Run `GPT.forward` on inputs that are equal on all processes."""
        _check_not_packed(cu_seqlens)
        length = tokens.shape[1]
        own, mask = _own_part(tokens, key_padding_mask, self.sequence, 1)
        logits = super().forward(own, key_padding_mask=mask)
        return self.sequence.shards(own.shape[1]).gather(logits)[:, :length]


_WHOLE: dict[type[Model], type[Model]] = {
    ShardedEncoder: _WholeEncoder,
    ShardedGPT: _WholeGPT,
}


def _check_not_packed(cu_seqlens: Tensor | None) -> None:
    if cu_seqlens is not None:
        raise bad_argument("cu_seqlens", "None where sequences are split over processes", "offsets")


def _own_part(
    inputs: Tensor, mask: Tensor | None, sequence: SequenceGroup, dim: int
) -> tuple[Tensor, Tensor | None]:
    """Return the tokens of this process and their padding mask.

    Inputs are padded to a multiple of the number of processes.
    """
    missing = -inputs.shape[dim] % sequence.size
    if missing:
        if mask is None:
            mask = torch.zeros(inputs.shape[: dim + 1], dtype=torch.bool, device=inputs.device)
        mask = F.pad(mask, (0, missing), value=True)
        inputs = F.pad(inputs, (0, 0) * (inputs.dim() - 1 - dim) + (0, missing))
    each = inputs.shape[dim] // sequence.size
    start = sequence.rank * each
    own = None if mask is None else mask.narrow(dim, start, each)
    return inputs.narrow(dim, start, each), own
