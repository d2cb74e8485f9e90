"""Encoder-decoder transformers with any mixer, and the models of the Sinkhorn Transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_padding_mask, check_positive, check_probability
from rifflemix.compat import evaluation_mode
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers import SinkhornCrossAttention, SoftmaxCrossAttention, Stack, TokenMixer
from rifflemix.models.base import Model, check_ids
from rifflemix.models.parts import block_mixer
from rifflemix.nn.block import Block
from rifflemix.nn.embeddings import number_of_ids, table_of
from rifflemix.nn.layers import Dropout, FeedForward
from rifflemix.nn.positions import SinusoidalPositions, valid_positions

CROSS_ATTENTIONS = ("softmax", "sinkhorn")
_EPS = 1e-6


class DecoderBlock(nn.Module):
    """Pre-norm block: x += drop(mixer(LN(x))); x += drop(cross(LN(x), memory)); x += mlp(LN(x)).

    Args:
        mixer: a causal module (B, M, C) -> (B, M, C).
        cross: attention from (B, M, C) to a memory (B, N, C).
        mlp: the feed-forward branch.
        dim: channels C.
        dropout: dropout probability after the mixer and after the attention.

    Source: Vaswani et al. 2017, section 3.1, with the norms of Tensor2Tensor.
    """

    def __init__(
        self, mixer: TokenMixer, cross: nn.Module, mlp: nn.Module, dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm1, self.mixer = nn.LayerNorm(dim, eps=_EPS), mixer
        self.norm2, self.cross = nn.LayerNorm(dim, eps=_EPS), cross
        self.norm3, self.mlp = nn.LayerNorm(dim, eps=_EPS), mlp
        self.drop = Dropout(dropout)

    def forward(
        self, x: Tensor, memory: Tensor, *, memory_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Apply the block: x (B, M, C), memory (B, N, C) -> (B, M, C).

        The mask is (B, N) bool, True = padding.
        """
        return self._finish(x, self.mixer(self.norm1(x)), memory, memory_padding_mask)

    def step(
        self,
        x: Tensor,
        memory: Tensor,
        state: dict[str, Tensor],
        memory_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Process the next token: (B, 1, C) -> (B, 1, C), next mixer state."""
        mixed, state = self.mixer.step(self.norm1(x).squeeze(1), state)
        return self._finish(x, mixed.unsqueeze(1), memory, memory_padding_mask), state

    def _finish(self, x: Tensor, mixed: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.drop(mixed)
        x = x + self.drop(self.cross(self.norm2(x), memory, key_padding_mask=mask))
        return x + self.mlp(self.norm3(x))


class Seq2Seq(Model):
    """Encoder-decoder transformer with sinusoidal positions and one shared embedding.

    The embedding serves the encoder, the decoder and the logits.

    Args:
        mixer: registry name, or a stack, of the encoder and, in causal mode, of the decoder.
        mixer_options: options of the mixer in the encoder and in the decoder.
        decoder_mixer: registry name of a different mixer for the decoder.
        decoder_mixer_options: options of the decoder mixer. None uses `mixer_options` if both
            mixers are the same.
        cross: attention from the decoder to the encoder, "softmax" or "sinkhorn".
        cross_options: options of the cross-attention.
        dim: channels C.
        num_layers: number of blocks in the encoder and in the decoder.
        num_heads: number of heads of the cross-attention and of mixers that have heads.
        mlp_ratio: hidden channels of the feed-forward branches divided by C.
        vocab_size: number of token ids of both sequences.
        max_length: maximum number of tokens of each sequence.
        activation: activation function of the feed-forward branches.
        dropout: dropout probability on embeddings, mixing weights, hidden layers and branches.
        hidden_dropout: dropout probability in the hidden layers of the feed-forward branches;
            None uses `dropout`.

    Raises:
        InputError: a size is out of range, or the decoder mixer cannot be causal.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3, as implemented in
    Tensor2Tensor's transformer_base; with mixer and cross "sinkhorn" Tay et al. 2020, section 5.1.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.Seq2Seq(mixer="sinkhorn", vocab_size=100, max_length=64, dim=32)
        >>> source, target = torch.randint(100, (2, 64)), torch.randint(100, (2, 10))
        >>> model(source, target).shape
        torch.Size([2, 10, 100])
    """

    def __init__(
        self,
        *,
        mixer: Stack = "softmax",
        mixer_options: dict[str, Any] | None = None,
        decoder_mixer: str | None = None,
        decoder_mixer_options: dict[str, Any] | None = None,
        cross: str = "softmax",
        cross_options: dict[str, Any] | None = None,
        dim: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        vocab_size: int = 256,
        max_length: int = 1024,
        activation: str = "relu",
        dropout: float = 0.0,
        hidden_dropout: float | None = None,
    ) -> None:
        super().__init__()
        dim, num_layers = check_integer("dim", dim, 1), check_integer("num_layers", num_layers, 1)
        dropout = check_probability("dropout", dropout)
        self.max_length = check_integer("max_length", max_length, 1)
        self.embed = nn.Embedding(check_integer("vocab_size", vocab_size, 1), dim)
        nn.init.normal_(self.embed.weight, std=dim**-0.5)
        self.positions = SinusoidalPositions(max_length, dim)
        self.drop = Dropout(dropout)
        hidden_dim = round(dim * check_positive("mlp_ratio", mlp_ratio))
        make_mlp = partial(
            FeedForward,
            dim,
            hidden_dim,
            dropout=dropout,
            hidden_dropout=hidden_dropout,
            activation=activation,
        )
        make_mixer = partial(
            block_mixer,
            dim=dim,
            num_heads=num_heads,
            max_length=max_length,
            num_layers=num_layers,
            dropout=dropout,
        )
        self.encoder = nn.ModuleList(
            Block(
                make_mixer(mixer, mixer_options, layer_index=index, causal=False),
                make_mlp(),
                dim,
                dropout=dropout,
                norm_eps=_EPS,
            )
            for index in range(num_layers)
        )
        self.encoder_norm = nn.LayerNorm(dim, eps=_EPS)
        of_decoder = _of_decoder(mixer, mixer_options, decoder_mixer, decoder_mixer_options)
        self.decoder = nn.ModuleList(
            DecoderBlock(
                make_mixer(**of_decoder, layer_index=index, causal=True),
                _cross_attention(cross, dim, num_heads, max_length, dropout, cross_options or {}),
                make_mlp(),
                dim,
                dropout,
            )
            for index in range(num_layers)
        )
        self.decoder_norm = nn.LayerNorm(dim, eps=_EPS)

    def forward(
        self, inputs: Tensor, decoder_inputs: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Compute the logits of the token after each decoder token.

        Args:
            inputs: (B, N) int64, the source sequence.
            decoder_inputs: (B, M) int64, the target sequence shifted by one position, so that it
                begins with a start token. Tokens after its end do not affect earlier logits.
            key_padding_mask: (B, N) bool, True = padding of `inputs`.

        Returns:
            (B, M, vocab_size).

        Raises:
            InputError: a sequence has more than `max_length` tokens or another shape.
        """
        return self.read(self.encode(inputs, key_padding_mask), decoder_inputs, key_padding_mask)

    def encode(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Encode the source tokens (B, N) as a memory (B, N, C).

        Args:
            inputs: (B, N) token ids.
            key_padding_mask: (B, N) bools, True = padding, or None.

        Returns:
            (B, N, C) encoded tokens.
        """
        _check_tokens("inputs", inputs, number_of_ids(self.embed))
        check_padding_mask(key_padding_mask, inputs)
        positions = None if key_padding_mask is None else valid_positions(key_padding_mask)
        x = self._embedded(inputs, positions)
        for block in self.encoder:
            x = self.run_block(block, x, key_padding_mask=key_padding_mask)
        return self.encoder_norm(x)

    def read(
        self, memory: Tensor, decoder_inputs: Tensor, memory_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Compute the logits after each decoder token.

        Args:
            memory: (B, N, C) result of `encode`.
            decoder_inputs: (B, M) int64 token ids.
            memory_padding_mask: (B, N) bool, True = padding of the memory, or None.

        Returns:
            (B, M, vocab_size).
        """
        _check_tokens("decoder_inputs", decoder_inputs, number_of_ids(self.embed))
        x = self._embedded(decoder_inputs, None)
        for block in self.decoder:
            x = self.run_block(block, x, memory, memory_padding_mask=memory_padding_mask)
        return F.linear(self.decoder_norm(x), table_of(self.embed))

    @torch.no_grad()
    def decode(
        self,
        inputs: Tensor,
        max_new_tokens: int,
        *,
        key_padding_mask: Tensor | None = None,
        start_token: int = 0,
        end_token: int | None = 1,
        should_stop: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Generate the most likely token at each step (greedy decoding).

        The model runs in evaluation mode.

        Args:
            inputs: (B, N) int64, the source sequences.
            max_new_tokens: maximum number of tokens to generate, at most `max_length`.
            key_padding_mask: (B, N) bool, True = padding of `inputs`.
            start_token: first input of the decoder. It also fills a sequence after its end.
            end_token: last token of a sequence; None generates `max_new_tokens` in all sequences.
            should_stop: function that runs before each token; True stops all sequences.

        Returns:
            (B, M) int64 with M at most `max_new_tokens`, including the end tokens.

        Raises:
            InputError: a shape does not fit, or an argument or a token is out of range.
        """
        check_integer("max_new_tokens", max_new_tokens, 1, self.max_length)
        last_id = number_of_ids(self.embed) - 1
        start_token = check_integer("start_token", start_token, 0, last_id)
        if end_token is not None:
            end_token = check_integer("end_token", end_token, 0, last_id)
        with evaluation_mode(self):
            memory = self.encode(inputs, key_padding_mask)
            reader = self._reader(memory, key_padding_mask)
            written = inputs.new_full((len(inputs), 1), start_token)
            ended = inputs.new_zeros(len(inputs), dtype=torch.bool)
            while written.shape[1] <= max_new_tokens and not ended.all():
                if should_stop is not None and should_stop():
                    break
                chosen = reader(written).argmax(dim=1)
                chosen = chosen.masked_fill(ended, start_token)
                if end_token is not None:
                    ended |= chosen == end_token
                written = torch.cat((written, chosen.unsqueeze(1)), dim=1)
        return written[:, 1:]

    def _reader(self, memory: Tensor, mask: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Build a function from the tokens so far to the next logits.

        Each call must add one token. Mixers that support streaming process each token once. All
        others recompute the whole sequence. So does Sinkhorn cross-attention, because it sorts
        blocks of positions.
        """
        blocks = list(cast(Iterable[DecoderBlock], self.decoder))
        if not all(
            block.mixer.card.streaming and isinstance(block.cross, SoftmaxCrossAttention)
            for block in blocks
        ):
            return lambda written: self.read(memory, written, mask)[:, -1]
        states = [
            block.mixer.init_state(len(memory), device=memory.device, dtype=memory.dtype)
            for block in blocks
        ]

        def read_last(written: Tensor) -> Tensor:
            position = torch.full_like(written[:, -1:], written.shape[1] - 1)
            x = self._embedded(written[:, -1:], position)
            for index, block in enumerate(blocks):
                x, states[index] = block.step(x, memory, states[index], mask)
            return F.linear(self.decoder_norm(x[:, 0]), table_of(self.embed))

        return read_last

    def _embedded(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        x: Tensor = self.embed(tokens)
        x = x * x.shape[-1] ** 0.5
        return self.drop(self.positions(x, positions))


def _of_decoder(
    mixer: Stack,
    options: dict[str, Any] | None,
    own_mixer: str | None,
    own_options: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the arguments of `block_mixer` for the decoder: mixer and options."""
    name = mixer if own_mixer is None else own_mixer
    if own_options is not None:
        return {"mixer": name, "options": own_options, "setting": "decoder_mixer_options"}
    return {"mixer": name, "options": options if name == mixer else None}


def _cross_attention(
    kind: str, dim: int, num_heads: int, max_length: int, dropout: float, options: dict[str, Any]
) -> nn.Module:
    check_choice("cross", kind, CROSS_ATTENTIONS)
    try:
        if kind == "softmax":
            return SoftmaxCrossAttention(dim, num_heads=num_heads, dropout=dropout, **options)
        return SinkhornCrossAttention(
            dim, num_heads=num_heads, max_length=max_length, dropout=dropout, **options
        )
    except TypeError as error:
        raise bad_argument("cross_options", f"options of {kind} attention", str(error)) from None


def _check_tokens(name: str, tokens: Tensor, vocab_size: int) -> None:
    check_ids(name, tokens, "(B, N)", below=vocab_size)
    if tokens.shape[1] < 1:
        raise bad_argument(name, "at least one id in shape (B, N)", tuple(tokens.shape))
