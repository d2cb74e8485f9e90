"""Backbones and named presets, and their registry."""

from rifflemix.models.base import Model, ModelCard
from rifflemix.models.dimension_mixer import DimensionMixerViT, PostNormBlock
from rifflemix.models.encoder import Encoder, EncoderBlock
from rifflemix.models.generation import generate
from rifflemix.models.gpt import GPT
from rifflemix.models.mlp_mixer import MLPMixer, MLPMixerBlock
from rifflemix.models.official import OfficialTensor, load_official
from rifflemix.models.patch_only import PatchOnlyMixer
from rifflemix.models.pretrained import from_pretrained
from rifflemix.models.registry import create_model, list_models, model_card, model_settings
from rifflemix.models.resnet_mixers import ResNetMixer
from rifflemix.models.seq2seq import Seq2Seq
from rifflemix.models.tost import ToST, ToSTBlock
from rifflemix.models.vit import ViT

__all__ = [
    "GPT",
    "DimensionMixerViT",
    "Encoder",
    "EncoderBlock",
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
    "ToSTBlock",
    "ViT",
    "create_model",
    "from_pretrained",
    "generate",
    "list_models",
    "load_official",
    "model_card",
    "model_settings",
]
