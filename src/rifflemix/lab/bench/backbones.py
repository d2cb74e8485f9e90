"""Models to measure: a rifflemix model with any mixer, and a third-party model of the same size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.lab.bench.peers import Peer
from rifflemix.lab.bench.rows import Shape
from rifflemix.models import create_model

CLASSES = 10
_VOCABULARY = 256
_ENCODER_RATIO, _VIT_RATIO = 2, 4  # hidden channels of the feed-forward branch over C
_PATCH = 16

Inputs = Callable[[nn.Module, Shape], Tensor]
"""Makes random inputs of a model for the batch size of the shape."""


@dataclass(frozen=True)
class Backbone:
    """A model that supports any mixer.

    Attributes:
        shape: default shape.
        make: builds the rifflemix model from (mixer, layers, shape), on the CPU in float32, with
            `CLASSES` classes.
        inputs: makes random inputs of the model.
        gate_tokens: as in `rifflemix.lab.bench.models.Subject`.
        check: raises InputError if the model does not support the shape.
        peer: returns the third-party softmax model with the given number of layers and the same
            size.
    """

    shape: Shape
    make: Callable[[str, int, Shape], nn.Module]
    inputs: Inputs
    gate_tokens: int | None
    peer: Callable[[int], Peer]
    check: Callable[[Shape], object] = lambda shape: None


def byte_inputs(model: nn.Module, shape: Shape) -> Tensor:
    """Make (B, N) ids from 1 to 255."""
    return torch.randint(1, _VOCABULARY, (shape.batch, shape.tokens))


def _encoder(mixer: str, layers: int, shape: Shape) -> nn.Module:
    return create_model(
        "encoder",
        mixer=mixer,
        dim=shape.channels,
        num_layers=layers,
        num_heads=shape.heads,
        mlp_ratio=_ENCODER_RATIO,
        num_classes=CLASSES,
        vocab_size=_VOCABULARY,
        max_length=shape.tokens,
    )


def _bert(layers: int, package: Any, shape: Shape) -> nn.Module:
    """Build BERT's classifier with fused attention and one token type.

    BERT adds its own pooler.
    """
    config = package.BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=shape.channels,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        intermediate_size=_ENCODER_RATIO * shape.channels,
        max_position_embeddings=shape.tokens,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=CLASSES,
        attn_implementation="sdpa",
        return_dict=False,
    )
    model: nn.Module = package.BertForSequenceClassification(config)
    return model


def _images(model: nn.Module, shape: Shape) -> Tensor:
    """Make images (B, 3, height, width) with `shape.tokens` patches."""
    size = _image_size(shape)
    return torch.randn(shape.batch, 3, size, size)


def _image_size(shape: Shape) -> int:
    """Return the height and width of a square image with `shape.tokens` patches."""
    side = math.isqrt(shape.tokens)
    if side**2 != shape.tokens:
        raise bad_argument("shape: tokens", "a square number, of patches of an image", shape.tokens)
    return _PATCH * side


def _vit(mixer: str, layers: int, shape: Shape) -> nn.Module:
    return create_model(
        "vit_imagenet",
        mixer=mixer,
        dim=shape.channels,
        num_layers=layers,
        num_heads=shape.heads,
        mlp_ratio=_VIT_RATIO,
        num_classes=CLASSES,
        image_size=_image_size(shape),
        patch_size=_PATCH,
        pool="mean",
        dropout=0.0,
        embedding_dropout=0.0,
    )


def _timm(layers: int, package: Any, shape: Shape) -> nn.Module:
    """Build timm's vision transformer without a class token.

    The head reads the norm of the mean of the tokens, as in `_vit`.
    """
    model: nn.Module = package.VisionTransformer(
        img_size=_image_size(shape),
        patch_size=_PATCH,
        num_classes=CLASSES,
        embed_dim=shape.channels,
        depth=layers,
        num_heads=shape.heads,
        mlp_ratio=_VIT_RATIO,
        class_token=False,
        global_pool="avg",
    )
    return model


BACKBONES = {
    "encoder": Backbone(
        Shape(4, 1024, 256, 8),
        _encoder,
        byte_inputs,
        128,
        lambda layers: Peer("transformers", "transformers", partial(_bert, layers)),
    ),
    "vit": Backbone(
        Shape(8, 196, 192, 3),
        _vit,
        _images,
        None,
        lambda layers: Peer("timm", "timm.models.vision_transformer", partial(_timm, layers)),
        _image_size,
    ),
}
"""Backbones by their name on the command line."""
