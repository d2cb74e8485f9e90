"""Backbones and named presets, and their registry."""

from rifflemix.models.base import Model, from_pretrained
from rifflemix.models.language.generation import continue_prompts, generate
from rifflemix.models.language.gpt import GPT
from rifflemix.models.language.seq2seq import Seq2Seq
from rifflemix.models.official import OfficialTensor, load_official
from rifflemix.models.presets import ModelCard, register_model
from rifflemix.models.registry import (
    create_model,
    list_models,
    model_card,
    model_settings,
    usable_models,
)
from rifflemix.models.sequence.encoder import Encoder
from rifflemix.models.vision.dimension_mixer import DimensionMixerViT, PostNormBlock
from rifflemix.models.vision.mlp_mixer import MLPMixer, MLPMixerBlock
from rifflemix.models.vision.patch_only import PatchOnlyMixer
from rifflemix.models.vision.resnet_mixers import ResNetMixer
from rifflemix.models.vision.tost import ToST
from rifflemix.models.vision.vit import ViT

__all__ = [
    "GPT",
    "DimensionMixerViT",
    "Encoder",
    "MLPMixer",
    "MLPMixerBlock",
    "Model",
    "ModelCard",
    "OfficialTensor",
    "PatchOnlyMixer",
    "PostNormBlock",
    "ResNetMixer",
    "Seq2Seq",
    "ToST",
    "ViT",
    "continue_prompts",
    "create_model",
    "from_pretrained",
    "generate",
    "list_models",
    "load_official",
    "model_card",
    "model_settings",
    "register_model",
    "usable_models",
]
