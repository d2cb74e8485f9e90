"""Base class of sequence classifiers: everything except the blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_integer, check_padding_mask, check_tokens
from rifflemix.errors import bad_argument
from rifflemix.models.base import Model, check_ids
from rifflemix.models.parts import check_no_empty, lengths_in_row, with_class_tokens
from rifflemix.models.sequence.config import (
    PAIR_FEATURES,
    ClassifierConfig,
    TokenNorm,
    classifier_head,
    pair_features,
)
from rifflemix.nn.embeddings import number_of_ids
from rifflemix.nn.layers import Dropout
from rifflemix.nn.pooling import Pooling
from rifflemix.nn.positions import PositionEmbedding, SinusoidalPositions, packed_positions


class SequenceClassifier(Model):
    """Classifier of sequences or pairs: embedding, positions, blocks, norm, pooling, head.

    Args:
        embed: embedding module: (B, N) tokens or (B, N, F) vectors -> (B, N, C).
        make_block: function from the index 0, 1, ... to a block. A block maps (B, N, C) and a
            `key_padding_mask` to (B, N, C).
        final_norm: the norm after the last block.
        config: all other settings.

    Raises:
        InputError: `padding_id` is set for vectors or with padding="unmasked".
    """

    def __init__(
        self,
        embed: nn.Module,
        make_block: Callable[[int], nn.Module],
        final_norm: nn.Module,
        config: ClassifierConfig,
    ) -> None:
        super().__init__()
        self.num_layers = config.num_layers
        self.num_sequences = config.num_sequences
        self.pair_mix = config.pair_mix
        self.max_length = config.max_length
        self.padding = config.padding
        self.cls_mask = config.cls_mask
        self.embed = embed
        self.takes_vectors = isinstance(embed, nn.Linear)  # quantization replaces the layer later
        self.padding_id = self._check_padding_id(config.padding_id)
        self.pool = Pooling(config.pool, config.max_length)
        self.cls = _class_token(config) if config.pool == "cls" else None
        self.embedding_scale = math.sqrt(config.dim) if config.scale_embeddings else None
        self.positions = _positions(config)
        self.embedding_norm = (
            nn.LayerNorm(config.dim, eps=config.norm_eps)
            if config.norm_embedding
            else nn.Identity()
        )
        self.drop = Dropout(config.embedding_dropout or 0.0)
        made = 1 if config.tie_layers else config.num_layers
        self.blocks = nn.ModuleList(make_block(index) for index in range(made))
        self.norm = final_norm
        vectors = 1 if config.num_sequences == 1 else PAIR_FEATURES[config.pair_mix]
        self.head = classifier_head(
            vectors * config.dim,
            config.num_classes,
            config.head_hidden,
            activation=config.head_activation,
            bias=config.head_bias,
            dropout=config.head_dropout,
        )

    def forward(
        self,
        inputs: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Compute the scores of each sequence or pair.

        Args:
            inputs: (B, N) int64 token ids, or (B, N, F) vectors; pairs: (B, 2, N) or
                (B, 2, N, F).
            key_padding_mask: (B, N) bool, True = padding; pairs: (B, 2, N).
            cu_seqlens: (S + 1,) boundaries of S packed sequences in one row (1, N) or (1, N, F),
                as in `TokenMixer.forward`.

        Returns:
            (B, num_classes), or (B, N, num_classes) with pool="none". For packed sequences
            (S, num_classes) or (1, N, num_classes), where each sequence gives the same scores as
            alone.

        Raises:
            InputError: the number of sequences is wrong, there are more tokens than `max_length`,
                or the model or its mixer does not support packed sequences.
        """
        if cu_seqlens is not None:
            vector = self.encode_packed(inputs, key_padding_mask, cu_seqlens)
        elif self.num_sequences == 1:
            vector = self.encode(inputs, key_padding_mask)
        else:
            vector = self._encode_pair(inputs, key_padding_mask)
        return self.head(vector)

    def encode_packed(
        self, inputs: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor
    ) -> Tensor:
        """Encode a packed batch as one vector per sequence.

        Args:
            inputs: (1, N) int64 token ids, or (1, N, F) vectors, of all sequences.
            key_padding_mask: must be None, because packed sequences have no padding.
            cu_seqlens: (S + 1,) boundaries of the sequences, see `TokenMixer.forward`.

        Returns:
            (S, C), or (1, N, C) with pool="none".

        Raises:
            InputError: `TokenMixer.forward` would not accept the arguments, a sequence is empty,
                or the model uses pairs or padding.
        """
        if self.num_sequences > 1 or self.padding != "batch" or self.padding_id is not None:
            raise bad_argument(
                "cu_seqlens",
                "None, since packed sequences are no pairs and have no padding",
                f"a model with num_sequences={self.num_sequences}, padding={self.padding!r} and "
                f"padding_id={self.padding_id}",
            )
        self._check_inputs(inputs)
        x = self.embed(inputs)
        lengths = lengths_in_row(x, key_padding_mask, cu_seqlens, self.max_length)
        check_no_empty(lengths)
        if self.cls is not None:
            x = with_class_tokens(self.cls, x, lengths)
            lengths = [length + 1 for length in lengths]
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        if not isinstance(self.positions, nn.Identity):
            x = self.positions(x, packed_positions(lengths, x.device))
        x = self.drop(self.embedding_norm(x))
        bounds = torch.tensor([0, *accumulate(lengths)], device="cpu")
        for index in range(self.num_layers):
            x = self.run_block(self.blocks[index % len(self.blocks)], x, cu_seqlens=bounds)
        x = self.finish(x, None)
        if self.pool.kind == "none":
            return x
        parts = x.split(lengths, dim=1)
        return torch.cat([self.pool(part) for part in parts])

    def _encode_pair(self, inputs: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if not isinstance(inputs, Tensor) or inputs.dim() < 3 or inputs.shape[1] != 2:
            raise bad_argument("inputs", "pairs of shape (B, 2, N)", _shape_of(inputs))
        mask = key_padding_mask
        if mask is not None:
            expected = (inputs.shape[0], 2, inputs.shape[2])
            if not isinstance(mask, Tensor) or tuple(mask.shape) != expected:
                raise bad_argument(
                    "key_padding_mask", f"shape (B, 2, N) = {expected}", _shape_of(mask)
                )
            mask = mask.flatten(0, 1)
        a, b = self.encode(inputs.flatten(0, 1), mask).unflatten(0, (-1, 2)).unbind(1)
        return pair_features(a, b, self.pair_mix)

    def encode(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Encode each sequence as one vector.

        Args:
            inputs: (B, N) int64 token ids, or (B, N, F) vectors.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, C), or (B, N, C) with pool="none".
        """
        self._check_inputs(inputs)
        length = inputs.shape[1]
        inputs, key_padding_mask = self._padded(inputs, key_padding_mask)
        x = self.embed(inputs)
        if self.cls is not None:
            x, key_padding_mask = self.with_class_token(self.cls, x, key_padding_mask)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        x = self.drop(self.embedding_norm(self.positions(x)))
        for index in range(self.num_layers):
            block = self.blocks[index % len(self.blocks)]
            x = self.run_block(block, x, key_padding_mask=key_padding_mask)
        pooled: Tensor = self.pool(self.finish(x, key_padding_mask), key_padding_mask)
        return pooled[:, :length] if self.pool.kind == "none" else pooled

    def with_class_token(
        self, token: Tensor, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Prepend the class token to the tokens, and its entry to the mask.

        Args:
            token: (1, 1, C) class token.
            x: (B, N, C) tokens.
            key_padding_mask: (B, N) bool, True = padding, or None.

        Returns:
            (B, N + 1, C) tokens, and their mask (B, N + 1) or None.
        """
        x = torch.cat((token.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)
        if key_padding_mask is not None:
            first = key_padding_mask[:, :1]
            own = torch.zeros_like(first) if self.cls_mask == "valid" else first
            key_padding_mask = torch.cat((own, key_padding_mask), dim=1)
        return x, key_padding_mask

    def _check_inputs(self, inputs: Tensor) -> None:
        """Check for ids (B, N) or vectors (B, N, F), as the embedding needs."""
        if not self.takes_vectors:
            check_ids("inputs", inputs, "(B, N)", below=number_of_ids(self.embed))
            return
        features = cast(nn.Linear, self.embed).in_features
        check_tokens("inputs", inputs, layout=f"(B, N, {features})")
        if inputs.shape[2] != features:
            raise bad_argument("inputs", f"shape (B, N, {features})", tuple(inputs.shape))

    def state_size(self, length: int) -> int:
        # Tied layers have a state each.
        return super().state_size(length) * (self.num_layers // len(self.blocks))

    def no_weight_decay(self) -> set[str]:
        names = super().no_weight_decay()
        return names if self.cls is None else names | {"cls"}

    def finish(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Apply the final norm.

        Args:
            x: (B, N, C) output of the last block.
            key_padding_mask: (B, N) bool, True = padding, or None.

        Returns:
            (B, N, C).
        """
        return self.norm(x, key_padding_mask) if isinstance(self.norm, TokenNorm) else self.norm(x)

    def _padded(
        self, inputs: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Pad the inputs as `padding` requires, and return their mask.

        The padding is `padding_id`, token 0 or zero vectors. Inputs longer than `max_length` do not
        change; the positions reject them later.
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
        if self.takes_vectors:
            raise bad_argument("padding_id", "None for vectors", padding_id)
        if self.padding == "unmasked":
            raise bad_argument("padding_id", 'None with padding="unmasked"', padding_id)
        return check_integer("padding_id", padding_id, 0)


def _shape_of(inputs: Any) -> object:
    return tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__


def _class_token(config: ClassifierConfig) -> nn.Parameter:
    token = torch.zeros(1, 1, config.dim)
    is_drawn = config.scale_embeddings and config.embedding_std > 0
    return nn.Parameter(token.normal_(std=config.embedding_std) if is_drawn else token)


def _positions(config: ClassifierConfig) -> nn.Module:
    kind, length, dim = config.positions, config.most_positions, config.dim
    if kind.endswith("sinusoid"):
        interleaved = kind == "interleaved_sinusoid"
        first = config.first_position
        return SinusoidalPositions(length, dim, first=first, interleaved=interleaved)
    return nn.Identity() if kind in ("none", "rope") else PositionEmbedding(length, dim)
