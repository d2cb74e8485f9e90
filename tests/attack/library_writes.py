"""Functions that write a folder with the package, called in a forked process."""

from __future__ import annotations

import torch
from torch import nn

import rifflemix as rm


def save_model(out: str) -> None:
    """Save a model of rifflemix."""
    torch.manual_seed(0)
    model = rm.create_model(
        "encoder", mixer="average", dim=8, num_layers=1, num_heads=1, vocab_size=5, max_length=4,
        num_classes=2,
    )  # fmt: skip
    model.save_pretrained(out)


def save_swapped_model(out: str) -> None:
    """Save a torch model with replaced attention."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    rm.replace_attention(model, "tssa")
    rm.save_swapped(model, out)
