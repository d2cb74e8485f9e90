"""Sequence parallelism of a model: each process has a shard of the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rifflemix.compat import BatchNorm
from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.mixers.baselines.average import AveragePooling
from rifflemix.mixers.baselines.identity import Identity
from rifflemix.mixers.baselines.linear import LinearAttention
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.mixers.butterfly import Butterfly
from rifflemix.mixers.causal_csp import CausalCSP
from rifflemix.mixers.csp import CSP
from rifflemix.mixers.grouped import Grouped
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.mixers.sliceformer import Sliceformer
from rifflemix.mixers.tssa import TSSA
from rifflemix.models.base import Model
from rifflemix.models.language.gpt import GPT
from rifflemix.models.sequence.encoder import Encoder
from rifflemix.models.vision.vit import ViT
from rifflemix.nn.block import ShortConvolution
from rifflemix.nn.embeddings import PatchEmbedding
from rifflemix.nn.layers import ClassToken, DropPath
from rifflemix.nn.pooling import Pooling
from rifflemix.nn.positions import PositionEmbedding, SinusoidalPositions
from rifflemix.parallel import layers
from rifflemix.parallel.compat import all_gather, fsdp_holds
from rifflemix.parallel.layers import ShardedEncoder, ShardedGPT, ShardedViT
from rifflemix.parallel.mesh import average_gradients, check_gradients, sequence_group
from rifflemix.parallel.mixers import (
    ShardedAverage,
    ShardedButterfly,
    ShardedGrouped,
    ShardedIdentity,
    ShardedLinear,
    ShardedSinkhorn,
    ShardedSoftmax,
    ShardedTSSA,
)
from rifflemix.parallel.permutations import ShardedCausalCSP, ShardedCSP, ShardedSliceformer
from rifflemix.parallel.shards import SequenceGroup, ShardedMixer

_MIXERS: Mapping[type[nn.Module], type[nn.Module]] = {
    AveragePooling: ShardedAverage,
    Butterfly: ShardedButterfly,
    CSP: ShardedCSP,
    CausalCSP: ShardedCausalCSP,
    Grouped: ShardedGrouped,
    Identity: ShardedIdentity,
    LinearAttention: ShardedLinear,
    Sinkhorn: ShardedSinkhorn,
    Sliceformer: ShardedSliceformer,
    SoftmaxAttention: ShardedSoftmax,
    TSSA: ShardedTSSA,
}
_MODELS: Mapping[type[nn.Module], type[nn.Module]] = {
    Encoder: ShardedEncoder,
    GPT: ShardedGPT,
    ViT: ShardedViT,
}
_LAYERS: Mapping[type[nn.Module], type[nn.Module]] = {
    ClassToken: layers.ShardedClassToken,
    DropPath: layers.ShardedDropPath,
    PatchEmbedding: layers.ShardedPatchEmbedding,
    Pooling: layers.ShardedPooling,
    PositionEmbedding: layers.ShardedPositionEmbedding,
    SinusoidalPositions: layers.ShardedSinusoidalPositions,
}
SHARDED_MIXERS = tuple(sorted({cls.card.name for cls in _MIXERS if issubclass(cls, TokenMixer)}))
"""Registry names of the mixers that `shard_sequence` supports."""

_M = TypeVar("_M", bound=nn.Module)
_DESCRIBED, _DIMS = 3, 6  # numbers of tensors and dimensions to compare


def shard_sequence(model: _M, mesh: DeviceMesh) -> _M:
    """Split the tokens of a model over a device mesh, in place.

    All processes of the mesh call this function. Afterwards, all processes call the model and
    `backward` together. Each process passes its own shard (`shard_tokens`) of the same batch and of
    its `key_padding_mask`; a `ViT` needs whole images. Outputs for tokens belong to the process's
    own shard. Pooled outputs are equal on all processes.

    Weights and buffers are copied from rank 0. Gradients are averaged over the processes of the
    mesh. They equal the gradients of one device if every process computes the mean loss of all
    tokens (`mean_over_tokens`), or the mean loss of its shard. For data parallelism, wrap the model
    afterwards in DistributedDataParallel over another dimension of the mesh.

    Args:
        model: an `Encoder`, `GPT` or `ViT`, or a mixer. Also a user's module: apart from mixers and
            layers of `rifflemix.nn`, its layers must act on each token separately. Parameters and
            their names do not change.
        mesh: a one-dimensional mesh.

    Returns:
        The model.

    Raises:
        InputError: the mesh has several dimensions or does not contain this process. Or the model
            has no mixer, or a mixer or setting without a sharded variant. Or the model has batch
            normalization other than SyncBatchNorm, or is sharded by FSDP. The model does not change
            in these cases. Later calls of the model raise for shards of different shapes, for a
            `fully_shard` mesh without all processes of the sequence, and for FSDP1
            (FullyShardedDataParallel).

    Example:
        >>> import torch, rifflemix as rm
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> mesh = torch.distributed.init_device_mesh("cpu", (1,))
        >>> model = rm.create_model("gpt", mixer="tssa", max_length=64)
        >>> tokens = rm.parallel.shard_tokens(torch.zeros(2, 64, dtype=torch.int64), mesh)
        >>> rm.parallel.shard_sequence(model, mesh)(tokens).shape
        torch.Size([2, 64, 256])
        >>> torch.distributed.destroy_process_group()
    """
    if not isinstance(model, nn.Module):
        raise bad_argument("model", "a torch.nn.Module", type(model).__name__)
    sequence = sequence_group(mesh)
    if fsdp_holds(model):
        raise bad_argument(
            "model", "one that is whole", "one that FSDP has sharded", "call fully_shard after this"
        )
    changes, extra = _planned(model)
    sequence = SequenceGroup(sequence.group, sequence.rank, sequence.size, extra)
    for module, sharded in changes:
        module.__class__ = sharded
        cast(Any, module).sequence = sequence
    for tensor in (*model.parameters(), *model.buffers()):
        torch.distributed.broadcast(tensor.detach(), group=sequence.group, group_src=0)
    average_gradients(sequence, model)
    model.register_forward_pre_hook(partial(check_gradients, sequence), with_kwargs=True)
    model.register_forward_pre_hook(partial(_check_shapes, sequence), with_kwargs=True)
    return model


def check_sharded_form(model: nn.Module) -> None:
    """Raise InputError if `shard_sequence` does not support a model on any mesh."""
    _planned(model)


def _planned(model: nn.Module) -> tuple[list[tuple[nn.Module, type[nn.Module]]], int]:
    """Return modules with their new classes, and the number of class tokens."""
    changes = list(_changes(model))
    return changes, _class_tokens(changes)


def _changes(model: nn.Module) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
    """Yield the modules to change and their new classes."""
    mixers = 0
    for name, module in _outer_modules(model, ""):
        where = f" in {name}" if name else ""
        if isinstance(module, ShardedMixer | layers.ShardedLayer):
            raise bad_argument("model", "one that is not sharded yet", "one that is")
        if isinstance(module, BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            raise bad_argument(
                "model",
                "norms of single tokens",
                f"{type(module).__name__}{where}",
                "torch.nn.SyncBatchNorm.convert_sync_batchnorm gives the norm over all shards",
            )
        if isinstance(module, ShortConvolution):
            raise bad_argument("model", "settings that can be sharded", f"short_conv{where}")
        known = _known_forms(module)
        sharded = known.get(type(module))
        if sharded is None:
            if known is _LAYERS:
                continue
            raise _no_sharded_form(module, known, where)
        if known is not _LAYERS:
            setting = cast(Any, sharded).cannot_shard(module)
            if setting:
                kind = _title(module)
                raise bad_argument(
                    "model", f"settings of {kind} that can be sharded", f"{setting}{where}"
                )
        mixers += known is _MIXERS
        yield module, sharded
    if not mixers:
        raise bad_argument(
            "model", "one that holds token mixers", f"{type(model).__name__} without any"
        )


def _outer_modules(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module once, except modules inside mixers."""
    seen: set[int] = set()
    todo = [(name, module)]
    while todo:
        name, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        if not isinstance(module, TokenMixer):
            prefix = f"{name}." if name else ""
            todo += [(prefix + inner, child) for inner, child in module.named_children()]


def _known_forms(module: nn.Module) -> Mapping[type[nn.Module], type[nn.Module]]:
    if isinstance(module, TokenMixer):
        return _MIXERS
    return _MODELS if isinstance(module, Model) else _LAYERS


def _no_sharded_form(
    module: nn.Module, known: Mapping[type[nn.Module], type[nn.Module]], where: str
) -> InputError:
    names = ", ".join(sorted({_name(cls) for cls in known}))
    kind = "mixers" if known is _MIXERS else "a model or modules of your own"
    return bad_argument(
        "model", f"{kind} with a sharded form ({names})", f"{_title(module)}{where}"
    )


def _name(cls: type[nn.Module]) -> str:
    return cls.card.name if issubclass(cls, TokenMixer) else cls.__name__


def _title(module: nn.Module) -> str:
    return _name(type(module))


def _class_tokens(changes: list[tuple[nn.Module, type[nn.Module]]]) -> int:
    """Count the class tokens in front of a sequence."""
    count = 0
    for module, sharded in changes:
        if isinstance(module, Encoder):
            count += cast(Any, sharded).class_tokens(module)
        count += isinstance(module, ClassToken)
    if count > 1:
        raise bad_argument("model", "one class token at most", count)
    return count


def _check_shapes(
    sequence: SequenceGroup, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Raise on all processes unless all have inputs of the same shapes.

    Compiled graphs skip the check.
    """
    tensors = [value for value in (*args, *options.values()) if isinstance(value, Tensor)]
    if torch.compiler.is_compiling() or not tensors:
        return
    described = torch.zeros(_DESCRIBED, 1 + _DIMS, dtype=torch.int64)
    for row, tensor in zip(described, tensors, strict=False):
        row[0] = 1 + tensor.dim()
        row[1 : 1 + min(tensor.dim(), _DIMS)] = torch.tensor(tensor.shape[:_DIMS])
    everybody = all_gather(described.unsqueeze(0).to(tensors[0].device), sequence.group).tolist()
    if any(other != everybody[0] for other in everybody):
        shapes = [
            " and ".join(str(tuple(row[1 : row[0]])) for row in rows if row[0])
            for rows in everybody
        ]
        raise bad_argument(
            "inputs",
            "shards of the same shapes on all processes",
            ", ".join(shapes),
            "cut inputs and masks with rifflemix.parallel.shard_tokens",
        )
