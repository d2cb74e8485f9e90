"""The common backbone: a sequence encoder with any mixer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from rifflemix.checks import check_positive
from rifflemix.errors import check_choice
from rifflemix.models.mixing import block_mixer
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.classifier import SequenceClassifier
from rifflemix.models.sequence.config import ClassifierConfig
from rifflemix.models.sequence.normal import BERT_STD, bert_normal
from rifflemix.models.sequence.xavier import xavier_uniform
from rifflemix.nn.block import NORMS, Block
from rifflemix.nn.embeddings import input_embedding
from rifflemix.nn.feed_forward import FeedForward

INITS = ("torch", "xavier", "bert")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ClassifierConfig):
    """Settings of `Encoder`: the settings of `ClassifierConfig` and of the blocks.

    Set exactly one of `vocab_size` (tokens) and `in_channels` (vectors).

    Attributes:
        mixer: registry name of the token mixer.
        mixer_options: options of the mixer, for example `inner_dim`, its inner width.
        host_options: default mixer options of the backbone. Mixers without such an option ignore
            it, and `mixer_options` take precedence.
        num_heads: number of heads, for mixers that have heads.
        mlp_ratio: hidden channels of the feed-forward branch divided by C.
        vocab_size: number of token ids.
        in_channels: features per input vector.
        norm: "pre", with one more norm after the last block, or "post".
        activation: activation function of the feed-forward branch, one of
            `rifflemix.nn.activations.ACTIVATIONS`.
        attention_dropout: dropout probability on the mixing weights; None uses `dropout`.
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

    mixer: str = "softmax"
    mixer_options: Mapping[str, Any] | None = None
    host_options: Mapping[str, Any] | None = None
    num_heads: int = 4
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
        of_host=config.host_options,
        num_heads=config.num_heads,
        max_length=config.most_positions,
        layer_index=index,
        num_layers=1 if config.tie_layers else config.num_layers,
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
        mixing, branch, config.dim, dropout=residual, norm=config.norm, norm_eps=config.norm_eps
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
