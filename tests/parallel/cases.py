"""Checks for the processes of a mesh, as functions that every process runs.

They raise if a sharded sequence and the same sequence on one device give different results.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import rifflemix as rm
import rifflemix.cli
from processes import torchrun
from rifflemix.mixers.tssa import TSSA
from rifflemix.nn.block import Block
from rifflemix.nn.layers import FeedForward
from rifflemix.parallel import gather_tokens, mean_over_tokens, shard_sequence, shard_tokens

B, C, EACH = 2, 6, 3  # an odd number of tokens for each process


@functools.cache
def meshes() -> dict[int, DeviceMesh]:
    """Return a mesh of all processes and, for four, one of two."""
    size = torch.distributed.get_world_size()
    found = {size: init_device_mesh("cpu", (size,), mesh_dim_names=("sequence",))}
    if size == 4:
        found[2] = grid()["sequence"]
    return found


@functools.cache
def grid() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))


def command(words: list[str]) -> tuple[int, str]:
    """Run `torchrun -m rifflemix WORDS`; return this process's exit code and output."""
    printed = io.StringIO()
    with torchrun() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(Path(rifflemix.__file__).parent / "__main__.py"), *words])
        code = rifflemix.cli.main()
    return code, printed.getvalue()


def close(ours: Tensor | None, theirs: Tensor | None, what: str = "") -> None:
    assert ours is not None, what
    assert theirs is not None, what
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=lambda m: f"{what}: {m}")


def padding(kind: str, length: int) -> Tensor | None:
    """Return no mask, or padding that includes the first sequence's second shard."""
    if kind == "none":
        return None
    mask = torch.rand(B, length, generator=torch.Generator().manual_seed(5)) < 0.4
    mask[0, EACH : 2 * EACH] = True
    mask[1] = mask[1] & (torch.arange(length) > 0)
    return mask


def drawn(module: nn.Module) -> nn.Module:
    """Convert to float64 with random parameters, all large enough to matter."""
    module = module.double().eval()
    draws = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data = 0.5 * torch.randn(
            parameter.shape, generator=draws, dtype=torch.float64
        ) + (parameter.dim() == 1)
    return module


def tokens(length: int, *, seed: int = 2, ties: bool = False, dim: int = C) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(B, length, dim, generator=draws, dtype=torch.float64)
    return (2 * x).round() if ties else x


def same_gradients(ours: nn.Module, alone: nn.Module, factor: int = 1) -> None:
    theirs = dict(alone.named_parameters())
    for name, parameter in ours.named_parameters():
        if theirs[name].grad is None:
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            close(parameter.grad * factor, theirs[name].grad, name)


def mixer_is_the_same(
    size: int, name: str, options: dict[str, Any], kind: str, *, ties: bool = False
) -> None:
    """Check outputs and gradients of parameters and inputs against one device."""
    mesh, length = meshes()[size], size * EACH
    settings = {"num_heads": 2, "max_length": length + 1, "layer_index": 1, "num_layers": 3}
    dim = options.get("dim", C)
    mixer = drawn(rm.create_mixer(name, **{"dim": dim, **settings, **options}))
    alone, mask = copy.deepcopy(mixer), padding(kind, length)
    x = tokens(length, ties=ties, dim=dim).requires_grad_()
    weights = tokens(length, seed=3, dim=dim)
    y = alone(x, key_padding_mask=mask)
    (y * weights).sum().backward()

    sharded = shard_sequence(mixer, mesh)
    own = shard_tokens(x.detach(), mesh).clone().requires_grad_()
    ours = sharded(own, key_padding_mask=None if mask is None else shard_tokens(mask, mesh))
    close(ours, shard_tokens(y, mesh), "outputs")
    (ours * shard_tokens(weights, mesh)).sum().backward()
    close(own.grad, shard_tokens(x.grad, mesh), "gradient of the inputs")
    same_gradients(sharded, alone, size)  # the loss here sums over shards
    assert sharded.state_dict().keys() == alone.state_dict().keys()


def index_is_of_the_whole_sequence(name: str, options: dict[str, Any]) -> None:
    """Check source indices: they count tokens of the whole sequence."""
    mesh, length = meshes()[4], 4 * EACH
    mixer = drawn(rm.create_mixer(name, C, max_length=length + 1, **options))
    v = tokens(length, ties=True)
    _, whole = copy.deepcopy(mixer).permute(v, None, with_index=True)
    y, index = shard_sequence(mixer, mesh).permute(shard_tokens(v, mesh), None, with_index=True)
    assert torch.equal(index, shard_tokens(whole, mesh))
    assert torch.equal(y, v.gather(1, index))


def encoder_is_the_same(size: int, kind: str, settings: dict[str, Any]) -> None:
    """Check scores and loss gradients on every process against one device."""
    mesh, length = meshes()[size], size * EACH
    model = drawn(
        rm.create_model(
            "encoder", dim=C, num_heads=2, num_classes=3, max_length=length + 2, **settings
        )
    )
    alone, mask = copy.deepcopy(model), padding(kind, length)
    if settings.get("vocab_size"):
        inputs = torch.randint(1, 9, (B, length), generator=torch.Generator().manual_seed(4))
        inputs[0, 2] = 0
    else:
        inputs = tokens(length, dim=settings["in_channels"])
    labels = torch.tensor([2, 0])
    scores = alone(inputs, key_padding_mask=mask)
    F.cross_entropy(scores, labels).backward()

    shard_sequence(model, mesh)
    shard = None if mask is None else shard_tokens(mask, mesh)
    ours = model(shard_tokens(inputs, mesh), key_padding_mask=shard)
    close(ours, scores, "scores")
    F.cross_entropy(ours, labels).backward()
    same_gradients(model, alone)


def vit_is_the_same(size: int, settings: dict[str, Any]) -> None:
    """Check scores and gradients against one device, with whole images as input."""
    model = drawn(
        rm.create_model(
            "vit_mnist",
            **{"dim": C, "num_heads": 2, "num_layers": 2, "head_dim": None, "image_size": (8, 12)},
            patch_size=2,
            **settings,
        )
    )
    alone = copy.deepcopy(model)
    images = torch.randn(
        B, 1, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    labels = torch.tensor([2, 0])
    scores = alone(images)
    F.cross_entropy(scores, labels).backward()
    shard_sequence(model, meshes()[size])
    ours = model(images)
    close(ours, scores, "scores")
    F.cross_entropy(ours, labels).backward()
    same_gradients(model, alone)


def gpt_is_the_same(size: int, kind: str, settings: dict[str, Any]) -> None:
    """Check logits, gradients and the loss over all tokens against one device."""
    mesh, length = meshes()[size], size * EACH
    model = drawn(
        rm.create_model("gpt", dim=C, num_heads=2, vocab_size=11, max_length=length + 2, **settings)
    )
    alone, mask = copy.deepcopy(model), padding(kind, length)
    draws = torch.Generator().manual_seed(4)
    ids = torch.randint(11, (B, length), generator=draws)
    labels = torch.randint(11, (B, length), generator=draws)
    logits = alone(ids, key_padding_mask=mask)
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    loss = losses.mean() if mask is None else losses[~mask].mean()
    loss.backward()

    shard_sequence(model, mesh)
    shard = None if mask is None else shard_tokens(mask, mesh)
    ours = model(shard_tokens(ids, mesh), key_padding_mask=shard)
    theirs = shard_tokens(logits, mesh)
    valid = torch.ones(B, EACH, dtype=torch.bool) if shard is None else ~shard
    close(ours[valid], theirs[valid], "logits")
    losses = F.cross_entropy(ours.transpose(1, 2), shard_tokens(labels, mesh), reduction="none")
    mean = mean_over_tokens(losses, mesh, key_padding_mask=shard)
    close(mean, loss, "loss")
    mean.backward()
    same_gradients(model, alone)


def training_is_the_same(wrap: str, mixer: str) -> None:
    """Check a mesh with a batch axis and a sequence axis."""
    from torch.distributed.fsdp import fully_shard

    mesh, length = grid()["sequence"], 2 * EACH
    model = drawn(
        rm.create_model(
            "encoder", mixer=mixer, vocab_size=9, dim=C, num_heads=2, num_layers=2, num_classes=3,
            max_length=length, pool="cls",
        )
    )  # fmt: skip
    alone = copy.deepcopy(model)
    model.gradient_checkpointing = alone.gradient_checkpointing = wrap == "checkpointing"
    model.train(), alone.train()
    rows = slice(grid().get_local_rank("data") * B, None)
    trained: nn.Module = shard_sequence(model, mesh)
    world = torch.distributed.group.WORLD  # outlives the reducer of DDP
    if wrap == "fsdp":
        for block in model.blocks:
            fully_shard(block, mesh=meshes()[4])
        fully_shard(model, mesh=meshes()[4])
    elif wrap == "fsdp around":  # over the data axis: other gradients are still averaged
        trained = nn.Sequential(model)
        fully_shard(trained, mesh=grid()["data"])
    else:
        group = world if wrap == "ddp over all" else grid()["data"].get_group()
        trained = nn.parallel.DistributedDataParallel(model, process_group=group)
    for step in range(2):  # DDP raises in the second step if a gradient was missing in the first
        draws = torch.Generator().manual_seed(step)
        inputs = torch.randint(9, (2 * B, length), generator=draws)
        labels = torch.randint(3, (2 * B,), generator=draws)
        alone.zero_grad()
        F.cross_entropy(alone(inputs), labels).backward()
        trained.zero_grad()
        shard = shard_tokens(inputs[rows][:B], mesh)
        F.cross_entropy(trained(shard), labels[rows][:B]).backward()
        if wrap.startswith("fsdp"):
            theirs = dict(alone.named_parameters())
            for name, parameter in model.named_parameters():
                close(parameter.grad.full_tensor(), theirs[name].grad, name)
        else:
            same_gradients(model, alone)
    del trained, world


def meshes_of_fsdp_that_leave_processes_out() -> None:
    """Check the error on every process.

    FSDP shards the model, its blocks or its parent.
    """
    from torch.distributed.fsdp import fully_shard

    mesh, ids = grid()["sequence"], torch.zeros(B, EACH, dtype=torch.int64)
    settings: dict[str, Any] = {"mixer": "tssa", "vocab_size": 9, "dim": 4, "num_layers": 1}
    for parts in (["model"], ["block"], ["block", "around"]):
        model = shard_sequence(rm.create_model("encoder", max_length=9, **settings), mesh)
        found = {"model": model, "block": model.blocks[0], "around": nn.Sequential(model)}
        for part in parts:
            fully_shard(found[part], mesh=grid()["data" if part == parts[-1] else "sequence"])
        called = found["around"] if "around" in parts else model
        with pytest.raises(rm.InputError, match=r"\[\d, \d\], got"):
            called(ids)


def first_fsdp_is_refused(where: str, *, keeps_parameters: bool) -> None:
    """Check that the next call raises on every process.

    FSDP1 wraps the model, its block, or both.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel as FirstFSDP

    settings: dict[str, Any] = {"mixer": "tssa", "vocab_size": 9, "dim": 4, "num_layers": 1}
    model = rm.create_model("encoder", max_length=9, **settings)
    called: nn.Module = shard_sequence(model, grid()["sequence"])
    wrap = functools.partial(
        FirstFSDP,
        process_group=grid()["data"].get_group(),
        use_orig_params=keeps_parameters,
        device_id=torch.device("cpu"),
    )
    if "block" in where:
        model.blocks[0] = wrap(model.blocks[0])
    if "around" in where:
        called = wrap(nn.Sequential(model))
    with pytest.raises(rm.InputError, match=r"FSDP1 \(FullyShardedDataParallel\)"):
        called(torch.zeros(B, EACH, dtype=torch.int64))


def what_fsdp_has_sharded_is_refused() -> None:
    """Check that the weights, a different shard per process, stay unchanged."""
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(rm.create_mixer("tssa", C), nn.Linear(C, C))
    fully_shard(model[1], mesh=meshes()[4])
    before = model[1].weight.to_local().clone()
    with pytest.raises(rm.InputError, match=r"FSDP.*fully_shard"):
        shard_sequence(model, grid()["sequence"])
    assert torch.equal(model[1].weight.to_local(), before)
    assert type(model[0]) is TSSA


def copies_average_their_gradients() -> None:
    mesh, x = meshes()[4], tokens(4 * EACH)
    sharded = shard_sequence(drawn(rm.create_mixer("tssa", C)), mesh)
    copied = copy.deepcopy(sharded)
    for mixer in (sharded, copied):
        mixer(shard_tokens(x, mesh)).square().sum().backward()
    same_gradients(copied, sharded)


def draws_are_shared() -> None:
    """Check dropout of whole sequences.

    All processes drop a gate or branch, or none does.
    """
    mesh = meshes()[torch.distributed.get_world_size()]
    torch.manual_seed(torch.distributed.get_rank())
    mixer = rm.create_mixer("tssa", C, dropout=0.5).train()
    with torch.no_grad():
        mixer.out_proj.weight.copy_(torch.eye(C))
        mixer.out_proj.bias.zero_()
    y = gather_tokens(shard_sequence(mixer, mesh)(torch.randn(B, EACH, C)), mesh)
    dropped = y == 0
    assert dropped.any()
    assert not dropped.all()
    assert torch.equal(dropped.all(1), dropped.any(1))

    block = Block(rm.create_mixer("average", C), FeedForward(C, C), C, drop_path=0.5).train()
    x = torch.randn(16, EACH, C)
    kept = gather_tokens((shard_sequence(nn.Sequential(block), mesh)(x) == x).all(2), mesh)
    assert kept.any()
    assert not kept.all()
    assert torch.equal(kept.all(1), kept.any(1))


def weights_become_those_of_the_first() -> None:
    mesh = meshes()[torch.distributed.get_world_size()]
    torch.manual_seed(torch.distributed.get_rank())
    mixer = shard_sequence(rm.create_mixer("tssa", C), mesh)
    weights = gather_tokens(mixer.in_proj.weight.detach()[None], mesh, dim=0)
    assert torch.equal(weights, weights[:1].expand_as(weights))


def other_shapes_are_refused() -> None:
    """Check that every process raises and that all can continue afterwards."""
    mesh, rank = meshes()[torch.distributed.get_world_size()], torch.distributed.get_rank()
    mixer = shard_sequence(rm.create_mixer("tssa", C), mesh)
    x = torch.randn(B, EACH - (rank == 1), C)
    with pytest.raises(rm.InputError, match=r"got \(2, 3, 6\).*\b2\b.*\b2\b"):
        mixer(x)
    x = torch.randn(B, EACH, C)
    mask = torch.zeros(B, EACH, dtype=torch.bool) if rank == 0 else None
    with pytest.raises(rm.InputError, match=r"got \(2, 3, 6\).*\(2, 3\), \(2, 3, 6\)"):
        mixer(x, key_padding_mask=mask)
    mixer(x)


def uneven_sequences_are_refused() -> None:
    mesh = meshes()[torch.distributed.get_world_size()]
    with pytest.raises(rm.InputError, match=r"\b4\b.*got 10\b.*\b2\b"):
        shard_tokens(torch.zeros(1, 10), mesh)
    with pytest.raises(rm.InputError, match=r"max_length = 11.*got 12"):
        shard_sequence(rm.create_mixer("csp", C, max_length=11), mesh)(torch.randn(1, EACH, C))
    model = rm.create_model(
        "encoder", mixer="identity", vocab_size=9, dim=C, num_heads=2, max_length=11
    )
    with pytest.raises(rm.InputError, match=r"max_length = 11.*got 12"):
        shard_sequence(model, mesh)(torch.zeros(1, EACH, dtype=torch.int64))
    with pytest.raises(rm.InputError, match="mesh:"):
        shard_sequence(rm.create_mixer("tssa", C), grid())
