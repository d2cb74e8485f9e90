"""Model FLOP utilisation: a training step's FLOPs against those that a matmul reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import torch

from rifflemix.lab.experiments import Utilisation
from rifflemix.lab.reproduction.cost import flops_of
from rifflemix.lab.runs.measure import seconds_of
from rifflemix.lab.runs.processes import count_processes
from rifflemix.lab.tasks import Task
from rifflemix.lab.tasks.core.base import Batch
from rifflemix.lab.train import TrainConfig
from rifflemix.lab.train.data import LengthOrder
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.length_batches import sample_lengths
from rifflemix.models import Model

_BATCHES = 8  # of similar lengths, on average
_SAMPLES = 2  # samples of a batch on which FLOPs are counted, then multiplied up


def utilisation(
    model: Model,
    task: Task,
    config: TrainConfig,
    steps_per_second: float,
    device: torch.device,
) -> Utilisation:
    """Measure it for a model that trains at `steps_per_second`.

    Sorting, shifting and other work without matrix products counts as nothing, Fourier transforms
    included: a low share does not mean a slow layer.
    """
    flops = _step_flops(model, task, config)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    peak = matmul_flops_per_second(device, dtype)
    rate = flops * steps_per_second
    return Utilisation(flops, rate, peak, rate / (peak * count_processes()))


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """The best of a few timings of one large matrix product."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    return 2.0 * size**3 / min(seconds_of(lambda: torch.mm(a, a), device) for _ in range(5))


def _step_flops(model: Model, task: Task, config: TrainConfig) -> int:
    split = task.split("train")
    model.cpu().train()
    if config.token_batches is not None:
        batches = list(islice(LengthOrder(sample_lengths(split, task.name), config, 0), _BATCHES))
        flops = [_flops(model, task, [index for index, _ in batch]) for batch in batches]
        return round(sum(flops) / len(flops))
    together = max(1, config.batch_size // (config.accumulation * count_processes()))
    flops_together = _flops(model, task, [i * len(split) // together for i in range(together)])
    return round(flops_together * config.batch_size / together)


def _flops(model: Model, task: Task, samples: Sequence[int]) -> float:
    """FLOPs of a backward pass on a batch of samples, counted on the first of them."""
    split = task.split("train")
    whole = task.collate([split[index] for index in samples])
    batch = {name: value[:_SAMPLES] for name, value in whole.items()}
    flops = flops_of(
        lambda: task.loss(run_model(model, batch), batch).backward(), _valid_tokens(whole)
    )
    return flops * len(samples) / len(batch["labels"])


def _valid_tokens(batch: Batch) -> float:
    """Root mean square of the tokens of a sample, without padding."""
    is_padding = batch.get("key_padding_mask")
    if is_padding is None:
        return math.inf
    return float((~is_padding).sum(-1).double().square().mean().sqrt())
