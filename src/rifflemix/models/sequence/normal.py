"""Initialization of linear layers as in BERT."""

from __future__ import annotations

from torch import nn

from rifflemix.models.initialisation import modules_to_draw

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
