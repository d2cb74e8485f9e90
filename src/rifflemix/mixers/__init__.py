"""Token mixers, modules that map (B, N, C) to (B, N, C), with their cards and registry."""

from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.mixers.cross.sinkhorn import SinkhornCrossAttention
from rifflemix.mixers.cross.softmax import SoftmaxCrossAttention
from rifflemix.mixers.named import (
    add_mixers,
    create_mixer,
    list_mixers,
    mixer_card,
    mixer_class,
    mixer_options,
    register_mixer,
    usable_mixers,
)
from rifflemix.mixers.registry import HEADLINE, MIXERS

add_mixers(MIXERS)

__all__ = [
    "HEADLINE",
    "MixerCard",
    "SinkhornCrossAttention",
    "SoftmaxCrossAttention",
    "TokenMixer",
    "create_mixer",
    "list_mixers",
    "mixer_card",
    "mixer_class",
    "mixer_options",
    "register_mixer",
    "usable_mixers",
]
