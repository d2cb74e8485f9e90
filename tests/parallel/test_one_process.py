"""Errors in a group of one process; otherwise it behaves as without a group."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import rifflemix as rm
from rifflemix.nn.layers import ClassToken
from rifflemix.parallel.compat import fsdp_processes
from rifflemix.parallel.shards import Shards


@pytest.mark.parametrize("mixer", ["tssa", "csp"])
def test_one_process_equals_no_sharding(mesh: DeviceMesh, mixer: str) -> None:
    model = rm.create_model("encoder", mixer=mixer, vocab_size=5, dim=8, max_length=9, pool="cls")
    ids, mask = torch.randint(5, (2, 7)), torch.rand(2, 7) < 0.3
    expected = model(ids, key_padding_mask=mask)
    sharded = rm.parallel.shard_sequence(copy.deepcopy(model), mesh)
    assert isinstance(sharded, type(model))
    torch.testing.assert_close(sharded(ids, key_padding_mask=mask), expected)
    torch.testing.assert_close(copy.deepcopy(sharded)(ids, key_padding_mask=mask), expected)
    assert sharded.state_dict().keys() == model.state_dict().keys()


def test_dropout_of_statistics_has_one_gate_for_all_tokens(mesh: DeviceMesh) -> None:
    model, x = _mixer("tssa", num_heads=2, dropout=0.5), torch.randn(3, 7, 8)
    nn.init.eye_(model[0].out_proj.weight)
    nn.init.zeros_(model[0].out_proj.bias)
    rm.parallel.shard_sequence(model, mesh)
    gates = (model.train()(x) / model.eval()(x)).round(decimals=3)
    assert gates.unique().tolist() == [0.0, 2.0]
    assert torch.equal(gates, gates[:, :1].expand_as(gates))


def test_channels_have_the_requested_order(mesh: DeviceMesh) -> None:
    shards, x = Shards(mesh.get_group(), 0, (3,)), torch.randn(2, 3, 4)
    assert torch.equal(shards.to_channels(x), x)
    assert torch.equal(shards.to_channels(x, [[2, 0, 3, 1]]), x[..., [2, 0, 3, 1]])
    assert torch.equal(shards.to_tokens(x, [4]), x)


def _mixer(name: str, **options: Any) -> nn.Module:
    return nn.Sequential(rm.create_mixer(name, 8, max_length=9, **options))


SENTENCES = {
    "no module": (
        lambda: 3,
        r"torch\.nn\.Module, got int$",
    ),
    "no mixers": (
        lambda: nn.Linear(2, 2),
        "got Linear",
    ),
    "another mixer": (
        lambda: _mixer("fnet"),
        r"\(average, butterfly, csp, grouped, identity, linear, sinkhorn, sliceformer, softmax, "
        r"tssa\), got fnet .*0$",
    ),
    "another model": (
        lambda: rm.create_model("tost_tiny_16", dim=8, num_layers=1, num_heads=2, num_classes=2),
        r"\(Encoder, GPT, ViT\), got ToST$",
    ),
    "a setting of a mixer": (
        lambda: _mixer("tssa", causal=True, renormalize_every=2),
        r"\btssa\b.*got renormalize_every=2 .*0$",
    ),
    "padded queries": (
        lambda: _mixer("softmax", padded_queries="mean"),
        r"\bsoftmax\b.*got padded_queries='mean' .*0$",
    ),
    "a setting of a model": (
        lambda: rm.create_model("encoder", vocab_size=5, padding="max_length"),
        r"\bEncoder\b.*got padding='max_length'$",
    ),
    "rotary positions": (
        lambda: _mixer("softmax", num_heads=2, rotary=True),
        r"\bsoftmax\b.*got rotary=True .*0$",
    ),
    "short convolutions": (
        lambda: rm.create_model("gpt", vocab_size=5, short_conv=3),
        r"got short_conv in blocks\.1\.short_conv$",
    ),
    "the last token": (
        lambda: rm.create_model("encoder", vocab_size=5, pool="last"),
        r"\bEncoder\b.*got pool='last'$",
    ),
    "batch normalisation": (
        lambda: nn.Sequential(_mixer("tssa"), nn.BatchNorm1d(8)),
        r"got BatchNorm1d .*1\b.*torch\.nn\.SyncBatchNorm\.convert_sync_batchnorm",
    ),
    "two class tokens": (
        lambda: nn.Sequential(ClassToken(8, std=1.0), ClassToken(8, std=1.0), _mixer("tssa")),
        "class token.*got 2$",
    ),
    "sharded by FSDP": (
        lambda: fully_shard(_mixer("tssa"), mesh=init_device_mesh("cpu", (1,))),
        "got .*FSDP.*fully_shard",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_refused_models_are_not_changed(mesh: DeviceMesh, name: str) -> None:
    make, words = SENTENCES[name]
    model: Any = make()
    with pytest.raises(rm.InputError, match=f"^model: .*{words}"):
        rm.parallel.shard_sequence(model, mesh)
    if isinstance(model, nn.Module):
        assert not any(type(module).__name__.startswith("Sharded") for module in model.modules())


def test_invalid_meshes_are_refused(mesh: DeviceMesh) -> None:
    mixer = rm.create_mixer("tssa", 8)
    with pytest.raises(rm.InputError, match=r"^mesh: .*torch\.distributed DeviceMesh, got 4$"):
        rm.parallel.shard_sequence(mixer, 4)  # type: ignore[arg-type]
    grid = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "sequence"))
    with pytest.raises(rm.InputError, match=r"^mesh: .*got 2\b.*mesh\['sequence'\]"):
        rm.parallel.shard_sequence(mixer, grid)


def test_sharded_mixers_refuse_unsupported_calls(mesh: DeviceMesh) -> None:
    mixer = rm.parallel.shard_sequence(rm.create_mixer("tssa", 8, causal=True, max_length=9), mesh)
    with pytest.raises(rm.InputError, match=r"^model: "):
        rm.parallel.shard_sequence(mixer, mesh)
    with pytest.raises(rm.InputError, match=r"^model: .*stream.*got .*tssa"):
        mixer.init_state(1)
    with pytest.raises(rm.InputError, match=r"cu_seqlens: .*None"):
        mixer(torch.zeros(1, 4, 8), cu_seqlens=torch.tensor([0, 1, 4]))
    with pytest.raises(rm.InputError, match=r"values: .*\(B, n\).*got \(\)"):
        rm.parallel.mean_over_tokens(torch.zeros(()), mesh)


def test_meshes_of_fsdp_are_found(mesh: DeviceMesh) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert fsdp_processes(model) == []
    fully_shard(model[0], mesh=mesh)
    assert fsdp_processes(model) == [[0]]


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning")
@pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy:FutureWarning")
@pytest.mark.parametrize("keeps_parameters", [False, True])
def test_the_first_fsdp_is_refused(mesh: DeviceMesh, keeps_parameters: bool) -> None:
    mixer = rm.parallel.shard_sequence(rm.create_mixer("tssa", 8), mesh)
    wrapped = FullyShardedDataParallel(
        nn.Sequential(mixer), use_orig_params=keeps_parameters, device_id=torch.device("cpu")
    )
    with pytest.raises(rm.InputError, match=r"FSDP1\b \(FullyShardedDataParallel\)"):
        wrapped(torch.zeros(1, 4, 8))
