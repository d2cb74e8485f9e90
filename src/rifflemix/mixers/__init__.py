"""Token mixers, modules that map (B, N, C) to (B, N, C), with their cards and registry."""

from rifflemix.mixers.base import MixerCard, TokenMixer
from rifflemix.mixers.builtin import HEADLINE, MIXERS
from rifflemix.mixers.cross.sinkhorn import SinkhornCrossAttention
from rifflemix.mixers.cross.softmax import SoftmaxCrossAttention
from rifflemix.mixers.registry import (
    add_mixers,
    create_mixer,
    list_mixers,
    mixer_card,
    mixer_class,
    mixer_classes,
    mixer_options,
    register_mixer,
    usable_mixers,
)
from rifflemix.mixers.stacks import Stack, stack_name

add_mixers(MIXERS)

__all__ = [
    "HEADLINE",
    "MixerCard",
    "SinkhornCrossAttention",
    "SoftmaxCrossAttention",
    "Stack",
    "TokenMixer",
    "create_mixer",
    "list_mixers",
    "mixer_card",
    "mixer_class",
    "mixer_classes",
    "mixer_options",
    "register_mixer",
    "stack_name",
    "usable_mixers",
]
