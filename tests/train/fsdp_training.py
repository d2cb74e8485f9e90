"""Run by test_distributed_training under torchrun: toy_training with FSDP2 on the CPU.

accelerate offers FSDP on accelerators only, though torch's works on the CPU too. Here its state
is told that this is FSDP, so that everything after start-up is the code that runs on GPUs.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import toy_training
from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

from rifflemix.train import engine

os.environ["FSDP_VERSION"] = "2"
start = engine._start_accelerator


def start_sharded(*arguments: Any) -> Any:
    accelerator = start(*arguments)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False
    )
    state = AcceleratorState._shared_state
    state["distributed_type"] = DistributedType.FSDP
    state["fsdp_plugin"] = plugin
    return accelerator


def prepare_sharded(self: engine.Engine, *arguments: Any) -> Any:
    model, optimizer = prepare(self, *arguments)
    parameter = next(model.parameters())
    if not isinstance(model, FSDPModule) or parameter.to_local().numel() >= parameter.numel():
        raise SystemExit("the model is not sharded")
    return model, optimizer


prepare = engine.Engine.prepare
engine._start_accelerator = start_sharded
engine.Engine.prepare = prepare_sharded  # type: ignore[method-assign]

if __name__ == "__main__":
    toy_training.main(*sys.argv[1:])
