"""Recipes of results that the CSP paper's Table 4 quotes: S4, S5, CCNN, ETSMLP and SPADE.

Sizes and training come from the paper or the released commands of each model. `notes.toml` has
the settings that are not published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rifflemix.lab.recipes import lra, mega
from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.train import TrainConfig
from rifflemix.models import model_settings

# Models and their names in the table.
ROWS: dict[str, str] = {
    "s4": "S4",
    "s5": "S5",
    "ccnn": "CCNN",
    "etsmlp": "ETSMLP",
    "spade": "SPADE",
}

# Entries that the table reports as FAIL.
FAILED = (("ccnn", "retrieval"), ("ccnn", "pathx"))

# Models that use MEGA's code or training. Reviews are truncated as in MEGA's code.
_IN_MEGAS_CODE = ("etsmlp", "spade")
# Training samples in the published split of each task; one epoch uses all of them.
_SAMPLES = {
    "listops": 96_000,
    "text": 25_000,
    "retrieval": 147_086,
    "image": 45_000,
    "pathfinder": 160_000,
    "pathx": 160_000,
}
_LEVELS = {"image": [0.48, 0.24], "pathfinder": [0.5, 0.5], "pathx": [0.5, 0.5]}
_MORE_SETTINGS = ("vocab_size", "num_classes", "max_length", "num_sequences")


@dataclass(frozen=True)
class _Size:
    """Sizes, training settings and mixer options of a model on one task."""

    layers: int
    dim: int
    dropout: float
    rate: float
    batch: int
    epochs: int
    decay: float
    norm: str = "pre"
    norm_kind: str = "batch"
    warmup: int = 1
    options: tuple[tuple[str, Any], ...] = ()


_S4: dict[str, _Size] = {
    "listops": _Size(6, 128, 0.0, 0.01, 100, 50, 0.01, norm="post", warmup=0),
    "text": _Size(4, 64, 0.0, 0.001, 50, 20, 0.0, warmup=0),
    "retrieval": _Size(6, 256, 0.0, 0.002, 64, 20, 0.0, warmup=0),
    "image": _Size(6, 512, 0.2, 0.004, 50, 200, 0.01, norm="post", norm_kind="layer", warmup=0),
    "pathfinder": _Size(6, 256, 0.1, 0.004, 100, 200, 0.0, warmup=0),
    "pathx": _Size(6, 256, 0.0, 5e-4, 32, 100, 0.0, warmup=0),
}


def _s5(state: int, blocks: int) -> tuple[tuple[str, Any], ...]:
    return (("state_size", state), ("num_blocks", blocks))


_S5: dict[str, _Size] = {
    "listops": _Size(8, 128, 0.0, 3e-3, 50, 40, 0.04, options=_s5(16, 8)),
    "text": _Size(6, 256, 0.1, 4e-3, 50, 35, 0.07, warmup=0, options=_s5(192, 12)),
    "retrieval": _Size(6, 128, 0.0, 2e-3, 32, 20, 0.05, options=_s5(256, 16)),
    "image": _Size(6, 512, 0.1, 4.5e-3, 50, 250, 0.07, options=_s5(384, 3)),
    "pathfinder": _Size(6, 192, 0.05, 4.5e-3, 64, 200, 0.03, options=_s5(256, 8)),
    "pathx": _Size(6, 128, 0.0, 1.8e-3, 32, 75, 0.06, options=_s5(256, 16)),
}


def _kernel(features: int, frequency: float, width: float) -> tuple[tuple[str, Any], ...]:
    """Convert a command's window width from halves of the sequence."""
    return (("features", features), ("frequency", frequency), ("width", width / 2.0))


_CCNN: dict[str, _Size] = {
    "listops": _Size(
        6, 380, 0.25, 1e-3, 50, 60, 0.0, warmup=10, options=_kernel(32, 784.655, 0.03)
    ),
    "text": _Size(6, 380, 0.3, 0.02, 25, 60, 0.0, warmup=10, options=_kernel(64, 2966.605, 0.03)),
    "image": _Size(
        6, 380, 0.1, 0.01, 50, 210, 0.0, warmup=10, options=_kernel(64, 4005.146, 0.075)
    ),
    "pathfinder": _Size(
        6, 380, 0.1, 0.01, 100, 210, 1e-6, warmup=10, options=_kernel(64, 2272.557, 0.4)
    ),
}
# Released architectures with a gate: layers, channels, smoothed channels, norm.
_ETSMLP: dict[str, tuple[int, int, int, str]] = {
    "listops": (12, 160, 160, "layer"),
    "text": (6, 160, 160, "layer"),
    "retrieval": (6, 160, 160, "layer"),
    "image": (12, 160, 320, "batch"),
    "pathfinder": (6, 128, 256, "batch"),
    "pathx": (6, 128, 256, "batch"),
}


def table4(task: str, row: str) -> Recipe:
    """Build a quoted entry of Table 4."""
    title, task_name, options = lra.TASKS[task]
    if row in _IN_MEGAS_CODE:
        options = {**options, **lra.MEGA_TASK_OPTIONS.get(task, {})}
    model, settings, train = _MAKERS[row](task)
    return Recipe(
        name=f"csp/table4-{task}-{row}",
        paper=mega.PAPER,
        table="Table 4",
        row=ROWS[row],
        column=title,
        task=task_name,
        task_options=options,
        model=model,
        model_settings=settings,
        train=train,
    )


_Parts = tuple[str, dict[str, Any], TrainConfig]


def _s4_row(task: str) -> _Parts:
    settings, train = _stack(task, "s4", _S4[task])
    return "mixer_stack", {**settings, "causal": True}, train


def _s5_row(task: str) -> _Parts:
    settings, train = _stack(task, "s5", _S5[task])
    if task == "retrieval":
        settings["head_activation"] = "gelu"
    return "mixer_stack", settings, train


def _ccnn_row(task: str) -> _Parts:
    settings, train = _stack(task, "long_conv", _CCNN[task])
    settings["residual_dropout"] = 0.0  # only one dropout, between the mixer's projections
    return "mixer_stack", {**settings, "causal": True}, train


def _etsmlp_row(task: str) -> _Parts:
    layers, dim, hidden, norm_kind = _ETSMLP[task]
    settings: dict[str, Any] = {
        **_of_task(task),
        "mixer": "exp_smoothing",
        "mixer_options": {"hidden_dim": hidden},
        "dim": dim,
        "num_layers": layers,
        "norm_kind": norm_kind,
        "head_hidden": [dim] if task == "retrieval" else [],
        "head_activation": "gelu",
        **({"pair_mix": "concat"} if task == "retrieval" else {}),
    }
    train = mega.training(task)
    if task == "listops":
        own = TrainConfig.from_dict({**train.to_dict(), "lr": 0.01, "accumulation": 2})
        return "mixer_stack", settings, own
    return "mixer_stack", settings, train


def _spade_row(task: str) -> _Parts:
    of_mega = model_settings(f"mega_lra_{task}")
    settings: dict[str, Any] = {
        **_of_task(task),
        "mixer": "spade",
        "mixer_options": {"radius": 64},
        "dim": of_mega["dim"],
        "num_layers": of_mega["num_layers"],
        "dropout": of_mega["dropout"],
        "positions": "sinusoid",
    }
    return "encoder", settings, mega.training(task)


_MAKERS: dict[str, Callable[[str], _Parts]] = {
    "s4": _s4_row,
    "s5": _s5_row,
    "ccnn": _ccnn_row,
    "etsmlp": _etsmlp_row,
    "spade": _spade_row,
}


def _of_task(task: str) -> dict[str, Any]:
    """Return settings for a task: vocabulary, classes, lengths, gray levels and pairs.

    The head gets a pair as [a, b, ab, a - b].
    """
    # From MEGA's preset, because the JAX code truncates Text to 1,000 bytes.
    shared = model_settings(f"mega_lra_{task}")
    return {
        **{name: shared[name] for name in _MORE_SETTINGS if shared[name] is not None},
        **({"level_scale": _LEVELS[task]} if task in _LEVELS else {}),
        **({"pair_mix": "concat_product_difference"} if task == "retrieval" else {}),
    }


def _stack(task: str, mixer: str, size: _Size) -> tuple[dict[str, Any], TrainConfig]:
    """Return settings of `mixer_stack` and a cosine schedule with AdamW."""
    settings: dict[str, Any] = {
        **_of_task(task),
        "mixer": mixer,
        "mixer_options": dict(size.options),
        "dim": size.dim,
        "num_layers": size.layers,
        "norm": size.norm,
        "norm_kind": size.norm_kind,
        "dropout": size.dropout,
        "head_hidden": [size.dim] if task == "retrieval" else [],
    }
    epoch = _SAMPLES[task] // size.batch
    train = TrainConfig(
        max_steps=size.epochs * epoch,
        batch_size=size.batch,
        lr=size.rate,
        weight_decay=size.decay,
        schedule="cosine",
        warmup_steps=size.warmup * epoch,
        eval_every=epoch,
    )
    return settings, train
