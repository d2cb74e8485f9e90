"""Encoder-decoder transformers with any mixer, and the Sinkhorn Transformer's models in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import (
    check_integer,
    check_padding_mask,
    check_positive,
    check_probability,
)
from rifflemix.compat import evaluation_mode
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers import (
    SinkhornCrossAttention,
    SoftmaxCrossAttention,
    TokenMixer,
)
from rifflemix.models.base import Model, check_ids
from rifflemix.models.mixing import block_mixer
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.encoder import Encoder
from rifflemix.nn.block import Block
from rifflemix.nn.dropout import Dropout
from rifflemix.nn.embeddings import number_of_ids, table_of
from rifflemix.nn.feed_forward import FeedForward
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
        dropout: probability, behind mixer and attention.

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
        """(B, M, C) and (B, N, C) -> (B, M, C); memory_padding_mask (B, N), True = padding."""
        return self._finish(x, self.mixer(self.norm1(x)), memory, memory_padding_mask)

    def step(
        self,
        x: Tensor,
        memory: Tensor,
        state: dict[str, Tensor],
        memory_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, 1, C) -> (B, 1, C), one token after those in the mixer's state; the next state."""
        mixed, state = self.mixer.step(self.norm1(x).squeeze(1), state)
        return self._finish(x, mixed.unsqueeze(1), memory, memory_padding_mask), state

    def _finish(self, x: Tensor, mixed: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.drop(mixed)
        x = x + self.drop(self.cross(self.norm2(x), memory, key_padding_mask=mask))
        y: Tensor = x + self.mlp(self.norm3(x))
        return y


class Seq2Seq(Model):
    """Encoder-decoder: one embedding for both sides and the logits, sinusoid positions.

    Args:
        mixer: registry name of the mixer of the encoder and, causal, of the decoder.
        mixer_options: its options, in the encoder and in the decoder.
        decoder_mixer: the decoder's, where it is another one.
        decoder_mixer_options: its options; unset, `mixer_options` if the mixers are one.
        cross: attention from the decoder to the encoder, "softmax" or "sinkhorn".
        cross_options: its options.
        dim: channels C.
        num_layers: blocks of the encoder, and as many of the decoder.
        num_heads: heads, for mixers that have them, and of the attention across.
        mlp_ratio: hidden channels of the feed-forward branches over C.
        vocab_size: number of token ids, of both sequences.
        max_length: most tokens of each.
        activation: of the feed-forward branches.
        dropout: probability, on embeddings, mixing weights, hidden layers and branches.
        hidden_dropout: probability in the hidden layers of the feed-forward branches, where it
            is not `dropout`.

    Raises:
        InputError: a size out of range, or a decoder mixer that cannot be causal.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3, in the form of
    Tensor2Tensor's transformer_base; with mixer and cross "sinkhorn" Tay et al. 2020, section 5.1.
    """

    def __init__(
        self,
        *,
        mixer: str = "softmax",
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
        """Logits of the token after each that the decoder has read.

        Args:
            inputs: (B, N) int64, the sequence to read.
            decoder_inputs: (B, M) int64, the sequence to write, one position later: it begins with
                a start token. What it holds after its end changes nothing before it.
            key_padding_mask: (B, N) bool, True = padding of `inputs`.

        Returns:
            (B, M, vocab_size).

        Raises:
            InputError: more than `max_length` tokens, or another shape.
        """
        return self.read(self.encode(inputs, key_padding_mask), decoder_inputs, key_padding_mask)

    def encode(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """(B, N) tokens -> the memory (B, N, C)."""
        _check_tokens("inputs", inputs, number_of_ids(self.embed))
        check_padding_mask(key_padding_mask, inputs)
        positions = None if key_padding_mask is None else valid_positions(key_padding_mask)
        x = self._embedded(inputs, positions)
        for block in self.encoder:
            x = self.run_block(block, x, key_padding_mask=key_padding_mask)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def read(
        self, memory: Tensor, decoder_inputs: Tensor, memory_padding_mask: Tensor | None = None
    ) -> Tensor:
        """The logits (B, M, vocab_size) behind each of the decoder's tokens (B, M)."""
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
        """Write the likeliest token, read it, and so on (greedy decoding, in evaluation mode).

        Args:
            inputs: (B, N) int64, the sequences to read.
            max_new_tokens: most tokens to write, at most `max_length`.
            key_padding_mask: (B, N) bool, True = padding of `inputs`.
            start_token: what the decoder reads first, and what fills up behind an end.
            end_token: the last token of a sequence; None writes `max_new_tokens` of each.
            should_stop: asked before each token; True ends all sequences where they are.

        Returns:
            (B, M) int64 with M at most `max_new_tokens`, the end tokens included.

        Raises:
            InputError: a shape that does not fit, or a token or a number of them out of range.
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
        """A function from what is written so far, one token longer each time, to the next logits.

        A mixer that streams reads each token once; sorted attention across depends on positions in
        blocks, so that there everything is read again.
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
        y: Tensor = self.drop(self.positions(x, positions))
        return y


def _of_decoder(
    mixer: str,
    options: dict[str, Any] | None,
    own_mixer: str | None,
    own_options: dict[str, Any] | None,
) -> dict[str, Any]:
    """What `block_mixer` is told of the decoder: its mixer, the options, and whose they are."""
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


_PAPER = "Tay et al. 2020, Sparse Sinkhorn Attention"
_SORT_BLOCK = {"block_size": 32, "bias": False}


def _sortcut(
    name: str, what: str, vocab_size: int, max_length: int, num_classes: int = 2
) -> Preset:
    card = ModelCard(
        name=f"sinkhorn_sortcut_{name}",
        title=f"SortCut encoder for {what}: all queries share 2 sorted blocks of 8",
        paper=_PAPER,
        inputs="tokens",
        note="Tensor2Tensor's transformer_tiny; the plain Sinkhorn encoder has sortcut 0",
    )
    settings = {
        "mixer": "sinkhorn",
        "mixer_options": {"block_size": 8, "sortcut": 2, "bias": False},
        "dim": 128,
        "num_layers": 2,
        "num_heads": 4,
        "mlp_ratio": 4.0,
        "vocab_size": vocab_size,
        "num_classes": num_classes,
        "max_length": max_length,
        "norm_eps": _EPS,
        "activation": "relu",
        "positions": "sinusoid",
        "dropout": 0.1,
    }
    return Preset(card, Encoder, settings)


PRESETS = (
    Preset(
        ModelCard(
            name="seq2seq",
            title="Encoder-decoder, the backbone of `compare` on pairs of sequences",
            paper="Vaswani et al. 2017, Attention Is All You Need",
            inputs="tokens and decoder tokens",
        ),
        Seq2Seq,
    ),
    Preset(
        ModelCard(
            name="sinkhorn_seq2seq_sort",
            title="Sinkhorn Transformer that sorts sequences of up to 512 symbols",
            paper=_PAPER,
            inputs="tokens and decoder tokens",
            note="Tensor2Tensor's transformer_base; 512 symbols, padding and an end token",
        ),
        Seq2Seq,
        {
            "mixer": "sinkhorn",
            "mixer_options": _SORT_BLOCK,
            "cross": "sinkhorn",
            "cross_options": _SORT_BLOCK,
            "dim": 512,
            "num_layers": 6,
            "num_heads": 8,
            "mlp_ratio": 4.0,
            "vocab_size": 514,
            "max_length": 513,
            "dropout": 0.1,
        },
    ),
    _sortcut("imdb", "film reviews of 512 words", 8192, 512),
    _sortcut("imdb_char", "film reviews of 2,048 bytes", 257, 2048),
    _sortcut("nli", "premise and hypothesis in one sequence of words", 8192, 512, num_classes=3),
)
