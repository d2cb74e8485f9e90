"""The common backbone: a pre-norm encoder that takes any mixer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers import create_mixer
from rifflemix.models.base import Model, ModelCard, Preset
from rifflemix.nn.feed_forward import FeedForward
from rifflemix.nn.pooling import masked_mean
from rifflemix.nn.positions import PositionEmbedding
from rifflemix.ops._checks import check_integer, check_positive, check_probability


class EncoderBlock(nn.Module):
    """Pre-norm residual block: x += drop(mixer(LN(x))); x += mlp(LN(x)).

    Args:
        mixer: a module (B, N, C) -> (B, N, C) that takes `key_padding_mask`.
        dim: channels C.
        hidden_dim: channels inside the feed-forward branch.
        dropout: probability in [0, 1).
    """

    def __init__(self, mixer: nn.Module, dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.mixer = mixer
        self.drop = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = FeedForward(dim, hidden_dim, dropout=dropout)

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, N, C); key_padding_mask (B, N) bool, True = padding."""
        x = x + self.drop(self.mixer(self.norm1(x), key_padding_mask=key_padding_mask))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Encoder(Model):
    """Sequence classifier: embedding, positions, blocks, LayerNorm, mean over tokens, linear head.

    Exactly one of `vocab_size` (tokens) and `in_channels` (vectors) says what comes in.

    Args:
        mixer: registry name of the token mixer.
        mixer_options: the mixer's own options.
        dim: channels C.
        num_layers: blocks.
        num_heads: heads, for mixers that have them.
        mlp_ratio: hidden channels of the feed-forward branch over C.
        num_classes: outputs.
        vocab_size: number of token ids.
        in_channels: features per input vector.
        max_length: most tokens.
        dropout: probability, on the embedding and both branches.

    Raises:
        InputError: a size out of range, or both or none of the two kinds of input.
    """

    def __init__(
        self,
        *,
        mixer: str = "softmax",
        mixer_options: dict[str, Any] | None = None,
        dim: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        num_classes: int = 10,
        vocab_size: int | None = None,
        in_channels: int | None = None,
        max_length: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        dim = check_integer("dim", dim, 1)
        num_layers = check_integer("num_layers", num_layers, 1)
        num_classes = check_integer("num_classes", num_classes, 1)
        dropout = check_probability("dropout", dropout)
        self.embed = _embedding(vocab_size, in_channels, dim)
        self.positions = PositionEmbedding(max_length, dim)
        self.drop = nn.Dropout(dropout)
        hidden_dim = round(dim * check_positive("mlp_ratio", mlp_ratio))
        self.blocks = nn.ModuleList(
            EncoderBlock(
                create_mixer(
                    mixer,
                    dim,
                    num_heads=num_heads,
                    max_length=max_length,
                    layer_index=index,
                    num_layers=num_layers,
                    dropout=dropout,
                    **(mixer_options or {}),
                ),
                dim,
                hidden_dim,
                dropout,
            )
            for index in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, inputs: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Logits of each sequence.

        Args:
            inputs: (B, N) int64 token ids, or (B, N, F) vectors.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, num_classes).
        """
        x = self.drop(self.positions(self.embed(inputs)))
        for block in self.blocks:
            x = self.run_block(block, x, key_padding_mask=key_padding_mask)
        logits: Tensor = self.head(masked_mean(self.norm(x), key_padding_mask))
        return logits


def _embedding(vocab_size: int | None, in_channels: int | None, dim: int) -> nn.Module:
    if (vocab_size is None) == (in_channels is None):
        raise bad_argument(
            "vocab_size, in_channels",
            "exactly one of the two",
            f"{vocab_size} and {in_channels}",
        )
    if vocab_size is not None:
        return nn.Embedding(check_integer("vocab_size", vocab_size, 1), dim)
    return nn.Linear(check_integer("in_channels", in_channels, 1), dim)


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
