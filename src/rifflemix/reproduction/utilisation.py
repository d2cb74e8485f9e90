"""Model FLOP utilisation: a training step's FLOPs against those that a matmul reaches."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rifflemix.models import Model
from rifflemix.models.macs import flops_on_cpu
from rifflemix.runs.measure import seconds_of
from rifflemix.tasks import Task
from rifflemix.train import TrainConfig
from rifflemix.train.evaluate import run_model

_SAMPLES = 2  # samples on which FLOPs are counted, then multiplied up


@dataclass(frozen=True)
class Utilisation:
    """Model FLOP utilisation (MFU) of a training step.

    Attributes:
        flops_per_step: of matrix products, convolutions and attention, forward and backward.
        flops_per_second: at the measured speed.
        matmul_flops_per_second: what a large matrix product reaches here, in the same type.
        share: the first rate over the second.
    """

    flops_per_step: int
    flops_per_second: float
    matmul_flops_per_second: float
    share: float


def utilisation(
    model: Model,
    task: Task,
    config: TrainConfig,
    steps_per_second: float,
    device: torch.device,
) -> Utilisation:
    """Measure it for a model that trains at `steps_per_second`.

    Sorting, shifting and other work without multiplications counts as nothing: a low share does
    not mean a slow layer.
    """
    flops = _step_flops(model, task, config.batch_size)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    peak = matmul_flops_per_second(device, dtype)
    rate = flops * steps_per_second
    return Utilisation(flops, rate, peak, rate / peak)


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """The best of a few timings of one large matrix product."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    return 2.0 * size**3 / min(seconds_of(lambda: torch.mm(a, a), device) for _ in range(5))


def _step_flops(model: Model, task: Task, batch_size: int) -> int:
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton, where there is one

    split = task.split("train")
    batch = task.collate([split[index] for index in range(min(_SAMPLES, len(split)))])
    model.cpu().train()
    counter = FlopCounterMode(display=False, custom_mapping=flops_on_cpu())
    with counter:
        task.loss(run_model(model, batch), batch).backward()
    return round(counter.get_total_flops() * batch_size / len(batch["labels"]))
