"""Enable FSDP2 on the CPU: torch supports it there, accelerate does not.

accelerate's state is set to FSDP, so that everything after start-up is the code that runs on GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

from rifflemix.lab.train import engine

if TYPE_CHECKING:
    from accelerate.parallelism_config import ParallelismConfig


def shard_training(
    patch: pytest.MonkeyPatch, *, plan: ParallelismConfig | None = None, **settings: Any
) -> None:
    """Make every engine shard its model until `patch` is undone.

    An engine that does not shard its model raises an error.

    Args:
        patch: Monkeypatch that contains the changes.
        plan: Result of `accelerate launch --use_parallelism_config`.
        settings: Arguments of accelerate's FSDP plugin.
    """
    start, prepare = engine._start_accelerator, engine.Engine.prepare

    def start_sharded(*arguments: Any) -> Any:
        accelerator = start(*arguments)
        state = AcceleratorState._shared_state
        state["distributed_type"] = DistributedType.FSDP
        state["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            **{"fsdp_version": 2, "auto_wrap_policy": "no_wrap", "cpu_ram_efficient_loading": False}
            | settings
        )
        if plan is not None:
            state["parallelism_config"] = plan
            state["device_mesh"] = plan.get_device_mesh("cpu")
        return accelerator

    def prepare_sharded(self: engine.Engine, *arguments: Any) -> Any:
        model, optimizer = prepare(self, *arguments)
        parameter: Any = next(model.parameters())
        if not isinstance(model, FSDPModule) or parameter.to_local().numel() >= parameter.numel():
            raise AssertionError("the model is not sharded")
        return model, optimizer

    patch.setenv("FSDP_VERSION", "2")
    patch.setattr(engine, "_start_accelerator", start_sharded)
    patch.setattr(engine.Engine, "prepare", prepare_sharded)
