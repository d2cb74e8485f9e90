"""Learning rates as pure functions of the step.

`step` is the number of completed updates: the first update uses step 0, the last update
`max_steps - 1`. T below is `config.schedule_steps`, or `max_steps` if `schedule_steps` is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rifflemix.lab.train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of the update at `step`.

    With `schedule_interval` k the rate changes only every k steps, for example once per epoch.
    """
    return SCHEDULES[config.schedule](config, _held(config, step))


def momentum(config: TrainConfig, step: int) -> float:
    """Return Adam's beta1 at `step`, constant or cycled as in OneCycleLR.

    A cycled beta1 falls when the rate rises. It changes at the same steps as the rate.
    """
    if config.cycle_beta1 is None:
        return config.betas[0]
    high, low = config.cycle_beta1
    return _one_cycle(config, _held(config, step), start=high, peak=low, end=high)


def _held(config: TrainConfig, step: int) -> int:
    """Round `step` down to the step at which the rate last changed."""
    return step - step % config.schedule_interval


def _total(config: TrainConfig) -> int:
    return config.schedule_steps or config.max_steps


def _ramp(config: TrainConfig, step: int) -> float | None:
    """Return the rate during warm-up, or None after warm-up."""
    if step >= config.warmup_steps:
        return None
    fraction: float = (step / config.warmup_steps) ** config.warmup_power
    return config.warmup_init + (config.lr - config.warmup_init) * fraction


def _progress(config: TrainConfig, step: int) -> float:
    """Return the progress of the decay.

    It is 0 at the end of warm-up and 1 from T on.
    """
    span = _total(config) - config.warmup_steps
    return min(1.0, (step - config.warmup_steps) / span) if span > 0 else 1.0


def _constant(config: TrainConfig, step: int) -> float:
    """Warm up, then keep `lr`."""
    ramp = _ramp(config, step)
    return config.lr if ramp is None else ramp


def _linear(config: TrainConfig, step: int) -> float:
    """Warm up, then decay linearly to `min_lr` at T."""
    ramp = _ramp(config, step)
    if ramp is not None:
        return ramp
    return config.min_lr + (config.lr - config.min_lr) * (1.0 - _progress(config, step))


def _cosine(config: TrainConfig, step: int) -> float:
    """Warm up, then follow half a cosine to `min_lr` at T."""
    ramp = _ramp(config, step)
    if ramp is not None:
        return ramp
    height = 0.5 * (1.0 + math.cos(math.pi * _progress(config, step)))
    return config.min_lr + (config.lr - config.min_lr) * height


def _cosine_restarts(config: TrainConfig, step: int) -> float:
    """Warm up, then repeat half cosines of T steps to 0.

    As in the Long Range Arena code, cycles start at the end of warm-up. The rate jumps back to
    `lr` at step `warmup_steps + T`.
    """
    warm = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
    progress = max(0.0, (step - config.warmup_steps) / _total(config))
    return config.lr * warm * max(0.0, 0.5 * (1.0 + math.cos(math.pi * (progress % 1.0))))


def _rsqrt(config: TrainConfig, step: int) -> float:
    """Return `lr * min(1, step / warmup) / sqrt(max(step, warmup))`.

    The peak is lr / sqrt(warmup).
    """
    warmup = config.warmup_steps
    return config.lr * min(1.0, step / warmup) / math.sqrt(max(step, warmup))


def _rsqrt_decay(config: TrainConfig, step: int) -> float:
    """Return `lr / sqrt(max(step, warmup))`, constant during the warm-up.

    Tensor2Tensor uses this schedule for Adafactor.
    """
    return config.lr / math.sqrt(max(step, config.warmup_steps))


def _inverse_sqrt(config: TrainConfig, step: int) -> float:
    """Warm up to `lr`, then follow `lr * sqrt(warmup / step)`.

    This is fairseq's convention.
    """
    ramp = _ramp(config, step)
    return config.lr * math.sqrt(config.warmup_steps / step) if ramp is None else ramp


def _one_cycle_linear(config: TrainConfig, step: int) -> float:
    """Rise to `lr` over the warm-up, then fall until T - 1.

    The rate starts at `lr / 25` and ends at `lr / 250000`.

    Both parts are linear, as in torch.optim.lr_scheduler.OneCycleLR with
    anneal_strategy="linear", pct_start = warmup / T and total_steps = T.
    """
    start = config.lr / 25.0
    return _one_cycle(config, step, start=start, peak=config.lr, end=start / 1e4)


def _one_cycle(config: TrainConfig, step: int, *, start: float, peak: float, end: float) -> float:
    # In OneCycleLR a phase ends at its last update, hence the minus ones.
    top, last = config.warmup_steps - 1, _total(config) - 1
    if step <= top:
        return start + (peak - start) * step / top
    return peak + (end - peak) * min(1.0, (step - top) / (last - top))


def _multistep(config: TrainConfig, step: int) -> float:
    """Warm up to `lr`, then multiply by `decay_factor` at every milestone."""
    ramp = _ramp(config, step)
    if ramp is not None:
        return ramp
    return config.lr * config.decay_factor ** sum(step >= mark for mark in config.milestones)


LEAST_WARMUP = {"rsqrt": 1, "rsqrt_decay": 1, "inverse_sqrt": 1, "one_cycle": 2}
"""Schedule -> minimum number of warm-up steps, for schedules that need a warm-up."""

SCHEDULES: dict[str, Callable[[TrainConfig, int], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_restarts": _cosine_restarts,
    "rsqrt": _rsqrt,
    "rsqrt_decay": _rsqrt_decay,
    "inverse_sqrt": _inverse_sqrt,
    "one_cycle": _one_cycle_linear,
    "multistep": _multistep,
}
