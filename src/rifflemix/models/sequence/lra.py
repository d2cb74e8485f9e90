"""Encoders of the Long Range Arena: one for every task, with any mixer."""

from __future__ import annotations

from typing import Any

from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.encoder import Encoder

PAPER = "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers"

# Settings of the JAX code of the Long Range Arena in every task. The mask is ids > 0, also on
# images. The class token is masked if the first token is 0. Linear layers of mixers have no bias.
_HOST: dict[str, Any] = {
    "padding": "max_length",
    "padding_id": 0,
    "cls_mask": "first",
    "host_options": {
        "bias": False,
        "out_bias": False,
        "keep_positions": True,
        "padded_queries": "mean",
    },
    "activation": "gelu_tanh",
    "norm_eps": 1e-6,
    "init": "xavier",
    "dropout": 0.1,
    "pool": "cls",
    "positions": "interleaved_sinusoid",
}
# Bytes with token 0 as padding, gray levels, and the symbols of list operations.
_BYTES, _LEVELS, _LISTOPS = 257, 256, 16


def _host(
    dim: int, mlp_dim: int, num_layers: int, num_heads: int, **settings: Any
) -> dict[str, Any]:
    sizes = {"dim": dim, "num_layers": num_layers, "num_heads": num_heads}
    return {**_HOST, **sizes, "mlp_ratio": mlp_dim / dim, "head_hidden": [mlp_dim], **settings}


# Sinusoidal positions as in all tasks except CIFAR-10. Dropout is 0.2, on attention weights 0.1.
_PATHFINDER = _host(32, 32, 4, 4, vocab_size=_LEVELS, num_classes=2, dropout=0.2) | {
    "pool": "position_mean",
    "attention_dropout": 0.1,
}

HOSTS: dict[str, tuple[str, dict[str, Any]]] = {
    "listops": (
        "nested lists of up to 2,000 symbols",
        _host(512, 1024, 4, 8, vocab_size=_LISTOPS, num_classes=10, max_length=2000),
    ),
    "text": (
        "film reviews as bytes",
        _host(256, 1024, 4, 4, vocab_size=_BYTES, num_classes=2, max_length=1000),
    ),
    "retrieval": (
        "pairs of documents of up to 4,000 bytes",
        _host(128, 512, 4, 4, vocab_size=_BYTES, num_classes=2, max_length=4000)
        | {"num_sequences": 2, "head_hidden": [512, 256]},
    ),
    "image": (
        "32 x 32 gray pixels, 10 classes",
        _host(128, 128, 1, 8, vocab_size=_LEVELS, num_classes=10, max_length=1024)
        | {"positions": "learned", "dropout": 0.3, "attention_dropout": 0.2},
    ),
    "pathfinder": ("32 x 32 pixels of dashed lines", {**_PATHFINDER, "max_length": 1024}),
    "pathx": ("128 x 128 pixels of dashed lines", {**_PATHFINDER, "max_length": 16384}),
}
"""The inputs of each task in words, and the settings of the Transformer baseline."""

# Mean and standard deviation of pixels as levels from 0 to 1, in MEGA and S4.
_LEVEL_SCALES = {"image": [0.48, 0.24], "pathfinder": [0.5, 0.5], "pathx": [0.5, 0.5]}


def task_settings(task: str) -> dict[str, Any]:
    """Return the sizes of a task, for models that use pixel levels."""
    sizes = HOSTS[task][1]
    shared = ("vocab_size", "num_classes", "max_length", "num_sequences")
    return {
        **{key: sizes[key] for key in shared if key in sizes},
        **({"level_scale": _LEVEL_SCALES[task]} if task in _LEVEL_SCALES else {}),
    }


def task_inputs(task: str) -> str:
    """Return the kind of inputs for the model card."""
    return "pairs of token sequences" if task == "retrieval" else "tokens"


_WIDTH_NOTE = (
    "sizes of the Transformer's row; its attention is {inner} wide inside, which mixers with "
    "that option take as mixer_options inner_dim={inner}"
)
_NOTES = {
    "image": _WIDTH_NOTE.format(inner=64),
    "pathfinder": _WIDTH_NOTE.format(inner=16),
    "pathx": _WIDTH_NOTE.format(inner=16),
}

PRESETS = tuple(
    Preset(
        ModelCard(
            name=f"lra_{task}",
            title=f"Long Range Arena encoder for {inputs}, any mixer",
            paper=PAPER,
            inputs=task_inputs(task),
            note=_NOTES.get(task, "sizes of the Transformer's row"),
        ),
        Encoder,
        settings,
    )
    for task, (inputs, settings) in HOSTS.items()
)
