"""Backbones and named presets, and their registry."""

from rifflemix.models.base import Model, ModelCard
from rifflemix.models.encoder import Encoder, EncoderBlock
from rifflemix.models.pretrained import from_pretrained
from rifflemix.models.registry import create_model, list_models, model_card, model_settings

__all__ = [
    "Encoder",
    "EncoderBlock",
    "Model",
    "ModelCard",
    "create_model",
    "from_pretrained",
    "list_models",
    "model_card",
    "model_settings",
]
