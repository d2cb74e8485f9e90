"""Classifier of film reviews that the Sliceformer paper compares mixers in."""

from __future__ import annotations

from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.encoder import Encoder

PRESETS = (
    Preset(
        ModelCard(
            name="imdb_classifier",
            title="Post-norm encoder with max pooling for film reviews of 512 words, any mixer",
            paper="Yuan and Xu, Sliceformer: Make Multi-head Attention as Simple as Sorting in "
            "Discriminative Tasks",
            inputs="tokens",
            printed="8.84 M",
            printed_in="Table V",
            note=(
                "16,000 words, which neither paper nor code states, give both printed counts: "
                "8.84 M, and 8.05 M with mixer='sliceformer', mixer_options={'bias': True}"
            ),
        ),
        Encoder,
        {
            "vocab_size": 16_000,
            "num_classes": 2,
            "dim": 256,
            "num_layers": 6,
            "num_heads": 8,
            "mlp_ratio": 4.0,
            "max_length": 512,
            "norm": "post",
            "norm_eps": 1e-6,
            "activation": "relu",
            "positions": "interleaved_sinusoid",
            "first_position": 1,
            "pool": "max",
            "dropout": 0.1,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
        },
    ),
)
