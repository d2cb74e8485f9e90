"""Sharded weights: operations that need the whole weight raise an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import rifflemix as rm

SHARDED = r".*\(DTensor\)"


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    world = torch.distributed.group.WORLD  # held until nothing uses the group
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()
    del world


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def test_sharded_weights_are_not_saved(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = encoder()
    rm.replace_attention(model, "tssa")
    fully_shard(model, mesh=mesh)
    with pytest.raises(rm.InputError, match=f"model: {SHARDED}"):
        rm.save_swapped(model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("which", ["model", "original"])
def test_sharded_weights_are_not_distilled(mesh: DeviceMesh, which: str) -> None:
    models = {"model": encoder(), "original": encoder()}
    rm.replace_attention(models["model"], "tssa")
    fully_shard(models[which], mesh=mesh)
    with pytest.raises(rm.InputError, match=f"{which}: {SHARDED}"):
        rm.distil(models["model"], models["original"], [torch.randn(1, 5, 16)])


def test_sharded_attention_is_not_replaced(mesh: DeviceMesh) -> None:
    model = encoder()
    parallelize_module(model, mesh, {"layers.0.self_attn.out_proj": ColwiseParallel()})
    with pytest.raises(rm.InputError, match=f"model: {SHARDED}"):
        rm.replace_attention(model, "softmax")
