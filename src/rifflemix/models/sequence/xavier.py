"""Glorot's uniform initialization of the linear layers of a transformer."""

from __future__ import annotations

import torch
from torch import nn

from rifflemix.models.initialisation import modules_to_draw

_FUSED = {"qkv": 3, "global_qkv": 3, "kv": 2, "to_qkv": 3, "to_kv": 2}
"""Fused linear layers by name, with their number of projections; each is initialized alone."""


def xavier_uniform(module: nn.Module) -> None:
    """Initialize every `nn.Linear` inside `module` with Glorot's uniform rule.

    The biases are normal with deviation 1e-6, as in the JAX code of the Long Range Arena. Networks
    that `modules_to_draw` skips keep their weights.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward
    neural networks", equation (16).
    """
    for name, layer in modules_to_draw(module):
        if isinstance(layer, nn.Linear):
            owner, _, own_name = name.rpartition(".")
            _draw(layer, _maps_in(layer, own_name, module.get_submodule(owner)))


def _maps_in(layer: nn.Linear, name: str, owner: nn.Module) -> int:
    """Count the projections in a fused layer.

    The input width of the output projection `proj` gives the width of each projection. The name
    alone can be misleading, for example if a layer has values only or shared keys and values.
    """
    proj = getattr(owner, "proj", None)
    if name in _FUSED and isinstance(proj, nn.Linear) and layer.out_features >= proj.in_features:
        return layer.out_features // proj.in_features
    return _FUSED.get(name, 1)


@torch.no_grad()
def _draw(layer: nn.Linear, maps: int) -> None:
    for part in layer.weight.chunk(maps):
        nn.init.xavier_uniform_(part)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=1e-6)
