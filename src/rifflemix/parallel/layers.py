"""Sharded layers around the mixers, and models with code for the whole sequence."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.models.language.gpt import GPT
from rifflemix.models.sequence.encoder import Encoder
from rifflemix.models.vision.vit import ViT
from rifflemix.nn.embeddings import PatchEmbedding
from rifflemix.nn.layers import ClassToken, DropPath
from rifflemix.nn.pooling import Pooling
from rifflemix.nn.positions import PositionEmbedding, SinusoidalPositions
from rifflemix.parallel.mixers import valid_before
from rifflemix.parallel.shards import SequenceGroup


class ShardedLayer(nn.Module):
    """A layer that gets the tokens of this process and has the group of the sequence."""

    sequence: SequenceGroup


class ShardedPositionEmbedding(ShardedLayer, PositionEmbedding):
    """Every process adds position embeddings to its shard."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Add positions; `positions` count from the start of the whole sequence."""
        if positions is None:
            positions = _own_positions(x, self.sequence, len(self.table))
        return super().forward(x, positions)


class ShardedSinusoidalPositions(ShardedLayer, SinusoidalPositions):
    """Every process adds position embeddings to its shard."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Add positions; `positions` count from the start of the whole sequence."""
        if positions is None:
            positions = _own_positions(x, self.sequence, len(self.table))
        return super().forward(x, positions)


def _own_positions(x: Tensor, sequence: SequenceGroup, max_length: int) -> Tensor:
    """Return the positions of this process's tokens, (n,) int64."""
    shards = sequence.shards(x.shape[1])
    if shards.length > max_length:
        raise bad_argument(
            "inputs",
            f"at most max_length = {max_length} tokens in all shards",
            shards.length,
            "build the model with a larger max_length",
        )
    return torch.arange(shards.here, device=x.device) + shards.offset


class ShardedClassToken(ShardedLayer, ClassToken):
    """Rank 0 prepends the class token to its shard."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, n, C) to (B, 1 + n, C) on rank 0 only."""
        return with_class_token(self.token, x, self.sequence)


def with_class_token(token: Tensor, x: Tensor, sequence: SequenceGroup) -> Tensor:
    """Prepend the class token to (B, n, C) on rank 0 only.

    The token is in the graph of all processes, because averaging needs a gradient from each.
    """
    count = 1 if sequence.rank == 0 else 0
    return torch.cat((token.to(x.dtype).expand(len(x), -1, -1)[:, :count], x), dim=1)


class ShardedPooling(ShardedLayer, Pooling):
    """Pool the whole sequence to one vector, equal on all processes."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Pool (B, n, C) tokens to (B, C).

        `key_padding_mask` is (B, n) bool, True = padding.
        """
        shards = self.sequence.shards(x.shape[1])
        if self.kind == "cls":
            return shards.from_first(x[:, 0])
        if self.kind == "position_mean" or (self.kind == "mean" and key_padding_mask is None):
            return shards.total(x.sum(dim=1)) / shards.length
        valid = x.new_ones(x.shape[:2], dtype=torch.bool)
        if key_padding_mask is not None:
            valid = ~key_padding_mask
        if self.kind == "max":
            return self._maximum(x, valid)
        total = shards.total(_sum_where(x, valid.unsqueeze(-1)))
        if self.kind == "length_mean":
            return total / self.max_length
        return total / shards.total(valid.sum(1, keepdim=True).to(x.dtype)).clamp(min=1.0)

    def _maximum(self, x: Tensor, valid: Tensor) -> Tensor:
        """Return the maximum of valid tokens; ties share the gradient equally."""
        shards = self.sequence.shards(x.shape[1])
        kept = x.detach().masked_fill(~valid.unsqueeze(-1), -math.inf)
        largest = shards.gather_each(kept.amax(dim=1)).amax(0)
        is_largest = (x == largest.unsqueeze(1)) & valid.unsqueeze(-1)
        count = shards.total(is_largest.sum(1).to(x.dtype)).clamp(min=1.0)
        y = shards.total(_sum_where(x, is_largest)) / count
        return torch.where(largest.isnan(), largest, y)


class ShardedPatchEmbedding(ShardedLayer, PatchEmbedding):
    """Every process gets the whole image and embeds its share of the patches."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, channels, height, width) to this process's tokens (B, n, C)."""
        size = self.sequence.size
        in_row = images.shape[3] // self.patch_width
        patches = in_row * (images.shape[2] // self.patch_height)
        if patches % size:
            raise bad_argument(
                "images",
                f"a number of patches that the {size} processes of the mesh share out evenly",
                patches,
                "choose another patch_size or number of processes",
            )
        each = patches // size
        start = self.sequence.rank * each
        first_row, end_row = start // in_row, -(-(start + each) // in_row)
        band = images[:, :, first_row * self.patch_height : end_row * self.patch_height]
        return super().forward(band)[:, start - first_row * in_row :][:, :each]


class ShardedDropPath(ShardedLayer, DropPath):
    """Drop a branch of a sample on all processes or on no process; rank 0 draws."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, ...)."""
        if not self.training or self.p == 0.0:
            return x
        ones = x.new_ones((x.shape[0],) + (1,) * (x.dim() - 1))
        return x * self.sequence.shards(x.shape[1]).from_first(super().forward(ones))


def _sum_where(x: Tensor, where: Tensor) -> Tensor:
    return x.masked_fill(~where, 0.0).sum(dim=1)


class ShardedModel(ShardedLayer):
    """A rifflemix model with inputs and activations split along the tokens."""

    def class_tokens(self) -> int:
        """Return the number of additional tokens on rank 0."""
        return 0

    def cannot_shard(self) -> str:
        """Return the setting that has no sharded variant, or an empty string."""
        return ""


class ShardedEncoder(ShardedModel, Encoder):
    """The encoder: rank 0 has the class token, all processes have the pooled vector."""

    def class_tokens(self) -> int:
        """Return 1 if the head reads a class token."""
        return int(self.cls is not None)

    def cannot_shard(self) -> str:
        """Report pool="last", and `padding` other than "batch" (shards cannot be padded)."""
        if self.pool.kind == "last":
            return "pool='last'"
        return "" if self.padding == "batch" else f"padding={self.padding!r}"

    def with_class_token(
        self, token: Tensor, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.sequence.rank == 0:
            return super().with_class_token(token, x, key_padding_mask)
        return with_class_token(token, x, self.sequence), key_padding_mask


class ShardedGPT(ShardedModel, GPT):
    """The language model: returns the logits of this process's tokens."""

    def positions_of(self, key_padding_mask: Tensor) -> Tensor:
        """Return positions that include the valid tokens of earlier processes."""
        here = super().positions_of(key_padding_mask)
        shards = self.sequence.shards(key_padding_mask.shape[1])
        return here + valid_before(here, key_padding_mask, shards).unsqueeze(1)


class ShardedViT(ShardedModel, ViT):
    """The vision transformer: needs whole images; all processes have the pooled vector."""

    def class_tokens(self) -> int:
        """Return 1 if the head reads a class token."""
        return int(self.pool == "cls")

    def pooled(self, x: Tensor) -> Tensor:
        shards = self.sequence.shards(x.shape[1])
        if self.pool == "cls":
            return shards.from_first(x[:, 0])
        return shards.total(x.sum(dim=1)) / shards.length
