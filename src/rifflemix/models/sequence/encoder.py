"""The common backbone: a sequence encoder with any mixer, and its presets from several papers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn

from rifflemix.checks import check_bool, check_positive
from rifflemix.errors import check_choice
from rifflemix.mixers import Stack
from rifflemix.models.parts import BERT_STD, bert_normal, block_mixer, with_rotary, xavier_uniform
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.classifier import SequenceClassifier
from rifflemix.models.sequence.config import POSITIONS, ClassifierConfig
from rifflemix.nn.block import NORMS, Block
from rifflemix.nn.embeddings import input_embedding
from rifflemix.nn.layers import FeedForward

INITS = ("torch", "xavier", "bert")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ClassifierConfig):
    """Settings of `Encoder`: the settings of `ClassifierConfig` and of the blocks.

    Set exactly one of `vocab_size` (tokens) and `in_channels` (vectors).

    Attributes:
        mixer: registry name of the token mixer, or a stack.
        mixer_options: options of the mixer, for example `inner_dim`, its inner width.
        host_options: default mixer options of the backbone. Mixers without such an option ignore
            it, and `mixer_options` take precedence.
        num_heads: number of heads, for mixers that have heads.
        causal: build causal mixers, so that a token depends on the tokens before it only.
        short_conv: tokens of a depthwise convolution before every mixer, see `Block`; None for no
            convolution.
        mlp_ratio: hidden channels of the feed-forward branch divided by C.
        vocab_size: number of token ids.
        in_channels: features per input vector.
        norm: "pre", with one more norm after the last block, or "post".
        activation: activation function of the feed-forward branch, one of
            `rifflemix.nn.layers.ACTIVATIONS`.
        attention_dropout: dropout probability on the mixing weights; None uses `dropout`.
        positions: as in `ClassifierConfig`, or "rope": queries and keys of mixers with the option
            `rotary` are rotated by their positions.
        hidden_dropout: dropout probability in the hidden layer of the feed-forward branch; None
            uses `dropout`.
        residual_dropout: dropout probability at the end of both branches; None uses `dropout`.
        level_scale: mean and standard deviation of the inputs. If set, token ids are levels from
            0 to 1, see `rifflemix.nn.embeddings.ValueEmbedding`.
        init: initialization. "torch" keeps the initialization of each layer. "xavier" uses
            Glorot's uniform rule in all linear layers of the blocks, as in the JAX code of the
            Long Range Arena. "bert" uses deviation 0.02 in all linear layers and embeddings, as
            in fairseq.

    Raises:
        InputError: a setting is out of range.
    """

    position_kinds: ClassVar[tuple[str, ...]] = (*POSITIONS, "rope")

    mixer: Stack = "softmax"
    mixer_options: Mapping[str, Any] | None = None
    host_options: Mapping[str, Any] | None = None
    num_heads: int = 4
    causal: bool = False
    short_conv: int | None = None
    mlp_ratio: float = 2.0
    vocab_size: int | None = None
    in_channels: int | None = None
    norm: str = "pre"
    activation: str = "gelu"
    attention_dropout: float | None = None
    hidden_dropout: float | None = None
    residual_dropout: float | None = None
    level_scale: Sequence[float] | None = None
    init: str = "torch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("norm", self.norm, NORMS)
        check_choice("init", self.init, INITS)
        self._keep("mlp_ratio", check_positive)
        self._keep("causal", check_bool)
        for name in ("attention_dropout", "hidden_dropout", "residual_dropout"):
            self._keep(name, self._own_dropout)
        if self.init == "bert":
            object.__setattr__(self, "embedding_std", BERT_STD)


class Encoder(SequenceClassifier):
    """Sequence classifier: embedding, positions, blocks, LayerNorm, pooling, head.

    Args:
        settings: the attributes of `EncoderConfig`, by name.

    Raises:
        InputError: a setting is out of range, or not exactly one of `vocab_size` and
            `in_channels` is set.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.Encoder(vocab_size=100, mixer="tssa", dim=32, num_classes=3)
        >>> padding = torch.arange(50) >= torch.tensor([[50], [20]])
        >>> model(torch.randint(100, (2, 50)), key_padding_mask=padding).shape
        torch.Size([2, 3])
    """

    def __init__(self, **settings: Any) -> None:
        config = EncoderConfig(**settings)
        super().__init__(
            input_embedding(
                config.vocab_size,
                config.in_channels,
                config.dim,
                std=config.embedding_std,
                level_scale=config.level_scale,
            ),
            partial(_block, config),
            nn.LayerNorm(config.dim, eps=config.norm_eps)
            if config.norm == "pre"
            else nn.Identity(),
            config,
        )
        if config.init == "xavier":
            xavier_uniform(self.blocks)
        elif config.init == "bert":
            bert_normal(self)

    # The registry and help() read the settings and their defaults from this signature.
    __init__.__signature__ = inspect.signature(EncoderConfig.__init__)  # type: ignore[attr-defined]


def _block(config: EncoderConfig, index: int) -> Block:
    mixing = block_mixer(
        config.mixer,
        config.mixer_options,
        config.dim,
        of_host=with_rotary(config.host_options, config.mixer, config.positions),
        num_heads=config.num_heads,
        max_length=config.most_positions,
        layer_index=index,
        num_layers=1 if config.tie_layers else config.num_layers,
        causal=config.causal,
        dropout=config.attention_dropout,
    )
    residual = config.residual_dropout or 0.0
    branch = FeedForward(
        config.dim,
        max(1, round(config.dim * config.mlp_ratio)),
        dropout=residual,
        hidden_dropout=config.hidden_dropout or 0.0,
        activation=config.activation,
    )
    return Block(
        mixing,
        branch,
        config.dim,
        dropout=residual,
        norm=config.norm,
        norm_eps=config.norm_eps,
        short_conv=config.short_conv,
    )


PRESETS = (
    Preset(
        ModelCard(
            name="encoder",
            title="Pre-norm encoder with mean pooling, the backbone of `compare`",
            paper="Vaswani et al. 2017, Attention Is All You Need",
            inputs="tokens or vectors",
        ),
        Encoder,
    ),
)


LRA_PAPER = "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers"

# Settings of the JAX code of the Long Range Arena in every task. The mask is ids > 0, also on
# images. The class token is masked if the first token is 0. Linear layers of mixers have no bias.
_LRA_HOST: dict[str, Any] = {
    "padding": "max_length",
    "padding_id": 0,
    "cls_mask": "first",
    "host_options": {
        "bias": False,
        "out_bias": False,
        "keep_positions": True,
        "padded_queries": "mean",
    },
    "activation": "gelu_tanh",
    "norm_eps": 1e-6,
    "init": "xavier",
    "dropout": 0.1,
    "pool": "cls",
    "positions": "interleaved_sinusoid",
}
# Bytes with token 0 as padding, gray levels, and the symbols of list operations.
_BYTES, _LEVELS, _LISTOPS = 257, 256, 16


def _host(
    dim: int, mlp_dim: int, num_layers: int, num_heads: int, **settings: Any
) -> dict[str, Any]:
    sizes = {"dim": dim, "num_layers": num_layers, "num_heads": num_heads}
    return {**_LRA_HOST, **sizes, "mlp_ratio": mlp_dim / dim, "head_hidden": [mlp_dim], **settings}


# Sinusoidal positions as in all tasks except CIFAR-10. Dropout is 0.2, on attention weights 0.1.
_PATHFINDER = _host(32, 32, 4, 4, vocab_size=_LEVELS, num_classes=2, dropout=0.2) | {
    "pool": "position_mean",
    "attention_dropout": 0.1,
}

HOSTS: dict[str, tuple[str, dict[str, Any]]] = {
    "listops": (
        "nested lists of up to 2,000 symbols",
        _host(512, 1024, 4, 8, vocab_size=_LISTOPS, num_classes=10, max_length=2000),
    ),
    "text": (
        "film reviews as bytes",
        _host(256, 1024, 4, 4, vocab_size=_BYTES, num_classes=2, max_length=1000),
    ),
    "retrieval": (
        "pairs of documents of up to 4,000 bytes",
        _host(128, 512, 4, 4, vocab_size=_BYTES, num_classes=2, max_length=4000)
        | {"num_sequences": 2, "head_hidden": [512, 256]},
    ),
    "image": (
        "32 x 32 gray pixels, 10 classes",
        _host(128, 128, 1, 8, vocab_size=_LEVELS, num_classes=10, max_length=1024)
        | {"positions": "learned", "dropout": 0.3, "attention_dropout": 0.2},
    ),
    "pathfinder": ("32 x 32 pixels of dashed lines", {**_PATHFINDER, "max_length": 1024}),
    "pathx": ("128 x 128 pixels of dashed lines", {**_PATHFINDER, "max_length": 16384}),
}
"""The inputs of each task in words, and the settings of the Transformer baseline."""

# Mean and standard deviation of pixels as levels from 0 to 1, in MEGA and S4.
_LEVEL_SCALES = {"image": [0.48, 0.24], "pathfinder": [0.5, 0.5], "pathx": [0.5, 0.5]}


def task_settings(task: str) -> dict[str, Any]:
    """Return the sizes of a task, for models that use pixel levels."""
    sizes = HOSTS[task][1]
    shared = ("vocab_size", "num_classes", "max_length", "num_sequences")
    return {
        **{key: sizes[key] for key in shared if key in sizes},
        **({"level_scale": _LEVEL_SCALES[task]} if task in _LEVEL_SCALES else {}),
    }


def task_inputs(task: str) -> str:
    """Return the kind of inputs for the model card."""
    return "pairs of token sequences" if task == "retrieval" else "tokens"


_WIDTH_NOTE = (
    "sizes of the Transformer in the tables; its attention has {inner} inner channels: set "
    "inner_dim={inner} in mixer_options for mixers with this option"
)
_NOTES = {
    "image": _WIDTH_NOTE.format(inner=64),
    "pathfinder": _WIDTH_NOTE.format(inner=16),
    "pathx": _WIDTH_NOTE.format(inner=16),
}

LRA_PRESETS = tuple(
    Preset(
        ModelCard(
            name=f"lra_{task}",
            title=f"Long Range Arena encoder for {inputs}, any mixer",
            paper=LRA_PAPER,
            inputs=task_inputs(task),
            note=_NOTES.get(task, "sizes of the Transformer in the tables"),
        ),
        Encoder,
        settings,
    )
    for task, (inputs, settings) in HOSTS.items()
)


IMDB_PRESETS = (
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
                "a vocabulary of 16,000 words gives both reported counts, 8.84 M, and 8.05 M with "
                "mixer='sliceformer', mixer_options={'bias': True}; the paper does not name it"
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


POINT_CLOUD_PRESETS = (
    Preset(
        ModelCard(
            name="point_cloud",
            title="Encoder without positions, with max pooling, for sets of points, any mixer",
            paper="Lee et al. 2019, Set Transformer (the task and the width); blocks of the "
            "common encoder",
            inputs="vectors",
            note=(
                "the order of the points has no effect if the card of the mixer has "
                "permutation_equivariant=True"
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
