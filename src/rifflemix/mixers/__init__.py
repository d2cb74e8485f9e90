"""Token mixers: modules (B, N, C) -> (B, N, C), their cards and their registry."""

from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.mixers.registry import (
    create_mixer,
    list_mixers,
    mixer_card,
    mixer_class,
    mixer_options,
)
from rifflemix.mixers.sinkhorn_cross import SinkhornCrossAttention
from rifflemix.mixers.softmax_cross import SoftmaxCrossAttention

__all__ = [
    "MixerCard",
    "SinkhornCrossAttention",
    "SoftmaxCrossAttention",
    "TokenMixer",
    "create_mixer",
    "list_mixers",
    "mixer_card",
    "mixer_class",
    "mixer_options",
]
