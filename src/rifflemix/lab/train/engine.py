"""Wrapper of accelerate: devices, autocast, accumulation, DDP, FSDP and collectives.

A run may have several processes (`torchrun` or `accelerate launch`). Only process 0, the main
process, writes files and reports events. The other processes get its results.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rifflemix.checks import check_integer
from rifflemix.errors import InputError, bad_argument, require_packages
from rifflemix.lab.train.config import TrainConfig

_DEVICE_VARIABLE = "ACCELERATE_TORCH_DEVICE"
_HUNG_ON_MODEL = (
    "forward",
    "_original_forward",
    "_is_accelerate_prepared",
    "_compiled_call_impl",
)


class Engine:
    """Access of one process to its device and to the other processes.

    Args:
        config: training settings; the engine reads precision, compilation and accumulation.
        device: "cpu", "cuda", "cuda:1" ...; None uses an accelerator if there is one.
        context_parallel: number of processes that share each sequence and get the same samples.

    Attributes:
        replicas: number of groups of `context_parallel` processes; groups get different samples.
        replica: index of the group of this process.

    Raises:
        InputError: accelerate is not installed, the device does not exist, or the batch size is
            not divisible by processes and accumulation steps.
    """

    def __init__(
        self,
        config: TrainConfig,
        device: str | torch.device | None,
        context_parallel: int = 1,
    ) -> None:
        self.accelerator = _start_accelerator(config, _resolve_device(device))
        self.device = _plain(self.accelerator.device)
        self.processes: int = self.accelerator.num_processes
        self.rank: int = self.accelerator.process_index
        self.is_main = self.rank == 0
        self.compiles = config.compile
        self.is_sharded = str(self.accelerator.distributed_type).endswith("FSDP")
        check_context_parallel(context_parallel, self.processes)
        self.context_parallel = context_parallel
        self.replicas = self.processes // context_parallel
        self.replica = self.rank // context_parallel
        check_batch(config, self.replicas)
        _check_sharding(config, self.is_sharded)
        _check_sharing(self.accelerator, context_parallel, self.is_sharded)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Move both to the device and wrap the model.

        The wrapper adds autocast and support for several processes.

        accelerate's wrapper of the optimizer is removed. It only skips steps between
        accumulations, as the training loop does. It also looks up packages at every step.
        """
        if self.compiles:
            model.compile()
        wrapped, prepared = self.accelerator.prepare(model, optimizer)
        return wrapped, prepared.optimizer

    def sequence_mesh(self) -> Any:
        """Return the processes that share sequences: dimension "cp" of accelerate's mesh.

        `Accelerator` does not get the mesh: with "cp" it would require torch's attention
        kernels and FSDP2. Its DDP and FSDP average over all processes. This is correct for
        gradients that are already averaged over "cp".

        Raises:
            InputError: accelerate is too old to create a mesh.
        """
        return _cp_mesh(
            self.replicas,
            self.context_parallel,
            self.device.type,
            torch.distributed.group.WORLD,
        )

    def release(self, model: nn.Module) -> None:
        """Remove the attributes that `prepare` added to the caller's `model`.

        A remaining bound `forward` would survive a deepcopy and use the old weights.
        """
        self.accelerator.free_memory()
        for name in _HUNG_ON_MODEL:
            model.__dict__.pop(name, None)

    def on_main(self, action: Callable[[], Any]) -> Any:
        """Run `action` in rank 0 and return its value everywhere.

        The value must be a JSON value.

        Raises:
            InputError: `action` failed. Every process raises the error.
        """
        if self.processes == 1:
            return action()
        answer = {}
        error: Exception | None = None
        if self.is_main:
            try:
                answer = {"value": action()}
            except Exception as raised:
                error, answer = raised, {"error": str(raised)}
        answer = json.loads(self._broadcast(json.dumps(answer)))
        if error is not None:
            raise error
        if "error" in answer:
            raise InputError(answer["error"])
        return answer["value"]

    def total(self, values: list[float]) -> list[float]:
        """Sum each value over the processes, in float64."""
        if self.processes == 1:
            return values
        summed = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(summed)
        return [float(value) for value in summed.tolist()]

    def stack(self, tensor: Tensor) -> Tensor:
        """Gather CPU tensors (n,) of all processes to (processes, n)."""
        if self.processes == 1:
            return tensor.unsqueeze(0)
        own = tensor.to(self.device)
        gathered = [torch.empty_like(own) for _ in range(self.processes)]
        torch.distributed.all_gather(gathered, own)
        return torch.stack(gathered).cpu()

    def _broadcast(self, text: str) -> str:
        blob = bytearray(text.encode())
        size = torch.tensor([len(blob)], device=self.device)
        torch.distributed.broadcast(size, 0)
        data = torch.zeros(int(size.item()), dtype=torch.uint8, device=self.device)
        if self.is_main:
            data.copy_(torch.frombuffer(blob, dtype=torch.uint8))
        torch.distributed.broadcast(data, 0)
        return bytes(data.cpu().numpy()).decode()


@lru_cache(maxsize=1)  # a mesh creates process groups, so all runs share one mesh
def _cp_mesh(replicas: int, size: int, device_type: str, _: Any) -> Any:
    try:
        from accelerate.parallelism_config import ParallelismConfig
    except ImportError:
        raise InputError("context_parallel needs accelerate 1.10 or newer") from None
    plan = ParallelismConfig(
        dp_replicate_size=1, dp_shard_size=replicas, cp_size=size, tp_size=1, sp_size=1
    )
    return plan.build_device_mesh(device_type)["cp"]


@atexit.register
def _let_go_of_groups() -> None:
    """Release process groups; their threads may abort Python at exit."""
    _cp_mesh.cache_clear()
    gc.collect()


def _start_accelerator(config: TrainConfig, device: torch.device) -> Any:
    require_packages("training", "compare", "accelerate", "msgspec")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import GradientAccumulationPlugin

    if torch.distributed.is_available():
        # Import before a process group exists: its default arguments would keep the group alive.
        import_module("torch.distributed.nn.functional")

    # accelerate keeps device and precision for the whole process, but runs may differ in them.
    AcceleratorState._reset_state(reset_partial_state=True)
    plugin = GradientAccumulationPlugin(num_steps=config.accumulation, sync_with_dataloader=False)
    with _chosen_device(device):
        try:
            return Accelerator(
                cpu=device.type == "cpu",
                mixed_precision=config.precision,
                gradient_accumulation_plugin=plugin,
            )
        except ValueError as error:  # invalid launch options or environment variables
            raise InputError(f"accelerate cannot start: {error}") from error


@contextmanager
def _chosen_device(device: torch.device) -> Iterator[None]:
    """Pass the device to accelerate through an environment variable.

    With several processes, each process uses the device of its local rank.
    """
    before = os.environ.get(_DEVICE_VARIABLE)
    if not _is_launched():
        os.environ[_DEVICE_VARIABLE] = str(device)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_DEVICE_VARIABLE, None)
        else:
            os.environ[_DEVICE_VARIABLE] = before


def _is_launched() -> bool:
    return "LOCAL_RANK" in os.environ


def _resolve_device(device: str | torch.device | None) -> torch.device:
    here = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return here or torch.device("cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise bad_argument("device", '"cpu", "cuda" or "cuda:0"', repr(device)) from error
    if chosen.type != "cpu" and (here is None or chosen.type != here.type):
        raise bad_argument("device", f"one that is here (cpu{f', {here}' if here else ''})", chosen)
    if chosen.index is not None and chosen.type != "cpu":
        if _is_launched():
            raise bad_argument("device", "no index when launched as several processes", chosen)
        if chosen.index >= torch.accelerator.device_count():
            raise bad_argument(
                "device", f"an index under {torch.accelerator.device_count()}", chosen
            )
        torch.accelerator.set_device_index(chosen.index)
    return chosen


def _plain(device: torch.device) -> torch.device:
    """Remove the index that accelerate adds to CPU devices."""
    return torch.device("cpu") if device.type == "cpu" else device


def _check_sharding(config: TrainConfig, is_sharded: bool) -> None:
    # accelerate falls back to DDP or to a single process without a warning.
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and not is_sharded:
        raise InputError("FSDP: expected several processes with an accelerator each, got none")
    if is_sharded and config.optimizer == "adafactor":
        # Adafactor of torch 2.13 squares norms in place. Sharded tensors do not support this.
        raise bad_argument("optimizer", "adamw, adam or sgd under FSDP", repr(config.optimizer))
    if is_sharded and config.clip_value is not None:
        raise bad_argument("clip_value", "None under FSDP", config.clip_value, "use clip_norm")


def _check_sharing(accelerator: Any, context_parallel: int, is_sharded: bool) -> None:
    """Check that accelerate's parallelism does not conflict with `context_parallel`.

    Raises:
        InputError: FSDP1 is used with context parallelism, or accelerate's ParallelismConfig sets
            a size that the loop does not support.
    """
    version = getattr(getattr(accelerator.state, "fsdp_plugin", None), "fsdp_version", 1)
    if is_sharded and version == 1 and context_parallel > 1:
        raise bad_argument(
            "context_parallel", "1 under FSDP1", context_parallel, "launch with --fsdp_version 2"
        )
    plan = getattr(accelerator, "parallelism_config", None)
    for name, own in {"tp_size": 1, "sp_size": 1, "cp_size": context_parallel}.items():
        size = getattr(plan, name, 1)
        if size not in (1, own):
            raise bad_argument(
                f"{name} of accelerate's ParallelismConfig",
                "1" if own == 1 else f"1, or {own} as context_parallel",
                size,
                "--context-parallel alone lets processes share sequences",
            )


def check_batch(config: TrainConfig, replicas: int) -> None:
    """Raise InputError unless all processes get equally many samples per backward pass."""
    parts = config.accumulation * replicas
    if config.token_batches is not None and replicas > 1:
        raise bad_argument("processes", "1 with token_batches", replicas)
    if config.batch_size % parts:
        raise bad_argument(
            "batch_size",
            f"a multiple of accumulation x processes = {config.accumulation} x {replicas}",
            config.batch_size,
        )


def check_context_parallel(context_parallel: int, processes: int) -> None:
    """Raise InputError unless `context_parallel` divides the number of processes."""
    check_integer("context_parallel", context_parallel, 1)
    if processes % context_parallel:
        raise bad_argument(
            "context_parallel", f"a divisor of the {processes} processes", context_parallel
        )
