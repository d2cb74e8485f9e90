"""Classifier of point sets without positions, so that only the mixer can depend on the order."""

from __future__ import annotations

from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.encoder import Encoder

PRESETS = (
    Preset(
        ModelCard(
            name="point_cloud",
            title="Encoder without positions, with max pooling, for sets of points, any mixer",
            paper="Lee et al. 2019, Set Transformer (the task and the width); blocks of the "
            "common encoder",
            inputs="vectors",
            note=(
                "the order of the points changes nothing with the mixers whose card says "
                "permutation_equivariant"
            ),
        ),
        Encoder,
        {
            "in_channels": 3,
            "num_classes": 8,
            "dim": 128,
            "num_layers": 4,
            "num_heads": 4,
            "mlp_ratio": 2.0,
            "max_length": 1024,
            "positions": "none",
            "pool": "max",
        },
    ),
)
