"""Copying a host's query, key, value and output maps into the maps of a mixer."""

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
    """A linear map: weight (out, in) and bias (out,) or None."""

    weight: Tensor
    bias: Tensor | None


class HostWeights(NamedTuple):
    """The maps of softmax attention, heads side by side, scores divided by sqrt(C / H).

    Attributes:
        query: (inner, C); a host with another scale of its scores has it multiplied in here.
        key: (inner, C), as many heads as the queries have: shared ones are repeated.
        value: (inner, C), likewise.
        output: (C, inner); None where the host applies it outside of the replaced module.
    """

    query: Projection
    key: Projection
    value: Projection
    output: Projection | None


# Names by which mixers know their maps, and what each takes.
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
    """Compute the weights that torch makes of others before each call: pruned ones, normed ones.

    Until the next call they are those of the last one, whatever was loaded or learnt since.
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
    """Copy the maps that `mixer` has a place of the same shape for.

    Linear maps take what their names say: `qkv` the queries, keys and values, `qk` the queries,
    `value` and `in_proj` the values, `proj` and `out_proj` the output. A map without its
    counterpart's bias gets zeros, and an output map that the host has elsewhere the identity.

    Returns:
        Names of the mixer's parameters that were set.
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
