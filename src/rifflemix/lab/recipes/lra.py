"""Data, host models, schedules and sizes for Long Range Arena results of several papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rifflemix.lab.train import TrainConfig
from rifflemix.mixers.registry import mixer_options

TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "listops": ("ListOps", "listops", {}),
    "text": ("Text", "text", {}),
    "retrieval": ("Retrieval", "retrieval", {}),
    "image": ("Image", "image", {}),
    "pathfinder": ("Pathfinder", "pathfinder32", {}),
    "pathx": ("Path-X", "pathx", {}),
}
"""Task -> (column title, registry name, options)."""

JAX_TASK_OPTIONS: dict[str, dict[str, Any]] = {"text": {"max_length": 1000}}
"""Task options of the Long Range Arena's JAX code: Text has 1,000 bytes, although quoted as 4K."""

MEGA_TASK_OPTIONS: dict[str, dict[str, Any]] = {"text": {"max_length": 4000}}
"""Task options of MEGA's code, with reviews truncated to 4,000 bytes."""

# Adam as in flax: decoupled weight decay on every parameter, including biases and norms.
_FLAX: dict[str, Any] = {
    "optimizer": "adamw",
    "betas": (0.9, 0.98),
    "eps": 1e-9,
    "decay_all": True,
}
_SQRT: dict[str, Any] = {"schedule": "rsqrt", "lr": 0.05, "weight_decay": 0.1}

BASE: dict[str, TrainConfig] = {
    "listops": TrainConfig(
        max_steps=5_000, batch_size=32, warmup_steps=1_000, eval_every=500, **_SQRT, **_FLAX
    ),
    "text": TrainConfig(
        max_steps=20_000, batch_size=32, warmup_steps=8_000, eval_every=1_000, **_SQRT, **_FLAX
    ),
    "retrieval": TrainConfig(
        max_steps=5_000, batch_size=32, warmup_steps=8_000, eval_every=500, **_SQRT, **_FLAX
    ),
    "image": TrainConfig(
        max_steps=35_000,
        batch_size=256,
        lr=5e-4,
        schedule="cosine_restarts",
        schedule_steps=35_000,
        warmup_steps=175,
        eval_every=500,
        **_FLAX,
    ),
    "pathfinder": TrainConfig(
        max_steps=62_400,
        batch_size=512,
        lr=1e-3,
        schedule="cosine_restarts",
        schedule_steps=62_400,
        warmup_steps=312,
        eval_every=1_000,
        **_FLAX,
    ),
}
"""Training configurations in the JAX code of the Long Range Arena."""

# Batch, updates and warm-up in the PyTorch codes of Nystromformer and Skyformer.
_NYSTROM: dict[str, tuple[int, int, int]] = {
    "listops": (32, 5_000, 1_000),
    "text": (32, 20_000, 8_000),
    "retrieval": (32, 30_000, 800),
    "image": (256, 35_000, 175),
    "pathfinder": (256, 62_400, 312),
}
NYSTROM_TRAIN: dict[str, TrainConfig] = {
    task: TrainConfig(
        max_steps=steps,
        batch_size=batch,
        warmup_steps=warmup,
        lr=1e-4,
        eps=1e-6,
        schedule="one_cycle",
        cycle_beta1=(0.95, 0.85),
        eval_every=max(200, steps // 50),
    )
    for task, (batch, steps, warmup) in _NYSTROM.items()
}
"""Training configurations in Nystromformer's PyTorch code: one-cycle AdamW without decay."""

# The code rounds the length up to a power of two and averages over all positions.
_NYSTROM_LENGTHS = {
    "listops": 2048,
    "text": 4096,
    "retrieval": 4096,
    "image": 1024,
    "pathfinder": 1024,
}


def nystrom_settings(task: str) -> dict[str, Any]:
    """Return settings of `encoder` that reproduce Nystromformer's host model.

    The code masks `ids == 0` on every task: padding up to `max_length`, and black pixels.
    """
    pairs = {"num_sequences": 2, "pair_mix": "concat_product_difference"}
    return {
        "dim": 64,
        "num_layers": 2,
        "num_heads": 2,
        "mlp_ratio": 2.0,
        "head_hidden": [128],
        "dropout": 0.1,
        "embedding_std": 0.02,
        "pool": "length_mean",
        "max_length": _NYSTROM_LENGTHS[task],
        "padding": "max_length",
        "padding_id": 0,
        "vocab_size": 32 if task == "listops" else 512,
        **(pairs if task == "retrieval" else {}),
    }


@dataclass(frozen=True)
class Size:
    """Sizes of a model on Image or Pathfinder; `inner` is the width inside its attention."""

    layers: int
    dim: int
    inner: int
    mlp: int
    heads: int
    pool: str = "cls"
    more: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


_MEAN = "position_mean"
_IMAGE = Size(1, 128, 64, 128, 8)
SIZES: dict[str, dict[str, Size]] = {
    "image": {
        "softmax": _IMAGE,
        "sinkformer": _IMAGE,
        "cosformer": _IMAGE,
        "sparse_transformer": _IMAGE,
        "synthesizer": _IMAGE,
        "linear": _IMAGE,
        "linformer": _IMAGE,
        "performer": _IMAGE,
        "reformer": Size(4, 64, 32, 64, 8),
        "local": Size(1, 128, 64, 128, 2, _MEAN),
        "longformer": Size(4, 128, 64, 128, 4, _MEAN),
        "bigbird": Size(1, 128, 64, 128, 4),
        "sinkhorn": Size(1, 32, 32, 64, 1, _MEAN, {"dropout": 0.1}, {"weight_decay": 0.7}),
    },
    "pathfinder": {
        "softmax": Size(4, 32, 16, 32, 4, _MEAN, {"dropout": 0.2}),
        "sinkformer": Size(4, 32, 16, 32, 4, _MEAN, {"dropout": 0.2}),
        "cosformer": Size(4, 32, 16, 32, 4, _MEAN, {"dropout": 0.2}),
        "sparse_transformer": Size(1, 32, 16, 32, 8, _MEAN),
        "synthesizer": Size(2, 64, 32, 64, 4, _MEAN),
        "linear": Size(1, 128, 64, 128, 2, _MEAN),
        "linformer": Size(1, 32, 16, 32, 2, _MEAN),
        "performer": Size(1, 128, 64, 128, 8, _MEAN),
        "reformer": Size(2, 64, 32, 64, 8, _MEAN),
        "local": Size(2, 64, 32, 64, 4, _MEAN, {"dropout": 0.1}),
        "longformer": Size(2, 32, 16, 32, 2, _MEAN, {"dropout": 0.1}),
        "bigbird": Size(4, 64, 32, 64, 2, _MEAN),
        "sinkhorn": Size(2, 32, 16, 64, 4, _MEAN),
    },
}
"""Sizes per model on the two image tasks; on other tasks all models use the preset's sizes."""

# Mixer -> options of the JAX code that differ from rifflemix's defaults.
_OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"block_size": 50},
    "sinkhorn": {"block_size": 50},
    "sinkformer": {"num_iterations": 3},
    "linformer": {"projected_length": 16},
    "performer": {"kernel": "relu", "scale_exponent": 0.0},
    # The code is causal even for classification. A class token attends to all tokens, and all
    # tokens attend to it. `get_model` sets the block sizes and overrides the defaults 128 and 32.
    "sparse_transformer": {
        "stride": 50,
        "num_summary": 10,
        "triangular": True,
        "cls_token": True,
    },
    "longformer": {"window": 512, "num_global": 0},
    "bigbird": {"block_size": 64, "num_random": 3, "padded_queries": "zero"},
    "cosformer": {},
}
_TASK_OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("local", "image"): {"block_size": 64},
    ("local", "pathfinder"): {"block_size": 64},
    ("sinkhorn", "image"): {"block_size": 64},
    ("sinkhorn", "pathfinder"): {"block_size": 64},
    ("sparse_transformer", "pathfinder"): {"cls_token": False},
    ("linformer", "text"): {"projected_length": 32},
    ("performer", "listops"): {"kernel": "softmax", "num_features": 2, "scale_exponent": 0.25},
    ("synthesizer", "text"): {"mode": "factorized", "rank": 32, "dot_product": False},
}
# Sinkformer's configurations truncate to 1,000 tokens; rifflemix cannot truncate ListOps.
_ROW_TASK_OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("sinkformer", "retrieval"): {"max_length": 1000},
}
# Mixers without a mask in the JAX code: padding is treated like other tokens.
_NO_MASK = ("linear", "linformer", "performer", "reformer")
_NO_MASK_ROWS = (*((mixer, task) for mixer in _NO_MASK for task in TASKS), ("synthesizer", "text"))


def row_options(mixer: str, task: str) -> dict[str, Any]:
    """Return the mixer's options in the JAX code for one task."""
    return {**_OPTIONS.get(mixer, {}), **_TASK_OPTIONS.get((mixer, task), {})}


def row_task_options(mixer: str, task: str) -> dict[str, Any]:
    """Return the task's options in the JAX code for one mixer."""
    return {**JAX_TASK_OPTIONS.get(task, {}), **_ROW_TASK_OPTIONS.get((mixer, task), {})}


def row_settings(mixer: str, task: str) -> dict[str, Any]:
    """Return settings of the `lra_{task}` preset for one mixer."""
    options = row_options(mixer, task)
    settings: dict[str, Any] = {"mixer": mixer}
    if (mixer, task) in _NO_MASK_ROWS:
        settings |= {"padding": "unmasked", "padding_id": None}
    size = SIZES.get(task, {}).get(mixer)
    if size is not None:
        settings |= {
            "num_layers": size.layers,
            "dim": size.dim,
            "num_heads": size.heads,
            "mlp_ratio": size.mlp / size.dim,
            "head_hidden": [size.mlp],
            "pool": size.pool,
            **size.more,
        }
        if "inner_dim" in mixer_options(mixer):
            options["inner_dim"] = size.inner
    if mixer == "sinkhorn" and task != "retrieval":  # a separate model: mean, linear layer
        settings |= {"pool": _MEAN, "head_hidden": []}
    if options:
        settings["mixer_options"] = options
    return settings


def row_training(mixer: str, task: str) -> dict[str, Any]:
    """Return the changes to the task's `BASE` training for one mixer."""
    size = SIZES.get(task, {}).get(mixer)
    return {} if size is None else dict(size.train)
