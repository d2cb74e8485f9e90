"""Fixtures: four processes for all tests of this folder, and a mesh of the test process.

Starting the processes takes longer than the tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from processes import Processes


@pytest.fixture(scope="session")
def four() -> Iterator[Processes]:
    with Processes(4) as processes:
        yield processes


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    world = torch.distributed.group.WORLD  # held until nothing uses the group
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("sequence",))
    torch.distributed.destroy_process_group()
    del world
