"""Optimizers (Adam, AdamW, Adafactor, SGD) and their weight decay groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from rifflemix.errors import bad_argument
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.protocols import ExcludesDecay

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

    `fused` updates many parameters at once. It is ignored if a parameter is complex, because
    Adam's fused kernel does not support complex numbers.

    Raises:
        InputError: the model has no trainable parameter.
    """
    groups = decay_groups(model, decay_all=config.decay_all)
    if not groups.decayed and not groups.not_decayed:
        raise bad_argument("model", "at least one trainable parameter", "none")
    parameters = dict(model.named_parameters())
    options: list[dict[str, Any]] = [
        {"params": [parameters[name] for name in names], "weight_decay": decay}
        for names, decay in (
            (groups.decayed, config.weight_decay),
            (groups.not_decayed, 0.0),
        )
        if names
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

    For SGD, beta1 is the momentum. Adafactor ignores beta1.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
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
