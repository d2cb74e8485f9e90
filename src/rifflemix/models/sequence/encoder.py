"""The common backbone: an encoder that takes any mixer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from rifflemix.checks import check_integer, check_positive, check_probability
from rifflemix.errors import check_choice
from rifflemix.models.mixing import block_mixer
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.classifier import SequenceClassifier, most_positions
from rifflemix.models.sequence.normal import BERT_STD, bert_normal
from rifflemix.models.sequence.xavier import xavier_uniform
from rifflemix.nn.block import NORMS, Block
from rifflemix.nn.embeddings import input_embedding
from rifflemix.nn.feed_forward import FeedForward

INITS = ("torch", "xavier", "bert")


class Encoder(SequenceClassifier):
    """Sequence classifier: embedding, positions, blocks, LayerNorm, pooling, head.

    Exactly one of `vocab_size` (tokens) and `in_channels` (vectors) says what comes in. The
    settings not listed here are those of `SequenceClassifier`.

    Args:
        mixer: registry name of the token mixer.
        mixer_options: the mixer's own options, for instance `inner_dim`, the width inside.
        host_options: options that the host sets in mixers that have them, whichever mixer it is;
            `mixer_options` come before.
        dim: channels C.
        num_layers: blocks.
        num_heads: heads, for mixers that have them.
        mlp_ratio: hidden channels of the feed-forward branch over C.
        num_classes: outputs.
        vocab_size: number of token ids.
        in_channels: features per input vector.
        max_length: most tokens.
        dropout: probability, on the embedding, the mixing weights, the hidden layer of the
            feed-forward branch and the end of both branches, where these do not have their own.
        norm: "pre", with one more norm behind the last block, or "post".
        norm_eps: what the norms add to a variance.
        activation: of the feed-forward branch, one of `rifflemix.nn.activations.ACTIVATIONS`.
        attention_dropout: probability of dropping a mixing weight.
        hidden_dropout: probability in the hidden layer of the feed-forward branch.
        residual_dropout: probability at the end of both branches.
        embedding_std: deviation of the token embedding at the start, and of the class token where
            embeddings are scaled; that token is zero at the start where they are not.
        level_scale: mean and deviation; token ids are then read as levels from 0 to 1, see
            `rifflemix.nn.embeddings.ValueEmbedding`.
        init: "torch", each layer as torch or the mixer draws it, or "xavier", all linear maps of
            the blocks by Glorot's uniform rule, as in the JAX code of the Long Range Arena, or
            "bert", all linear maps and embeddings with deviation 0.02, as in fairseq.

    Raises:
        InputError: a size out of range, or both or none of the two kinds of input.
    """

    def __init__(
        self,
        *,
        mixer: str = "softmax",
        mixer_options: dict[str, Any] | None = None,
        host_options: dict[str, Any] | None = None,
        dim: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        num_classes: int = 10,
        vocab_size: int | None = None,
        in_channels: int | None = None,
        max_length: int = 1024,
        dropout: float = 0.0,
        norm: str = "pre",
        norm_eps: float = 1e-5,
        activation: str = "gelu",
        attention_dropout: float | None = None,
        hidden_dropout: float | None = None,
        residual_dropout: float | None = None,
        embedding_dropout: float | None = None,
        embedding_std: float = 1.0,
        level_scale: Sequence[float] | None = None,
        positions: str = "learned",
        first_position: int = 0,
        scale_embeddings: bool = False,
        norm_embedding: bool = False,
        pool: str = "mean",
        head_hidden: Sequence[int] = (),
        head_activation: str = "relu",
        head_bias: bool = True,
        head_dropout: float = 0.0,
        num_sequences: int = 1,
        pair_mix: str = "concat",
        tie_layers: bool = False,
        padding: str = "batch",
        padding_id: int | None = None,
        cls_mask: str = "valid",
        init: str = "torch",
    ) -> None:
        dim = check_integer("dim", dim, 1)
        num_layers = check_integer("num_layers", num_layers, 1)
        max_length = check_integer("max_length", max_length, 1)
        norm_eps = check_positive("norm_eps", norm_eps)
        check_choice("norm", norm, NORMS)
        check_choice("init", init, INITS)
        dropout = check_probability("dropout", dropout)
        residual = _own("residual_dropout", residual_dropout, dropout)
        embedding_std = BERT_STD if init == "bert" else embedding_std
        hidden_dim = max(1, round(dim * check_positive("mlp_ratio", mlp_ratio)))

        def make_block(index: int) -> Block:
            mixing = block_mixer(
                mixer,
                mixer_options,
                dim,
                of_host=host_options,
                num_heads=num_heads,
                max_length=most_positions(max_length, pool),
                layer_index=index,
                num_layers=1 if tie_layers else num_layers,
                dropout=_own("attention_dropout", attention_dropout, dropout),
            )
            branch = FeedForward(
                dim,
                hidden_dim,
                dropout=residual,
                hidden_dropout=_own("hidden_dropout", hidden_dropout, dropout),
                activation=activation,
            )
            return Block(mixing, branch, dim, dropout=residual, norm=norm, norm_eps=norm_eps)

        super().__init__(
            input_embedding(
                vocab_size, in_channels, dim, std=embedding_std, level_scale=level_scale
            ),
            make_block,
            nn.LayerNorm(dim, eps=norm_eps) if norm == "pre" else nn.Identity(),
            dim=dim,
            num_layers=num_layers,
            num_classes=num_classes,
            max_length=max_length,
            positions=positions,
            first_position=first_position,
            scale_embeddings=scale_embeddings,
            norm_embedding=norm_embedding,
            norm_eps=norm_eps,
            pool=pool,
            cls_std=embedding_std if scale_embeddings else 0.0,
            num_sequences=num_sequences,
            pair_mix=pair_mix,
            head_hidden=head_hidden,
            head_activation=head_activation,
            head_bias=head_bias,
            head_dropout=head_dropout,
            embedding_dropout=_own("embedding_dropout", embedding_dropout, dropout),
            tie_layers=tie_layers,
            padding=padding,
            padding_id=padding_id,
            cls_mask=cls_mask,
        )
        if init == "xavier":
            xavier_uniform(self.blocks)
        elif init == "bert":
            bert_normal(self)


def _own(name: str, value: float | None, shared: float) -> float:
    return shared if value is None else check_probability(name, value)


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
