"""Compression of a sequence into one vector, and a decoder that reads all tokens from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rifflemix.mixers import Stack
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.encoder import Encoder
from rifflemix.nn.positions import SinusoidalPositions

_PAPER = "Poli et al. 2024, Mechanistic Design and Scaling of Hybrid Architectures"


class Compressor(Encoder):
    """Encoder to one vector, the last valid token, and a decoder with an output per token.

    The decoder adds a sinusoid of each position to the vector. Two layers of C channels and a
    linear layer then read the class of the token at this position. The decoder mixes no tokens.

    Args:
        mixer: registry name of the token mixer, or a stack.
        mixer_options: options of the mixer.
        dim: channels C.
        num_layers: number of blocks.
        num_heads: number of heads, for mixers that have heads.
        causal: build causal mixers, as in MAD. The last token then is the only complete summary.
        short_conv: tokens of a convolution before every mixer, see `EncoderConfig`.
        mlp_ratio: hidden channels of the feed-forward branches divided by C.
        vocab_size: number of token ids.
        num_classes: number of outputs per token.
        max_length: maximum number of tokens.
        positions: positions of the encoder, see `EncoderConfig`.

    Raises:
        InputError: a setting is out of range.

    Example:
        >>> import torch
        >>> from rifflemix import create_model
        >>> model = create_model("compressor", mixer="tssa", dim=8, vocab_size=16, max_length=12)
        >>> model(torch.zeros(2, 12, dtype=torch.int64)).shape
        torch.Size([2, 12, 16])

    Source: Poli et al. 2024, section 3.1, and the autoencoder of the released code. This model has
    LayerNorm instead of RMSNorm and a norm after the last block, as `Encoder`.
    """

    def __init__(
        self,
        *,
        mixer: Stack = "softmax",
        mixer_options: Mapping[str, Any] | None = None,
        dim: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        causal: bool = False,
        short_conv: int | None = None,
        mlp_ratio: float = 2.0,
        vocab_size: int = 16,
        num_classes: int = 16,
        max_length: int = 32,
        positions: str = "learned",
    ) -> None:
        super().__init__(
            mixer=mixer,
            mixer_options=mixer_options,
            dim=dim,
            num_layers=num_layers,
            num_heads=num_heads,
            causal=causal,
            short_conv=short_conv,
            mlp_ratio=mlp_ratio,
            vocab_size=vocab_size,
            num_classes=num_classes,
            max_length=max_length,
            positions=positions,
            pool="last",
        )
        self.places = SinusoidalPositions(max_length, dim)
        self.decoder = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, dim),
            nn.GELU(),
            nn.LayerNorm(dim),
            nn.Linear(dim, dim),
            nn.GELU(),
            nn.LayerNorm(dim),
        )

    def forward(self, inputs: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]  # no packed batches
        """Compute the scores of each token from the vector of its sequence.

        Args:
            inputs: (B, N) int64 token ids.
            key_padding_mask: (B, N) bool, True = padding. Padding must come last.

        Returns:
            (B, N, num_classes); values at padded positions are undefined.

        Raises:
            InputError: there are more than `max_length` tokens, or an id is out of range.
        """
        vector = self.encode(inputs, key_padding_mask)
        copies = vector.unsqueeze(1).expand(-1, inputs.shape[1], -1)
        return self.head(self.decoder(self.places(copies)))


PRESETS = tuple(
    Preset(
        ModelCard(
            name=name,
            title=f"Encoder to one vector and a decoder of all tokens, {kind} mixers",
            paper=_PAPER,
            inputs="tokens",
        ),
        Compressor,
        {"causal": causal},
    )
    for name, kind, causal in (
        ("compressor", "bidirectional", False),
        ("causal_compressor", "causal", True),
    )
)
