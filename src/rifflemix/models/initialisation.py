"""Initialization rules of models."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def modules_to_draw(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield names and modules inside `model`, except networks with `keeps_start = True`.

    Such networks generate weights, for example the values of a kernel, and have a matching
    initialization. Weights of the usual scale of a model would make the generated values almost
    zero.
    """
    kept = tuple(
        f"{name}." for name, part in model.named_modules() if getattr(part, "keeps_start", False)
    )
    for name, part in model.named_modules():
        if not name.startswith(kept):
            yield name, part


BERT_STD = 0.02


def bert_normal(module: nn.Module) -> None:
    """Initialize every `nn.Linear` inside `module` as BERT: deviation 0.02, zero biases.

    Networks that `modules_to_draw` skips keep their weights.

    Source: Devlin et al. 2019, "BERT", as implemented in fairseq.
    """
    for _, layer in modules_to_draw(module):
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=BERT_STD)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


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
