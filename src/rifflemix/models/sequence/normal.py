"""Initialisation of linear maps as in BERT."""

from __future__ import annotations

from torch import nn

from rifflemix.models.initialisation import modules_to_draw

BERT_STD = 0.02


def bert_normal(module: nn.Module) -> None:
    """Draw the weight of every `nn.Linear` inside `module` with deviation 0.02; biases are zero.

    See `modules_to_draw` for what is left as it is.

    Source: Devlin et al. 2019, "BERT", in the form of fairseq.
    """
    for _, layer in modules_to_draw(module):
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=BERT_STD)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
