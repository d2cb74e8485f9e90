"""What the classifiers of sequences share: everything around their blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import (
    check_bool,
    check_integer,
    check_padding_mask,
    check_probability,
    check_tokens,
)
from rifflemix.errors import bad_argument, check_choice
from rifflemix.models.base import Model, check_ids
from rifflemix.models.sequence.heads import PAIR_FEATURES, classifier_head, pair_features
from rifflemix.nn.activations import ACTIVATIONS
from rifflemix.nn.pooling import Pooling
from rifflemix.nn.positions import PositionEmbedding, SinusoidalPositions

POSITIONS = ("learned", "sinusoid", "interleaved_sinusoid", "none")
PADDINGS = ("batch", "max_length", "unmasked")
CLS_MASKS = ("valid", "first")


class SequenceClassifier(Model):
    """Embedding, positions, blocks, norm, pooling, head; of one sequence or of a pair.

    Args:
        embed: (B, N) tokens or (B, N, F) vectors -> (B, N, C).
        make_block: gives block 0, 1, ...: (B, N, C), key_padding_mask -> (B, N, C).
        final_norm: the norm behind the last block.
        dim: channels C.
        num_layers: blocks.
        num_classes: outputs.
        max_length: most tokens.
        positions: "learned", "sinusoid" or "interleaved_sinusoid", see
            `rifflemix.nn.positions.SinusoidalPositions`, or "none".
        first_position: number of the first token in the sinusoids; 2 in fairseq.
        scale_embeddings: multiply embeddings, the class token's too, by sqrt(dim).
        norm_embedding: LayerNorm behind the positions.
        norm_eps: what that norm adds to a variance.
        pool: see `rifflemix.nn.pooling.Pooling`; "cls" puts a learned token before the others.
        cls_std: deviation of that token at the start.
        num_sequences: 1, or 2 for a pair that goes through the same blocks.
        pair_mix: how the two meet, one of `rifflemix.models.sequence.heads.PAIR_FEATURES`.
        head_hidden: channels of the hidden layers of the head.
        head_activation: between the layers of the head.
        head_bias: give the last map a bias.
        head_dropout: probability of dropping a hidden channel of the head.
        embedding_dropout: probability behind the positions and their norm.
        tie_layers: use block 0 `num_layers` times.
        padding: "batch": padding is what the mask says and is kept out; "max_length": the same,
            and every sequence is filled up to `max_length` with padding, so that what is laid out
            over the positions (strides, landmarks, learned projections) does not depend on the
            other samples of a batch; "unmasked": sequences are filled up to `max_length`, no mask
            is used and padding takes part as all other tokens do.
        padding_id: a token id that is padding wherever it stands, beside what the mask says: 0
            in the published code of the Long Range Arena, on images too, whose black pixels are
            hidden thereby. None: only the mask says what padding is.
        cls_mask: the class token is "valid", or padding where the "first" token is, as in the
            published JAX code of the Long Range Arena.

    Raises:
        InputError: a size out of range.
    """

    def __init__(
        self,
        embed: nn.Module,
        make_block: Callable[[int], nn.Module],
        final_norm: nn.Module,
        *,
        dim: int,
        num_layers: int,
        num_classes: int,
        max_length: int,
        positions: str = "learned",
        first_position: int = 0,
        scale_embeddings: bool = False,
        norm_embedding: bool = False,
        norm_eps: float = 1e-5,
        pool: str = "mean",
        cls_std: float = 0.0,
        num_sequences: int = 1,
        pair_mix: str = "concat",
        head_hidden: Sequence[int] = (),
        head_activation: str = "relu",
        head_bias: bool = True,
        head_dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        tie_layers: bool = False,
        padding: str = "batch",
        padding_id: int | None = None,
        cls_mask: str = "valid",
    ) -> None:
        super().__init__()
        check_choice("padding", padding, PADDINGS)
        check_choice("cls_mask", cls_mask, CLS_MASKS)
        check_choice("pair_mix", pair_mix, PAIR_FEATURES)
        check_choice("head_activation", head_activation, ACTIVATIONS)
        self.num_layers = check_integer("num_layers", num_layers, 1)
        self.num_sequences = check_integer("num_sequences", num_sequences, 1, 2)
        self.pair_mix = pair_mix
        self.max_length = check_integer("max_length", max_length, 1)
        self.padding = padding
        self.cls_mask = cls_mask
        self.embed = embed
        self.padding_id = self._check_padding_id(padding_id)
        self.pool = Pooling(pool, max_length)
        self.cls = _class_token(dim, cls_std) if pool == "cls" else None
        is_scaled = check_bool("scale_embeddings", scale_embeddings)
        self.embedding_scale = math.sqrt(dim) if is_scaled else None
        self.positions = _positions(
            positions, most_positions(max_length, pool), dim, first_position
        )
        has_norm = check_bool("norm_embedding", norm_embedding)
        self.embedding_norm = nn.LayerNorm(dim, eps=norm_eps) if has_norm else nn.Identity()
        self.drop = nn.Dropout(check_probability("embedding_dropout", embedding_dropout))
        made = 1 if check_bool("tie_layers", tie_layers) else self.num_layers
        self.blocks = nn.ModuleList(make_block(index) for index in range(made))
        self.norm = final_norm
        vectors = 1 if self.num_sequences == 1 else PAIR_FEATURES[pair_mix]
        self.head = classifier_head(
            vectors * dim,
            num_classes,
            head_hidden,
            activation=head_activation,
            bias=check_bool("head_bias", head_bias),
            dropout=head_dropout,
        )

    def forward(self, inputs: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Scores of each sequence, or of each pair.

        Args:
            inputs: (B, N) int64 token ids, or (B, N, F) vectors; pairs: (B, 2, N) or
                (B, 2, N, F).
            key_padding_mask: (B, N) bool, True = padding; pairs: (B, 2, N).

        Returns:
            (B, num_classes).

        Raises:
            InputError: another number of sequences, or more tokens than `max_length`.
        """
        if self.num_sequences == 1:
            vector = self.encode(inputs, key_padding_mask)
        else:
            vector = self._encode_pair(inputs, key_padding_mask)
        scores: Tensor = self.head(vector)
        return scores

    def _encode_pair(self, inputs: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if not isinstance(inputs, Tensor) or inputs.dim() < 3 or inputs.shape[1] != 2:
            raise bad_argument("inputs", "pairs of shape (B, 2, N)", _shape_of(inputs))
        mask = None if key_padding_mask is None else key_padding_mask.flatten(0, 1)
        a, b = self.encode(inputs.flatten(0, 1), mask).unflatten(0, (-1, 2)).unbind(1)
        return pair_features(a, b, self.pair_mix)

    def encode(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """(B, N) tokens or (B, N, F) vectors, and a mask (B, N) -> one vector each, (B, C)."""
        self._check_inputs(inputs)
        inputs, key_padding_mask = self._padded(inputs, key_padding_mask)
        x = self.embed(inputs)
        if self.cls is not None:
            x = torch.cat((self.cls.to(x.dtype).expand(len(x), -1, -1), x), dim=1)
            if key_padding_mask is not None:
                first = key_padding_mask[:, :1]
                own = torch.zeros_like(first) if self.cls_mask == "valid" else first
                key_padding_mask = torch.cat((own, key_padding_mask), dim=1)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        x = self.drop(self.embedding_norm(self.positions(x)))
        for index in range(self.num_layers):
            block = self.blocks[index % len(self.blocks)]
            x = self.run_block(block, x, key_padding_mask=key_padding_mask)
        pooled: Tensor = self.pool(self.finish(x, key_padding_mask), key_padding_mask)
        return pooled

    def _check_inputs(self, inputs: Tensor) -> None:
        """Raise unless these are ids (B, N), or vectors (B, N, F) where such are embedded."""
        if not isinstance(self.embed, nn.Linear):
            vocab_size = cast(nn.Embedding, self.embed).num_embeddings
            check_ids("inputs", inputs, "(B, N)", below=vocab_size)
            return
        features = self.embed.in_features
        check_tokens("inputs", inputs, layout=f"(B, N, {features})")
        if inputs.shape[2] != features:
            raise bad_argument("inputs", f"shape (B, N, {features})", tuple(inputs.shape))

    def finish(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """(B, N, C) out of the last block -> (B, N, C) into the pooling."""
        y: Tensor = self.norm(x)
        return y

    def _padded(
        self, inputs: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Inputs of as many positions as `padding` says, and which of them are padding.

        They are filled with `padding_id`, token 0 or zero vectors; inputs over `max_length` are
        left for the positions to refuse.
        """
        check_padding_mask(key_padding_mask, inputs)
        if self.padding_id is not None:
            hidden = inputs == self.padding_id
            key_padding_mask = hidden if key_padding_mask is None else key_padding_mask | hidden
        missing = 0 if self.padding == "batch" else max(self.max_length - inputs.shape[1], 0)
        if missing:
            if key_padding_mask is None:
                key_padding_mask = inputs.new_zeros(inputs.shape[:2], dtype=torch.bool)
            key_padding_mask = F.pad(key_padding_mask, (0, missing), value=True)
            sides = (0,) * (2 * (inputs.dim() - 2)) + (0, missing)
            inputs = F.pad(inputs, sides, value=self.padding_id or 0)
        return inputs, None if self.padding == "unmasked" else key_padding_mask

    def _check_padding_id(self, padding_id: int | None) -> int | None:
        if padding_id is None:
            return None
        if isinstance(self.embed, nn.Linear):
            raise bad_argument("padding_id", "None for vectors", padding_id)
        if self.padding == "unmasked":
            raise bad_argument("padding_id", 'None with padding="unmasked"', padding_id)
        return check_integer("padding_id", padding_id, 0)


def _shape_of(inputs: Any) -> object:
    return tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__


def most_positions(max_length: int, pool: str) -> int:
    """Most tokens that reach the blocks: the class token is one more."""
    return max_length + 1 if pool == "cls" else max_length


def _class_token(dim: int, std: float) -> nn.Parameter:
    token = torch.zeros(1, 1, dim)
    return nn.Parameter(token.normal_(std=std) if std > 0 else token)


def _positions(kind: str, length: int, dim: int, first: int) -> nn.Module:
    check_choice("positions", kind, POSITIONS)
    if check_integer("first_position", first, 0) and not kind.endswith("sinusoid"):
        raise bad_argument("first_position", "0 unless positions is sinusoid", first)
    if kind.endswith("sinusoid"):
        interleaved = kind == "interleaved_sinusoid"
        return SinusoidalPositions(length, dim, first=first, interleaved=interleaved)
    return nn.Identity() if kind == "none" else PositionEmbedding(length, dim)
