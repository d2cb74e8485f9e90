"""Copy the Q/K/V/O projections of a host model to a mixer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rifflemix.mixers import TokenMixer


class Projection(NamedTuple):
    """Linear layer of a host model.

    Attributes:
        weight: (out, in).
        bias: (out,), or None.

    Example:
        >>> import torch, rifflemix as rm
        >>> linear = torch.nn.Linear(64, 32)
        >>> projection = rm.surgery.Projection(linear.weight, linear.bias)
        >>> projection.weight.shape
        torch.Size([32, 64])
    """

    weight: Tensor
    bias: Tensor | None


class HostWeights(NamedTuple):
    """Q/K/V/O projections of softmax attention with scores divided by sqrt(C / H).

    The heads are concatenated along the inner dimension.

    Attributes:
        query: (inner, C). If the host model scales scores differently, the factor is multiplied
            into the weights.
        key: (inner, C). Keys that several query heads share are repeated.
        value: (inner, C). Shared values are repeated.
        output: (C, inner), or None if the output projection is outside of the replaced module.

    Example:
        >>> import torch, rifflemix as rm
        >>> query, key, value, output = (
        ...     rm.surgery.Projection(linear.weight, linear.bias)
        ...     for linear in (torch.nn.Linear(64, 64) for _ in range(4))
        ... )
        >>> weights = rm.surgery.HostWeights(query, key, value, output)
        >>> weights.output.weight.shape
        torch.Size([64, 64])
    """

    query: Projection
    key: Projection
    value: Projection
    output: Projection | None


# Names of projections in mixers, and the host projections that they copy.
_TAKES: dict[str, tuple[str, ...]] = {
    "qkv": ("query", "key", "value"),
    "global_qkv": ("query", "key", "value"),
    "qk": ("query",),
    "value": ("value",),
    "in_proj": ("value",),
    "proj": ("output",),
    "out_proj": ("output",),
}


def compute_weights(module: nn.Module) -> None:
    """Update the weights that torch computes before each call (pruning, norms).

    Otherwise they have the values of the last call, even after loading or training.
    """
    for part in module.modules():
        if isinstance(part, NonDynamicallyQuantizableLinear):  # read and never called
            continue
        for hook in part._forward_pre_hooks.values():
            with torch.no_grad():
                if isinstance(hook, BasePruningMethod | WeightNorm):
                    hook(part, ())
                elif isinstance(hook, SpectralNorm):
                    weight = hook.compute_weight(part, do_power_iteration=False)
                    setattr(part, hook.name, weight)


def copy_weights(mixer: TokenMixer, weights: HostWeights) -> list[str]:
    """Copy each projection that has the same shape in the mixer.

    The name of a linear layer determines its source:

    - `qkv` and `global_qkv`: queries, keys and values
    - `qk`: queries
    - `value` and `in_proj`: values
    - `proj` and `out_proj`: output

    A bias without a counterpart becomes zero. If the output projection is outside of the host
    module, the mixer's output projection becomes the identity.

    Args:
        mixer: mixer that receives the weights.
        weights: projections of the host module.

    Returns:
        Names of the parameters of the mixer that were set.
    """
    copied: list[str] = []
    for name, layer in mixer.named_modules():
        parts = _TAKES.get(name.rpartition(".")[2])
        if parts is None or not isinstance(layer, nn.Linear):
            continue
        source = _joined([_part(weights, part, layer) for part in parts])
        if source.weight.shape != layer.weight.shape:
            continue
        with torch.no_grad():
            layer.weight.copy_(source.weight)
            copied.append(f"{name}.weight")
            if layer.bias is not None:
                bias = source.bias
                layer.bias.zero_() if bias is None else layer.bias.copy_(bias)
                copied.append(f"{name}.bias")
    return copied


def _part(weights: HostWeights, part: str, layer: nn.Linear) -> Projection:
    found: Projection | None = getattr(weights, part)
    if found is not None:
        return found
    weight = layer.weight
    return Projection(torch.eye(*weight.shape, device=weight.device, dtype=weight.dtype), None)


def _joined(parts: list[Projection]) -> Projection:
    weight = torch.cat([part.weight for part in parts])
    if all(part.bias is None for part in parts):
        return Projection(weight, None)
    biases = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in parts]
    return Projection(weight, torch.cat(biases))
