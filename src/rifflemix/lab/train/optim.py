"""Optimizers, weight decay groups and learning rates.

`step` is the number of completed updates: the first update uses step 0, the last update
`max_steps - 1`. T below is `config.schedule_steps`, or `max_steps` if `schedule_steps` is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from rifflemix.errors import bad_argument
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.protocols import ExcludesDecay, ScalesRates

_ADAMS: dict[str, type[Adam]] = {"adamw": AdamW, "adam": Adam}

# Tensor2Tensor's lower bounds of the root mean square of a gradient and of a parameter.
# Tensor2Tensor adds 1e-30 to squared gradients; torch takes the maximum instead.
_ADAFACTOR_EPS = (1e-15, 1e-3)


@dataclass(frozen=True)
class DecayGroups:
    """Names of the trainable parameters with and without weight decay."""

    decayed: list[str]
    not_decayed: list[str]


def decay_groups(model: nn.Module, *, decay_all: bool = False) -> DecayGroups:
    """Group the trainable parameters of `model` by weight decay.

    Parameters with two or more dimensions (matrices, embeddings, convolutions) are decayed.
    Exceptions are biases of any shape, and names that a submodule returns from
    `no_weight_decay() -> set[str]`, relative to itself. Norms and other vectors are not decayed.
    `decay_all` decays every parameter.
    """
    excluded = _excluded_names(model)
    groups = DecayGroups([], [])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_map = parameter.dim() >= 2 and not name.endswith("bias")
            decays = decay_all or (is_map and name not in excluded)
            (groups.decayed if decays else groups.not_decayed).append(name)
    return groups


def build_optimizer(model: nn.Module, config: TrainConfig, *, fused: bool = False) -> Optimizer:
    """Build the optimizer of the trainable parameters.

    Each combination of weight decay and rate factor (see `ScalesRates`) is a parameter group.
    `fused` updates many parameters at once. It is ignored if a parameter is complex, because
    Adam's fused kernel does not support complex numbers.

    Raises:
        InputError: the model has no trainable parameter.
    """
    groups = decay_groups(model, decay_all=config.decay_all)
    if not groups.decayed and not groups.not_decayed:
        raise bad_argument("model", "at least one trainable parameter", "none")
    parameters = dict(model.named_parameters())
    factors = model.rate_factors() if isinstance(model, ScalesRates) else {}
    options: list[dict[str, Any]] = [
        {
            "params": [parameters[name] for name in names if factors.get(name, 1.0) == factor],
            "weight_decay": decay,
            **({"rate_factor": factor} if factors else {}),
        }
        for names, decay in (
            (groups.decayed, config.weight_decay),
            (groups.not_decayed, 0.0),
        )
        for factor in dict.fromkeys(factors.get(name, 1.0) for name in names)
    ]
    fused = fused and not any(p.is_complex() for group in options for p in group["params"])
    if config.optimizer == "sgd":
        # The fused kernel requires that the momentum of all parameters starts at the same step.
        return SGD(options, lr=config.lr, momentum=config.betas[0], foreach=fused or None)
    if config.optimizer == "adafactor":
        return Adafactor(options, lr=config.lr, eps=_ADAFACTOR_EPS, foreach=fused)
    return _ADAMS[config.optimizer](
        options, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused or None
    )


def set_rates(optimizer: Optimizer, lr: float, beta1: float) -> None:
    """Set the learning rate and beta1 of the next update.

    Groups with a rate factor get the product of the factor and the rate. For SGD, beta1 is the
    momentum. Adafactor ignores beta1.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("rate_factor", 1.0)
        if "betas" in group:
            group["betas"] = (beta1, group["betas"][1])
        elif "momentum" in group:
            group["momentum"] = beta1


@torch.no_grad()
def allocate_state(optimizer: Optimizer) -> None:
    """Create zero moments and a zero update count for every parameter.

    Optimizers create this state at the first gradient of a parameter. Creating it early changes
    no update, and checkpoints then also restore parameters that had no gradient yet.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for state in optimizer.state.values():
        for tensor in state.values():  # moments are not zero if decay was added to the gradient
            tensor.zero_()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _excluded_names(model: nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, ExcludesDecay)
        for name in module.no_weight_decay()
    }


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of the update at `step`.

    With `schedule_interval` k the rate changes only every k steps, for example once per epoch.
    """
    return _RATES[config.schedule](config, _held(config, step))


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


_RATES: dict[str, Callable[[TrainConfig, int], float]] = {
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
