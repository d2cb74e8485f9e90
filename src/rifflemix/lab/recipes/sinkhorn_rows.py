"""Shared parts of the recipes of the Sparse Sinkhorn Attention paper."""

from __future__ import annotations

from typing import Any

from rifflemix.lab.train import TrainConfig

PAPER = "Tay et al., Sparse Sinkhorn Attention"

Mixing = tuple[str, dict[str, Any]]
"""Name and options of a mixer."""

TUNED = (
    "temperature and iterations were tuned over 0.25, 0.5, 0.75, 1 and 2, 5, 10, 20; what a row "
    "has is not said: here 0.75 and 5, the best of Figures 3 and 4"
)


def own(block: int, **options: Any) -> Mixing:
    """Return Sinkhorn attention with blocks of `block` tokens."""
    return "sinkhorn", {"block_size": block, "bias": False, "num_iterations": 5, **options}


def local(block: int) -> Mixing:
    """Return attention within blocks of `block` tokens."""
    return "local", {"block_size": block, "bias": False, "out_bias": False}


def sparse(block: int) -> Mixing:
    """Return the fixed sparse pattern with 8 summary positions in each block."""
    options = {"stride": block, "num_summary": 8, "bias": False, "out_bias": False}
    return "sparse_transformer", options


DENSE: Mixing = ("softmax", {"bias": False, "out_bias": False})


def tuning(mixing: Mixing) -> tuple[str, ...]:
    """Return the note on tuned settings for Sinkhorn attention, else no notes."""
    return (TUNED,) if mixing[0] == "sinkhorn" else ()


def transformer_base(dim: int, **changes: Any) -> TrainConfig:
    """Configure training as Tensor2Tensor's transformer_base.

    The rate is 2 / sqrt(dim max(step, warm-up)).
    """
    settings: dict[str, Any] = {
        "optimizer": "adam",
        "betas": (0.9, 0.997),
        "eps": 1e-9,
        "schedule": "rsqrt",
        "lr": 2.0 * dim**-0.5,
        "warmup_steps": 8_000,
        "eval_every": 1_000,
    }
    return TrainConfig(**{**settings, **changes})


def lmx(**changes: Any) -> TrainConfig:
    """Configure training as Tensor2Tensor's lmx_base and its larger variants.

    The optimizer is Adafactor with the rate 1 / sqrt(max(step, 10,000)).
    """
    settings: dict[str, Any] = {
        "optimizer": "adafactor",
        "schedule": "rsqrt_decay",
        "lr": 1.0,
        "warmup_steps": 10_000,
        "max_steps": 300_000,
        "eval_every": 1_000,
    }
    return TrainConfig(**{**settings, **changes})
