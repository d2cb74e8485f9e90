"""Variants of Sinkhorn attention that the tests build."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from perturbed import perturb
from rifflemix.mixers.sinkhorn import Sinkhorn

DOUBLE = torch.float64
DIM, HEADS, MAX = 8, 2, 20
Options = dict[str, Any]

SHARED: dict[str, Options] = {
    "default": {},
    "odd block": {"block_size": 5},
    "block of one": {"block_size": 1},
    "block over max_length": {"block_size": 32},
    "relu": {"sort_net": "relu"},
    "mlp": {"sort_net": "mlp"},
    "relu_mlp": {"sort_net": "relu_mlp"},
    "attention": {"sort_net": "attention"},
    "no iterations": {"num_iterations": 0},
    "relu kernel": {"kernel": "relu"},
    "sum_logits": {"combine": "sum_logits"},
    "sum_out": {"combine": "sum_out"},
    "mixture": {"mixture": True},
    "tied": {"tie_kv": True},
    "no bias": {"bias": False},
    "top 1": {"top_k": 1},
    "top 2": {"top_k": 2, "block_size": 4},
    "top 2 attention": {"top_k": 2, "sort_net": "attention"},
}
ENCODERS: dict[str, Options] = {
    **SHARED,
    "sortcut": {"sortcut": 2},
    "sortcut local": {"sortcut": 2, "sortcut_local": True, "block_size": 4},
    "sortcut attention": {"sortcut": 1, "sort_net": "attention"},
    "sortcut top 2": {"sortcut": 2, "top_k": 2},
    "sortcut top 2 attention": {"sortcut": 2, "top_k": 2, "sort_net": "attention"},
}
DECODERS: dict[str, Options] = {
    **SHARED,
    "literal order": {"final_row_norm": False},
    "null": {"null_kv": True},
    "null literal": {"null_kv": True, "final_row_norm": False, "combine": "sum_logits"},
    "null top 2": {"null_kv": True, "top_k": 2, "block_size": 4},
    "rotated": {"rotate_heads": True, "block_size": 4},
    "port": {"rotate_heads": True, "null_kv": True, "top_k": 2, "sort_net": "attention"},
}


def build(options: Options, causal: bool = False, **shared: Any) -> Sinkhorn:
    arguments = {"num_heads": HEADS, "max_length": MAX, "causal": causal, **shared}
    mixer = Sinkhorn(DIM, **options, **arguments)
    return perturb(mixer, 0.1).to(DOUBLE).eval()


def tokens(length: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=DOUBLE)
