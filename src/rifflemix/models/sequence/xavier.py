"""Glorot's uniform initialisation of the linear maps of a transformer."""

from __future__ import annotations

import torch
from torch import nn

from rifflemix.models.initialisation import modules_to_draw

_FUSED = {"qkv": 3, "global_qkv": 3, "kv": 2, "to_qkv": 3, "to_kv": 2}
"""Layers that hold several maps side by side, by name; each is drawn as the map it is."""


def xavier_uniform(module: nn.Module) -> None:
    """Draw the weight of every `nn.Linear` inside `module` by Glorot's rule; biases nearly zero.

    The biases are normal with deviation 1e-6, as in the JAX code of the Long Range Arena. See
    `modules_to_draw` for what is left as it is.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward
    neural networks", equation (16).
    """
    for name, layer in modules_to_draw(module):
        if isinstance(layer, nn.Linear):
            owner, _, own_name = name.rpartition(".")
            _draw(layer, _maps_in(layer, own_name, module.get_submodule(owner)))


def _maps_in(layer: nn.Linear, name: str, owner: nn.Module) -> int:
    """How many maps the layer holds.

    Where the output map is beside it, each is as wide as what that takes: values alone, or keys
    that serve as values, are fewer maps than the name says.
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
