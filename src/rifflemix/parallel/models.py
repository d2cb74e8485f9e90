"""The models whose forward pass holds more than layers that `parallel.layers` knows."""

from __future__ import annotations

from torch import Tensor

from rifflemix.models.language.gpt import GPT
from rifflemix.models.sequence.encoder import Encoder
from rifflemix.models.vision.vit import ViT
from rifflemix.parallel.layers import ShardedLayer, with_class_token
from rifflemix.parallel.statistics import valid_before


class ShardedModel(ShardedLayer):
    """A model of this package whose inputs and activations are split along the tokens."""

    def class_tokens(self) -> int:
        """Tokens that the first process holds besides its share."""
        return 0

    def cannot_shard(self) -> str:
        """What of the model's settings has no sharded form, and why; empty if nothing."""
        return ""


class ShardedEncoder(ShardedModel, Encoder):
    """The encoder: the class token is with the first process, the pooled vector with all."""

    def class_tokens(self) -> int:
        """One where the head reads a class token."""
        return int(self.cls is not None)

    def cannot_shard(self) -> str:
        """A shard that is filled up to `max_length` would not be a shard."""
        return "" if self.padding == "batch" else f"padding={self.padding!r}"

    def with_class_token(
        self, token: Tensor, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """See `SequenceClassifier.with_class_token`."""
        if self.sequence.rank == 0:
            return super().with_class_token(token, x, key_padding_mask)
        return with_class_token(token, x, self.sequence), key_padding_mask


class ShardedGPT(ShardedModel, GPT):
    """The language model: logits of this process's tokens."""

    def positions_of(self, key_padding_mask: Tensor) -> Tensor:
        """See `GPT.positions_of`; valid tokens of earlier processes count."""
        here = super().positions_of(key_padding_mask)
        shards = self.sequence.shards(key_padding_mask.shape[1])
        return here + valid_before(here, key_padding_mask, shards).unsqueeze(1)


class ShardedViT(ShardedModel, ViT):
    """The vision transformer: whole images come in, the pooled vector is with all processes."""

    def class_tokens(self) -> int:
        """One where the head reads a class token."""
        return int(self.pool == "cls")

    def pooled(self, x: Tensor) -> Tensor:
        """See `ViT.pooled`."""
        shards = self.sequence.shards(x.shape[1])
        if self.pool == "cls":
            return shards.from_first(x[:, 0])
        return shards.total(x.sum(dim=1)) / shards.length
