"""Parts that the recipes of the Sparse Sinkhorn Attention paper share."""

from __future__ import annotations

from typing import Any

from rifflemix.lab.train import TrainConfig

PAPER = "Tay et al., Sparse Sinkhorn Attention"

Mixing = tuple[str, dict[str, Any]]
"""A mixer and its options."""

TUNED = (
    "temperature and iterations were tuned over 0.25, 0.5, 0.75, 1 and 2, 5, 10, 20; what a row "
    "has is not said: here 0.75 and 5, the best of Figures 3 and 4"
)


def own(block: int, **options: Any) -> Mixing:
    """Sinkhorn attention with blocks of this many tokens."""
    return "sinkhorn", {"block_size": block, "bias": False, "num_iterations": 5, **options}


def local(block: int) -> Mixing:
    """Attention within blocks."""
    return "local", {"block_size": block, "bias": False, "out_bias": False}


def sparse(block: int) -> Mixing:
    """The fixed pattern with 8 summary positions in each block."""
    options = {"stride": block, "num_summary": 8, "bias": False, "out_bias": False}
    return "sparse_transformer", options


DENSE: Mixing = ("softmax", {"bias": False, "out_bias": False})


def tuning(mixing: Mixing) -> tuple[str, ...]:
    """The note on what was tuned, for the rows that have it."""
    return (TUNED,) if mixing[0] == "sinkhorn" else ()


def transformer_base(dim: int, **changes: Any) -> TrainConfig:
    """transformer_base of Tensor2Tensor: the rate is 2 / sqrt(dim max(step, warm-up))."""
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
    """lmx_base and its larger forms of Tensor2Tensor: Adafactor, 1 / sqrt(max(step, 10,000))."""
    settings: dict[str, Any] = {
        "optimizer": "adafactor",
        "schedule": "rsqrt_decay",
        "lr": 1.0,
        "warmup_steps": 10_000,
        "max_steps": 300_000,
        "eval_every": 1_000,
    }
    return TrainConfig(**{**settings, **changes})
