"""Sharded models with code that depends on the whole sequence."""

from __future__ import annotations

from torch import Tensor

from rifflemix.models.language.gpt import GPT
from rifflemix.models.sequence.encoder import Encoder
from rifflemix.models.vision.vit import ViT
from rifflemix.parallel.layers import ShardedLayer, with_class_token
from rifflemix.parallel.statistics import valid_before


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
