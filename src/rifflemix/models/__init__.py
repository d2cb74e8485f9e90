"""Backbones that take any mixer, and their registry."""

from rifflemix.models.encoder import Encoder, EncoderBlock
from rifflemix.models.registry import create_model, list_models

__all__ = ["Encoder", "EncoderBlock", "create_model", "list_models"]
