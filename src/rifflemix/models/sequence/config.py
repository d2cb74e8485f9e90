"""Settings of a sequence classifier, except for its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rifflemix.checks import check_bool, check_integer, check_positive, check_probability
from rifflemix.errors import bad_argument, check_choice
from rifflemix.models.sequence.heads import PAIR_FEATURES
from rifflemix.nn.activations import ACTIVATIONS

POSITIONS = ("learned", "sinusoid", "interleaved_sinusoid", "none")
PADDINGS = ("batch", "max_length", "unmasked")
CLS_MASKS = ("valid", "first")


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """Settings of a `SequenceClassifier` except for its blocks; the constructor checks them.

    Attributes:
        dim: channels C.
        num_layers: number of blocks.
        num_classes: number of outputs.
        max_length: maximum number of tokens.
        dropout: default for all dropout probabilities that are None.
        embedding_dropout: dropout probability after the positions and their norm; None uses
            `dropout`.
        embedding_std: initial standard deviation of the token embedding, and of the class token
            if embeddings are scaled. Otherwise the class token starts at zero.
        positions: "learned", "sinusoid" or "interleaved_sinusoid", see
            `rifflemix.nn.positions.SinusoidalPositions`, or "none".
        first_position: position of the first token in the sinusoids; 2 in fairseq.
        scale_embeddings: multiply embeddings, including the class token, by sqrt(dim).
        norm_embedding: apply LayerNorm after the positions.
        norm_eps: value that the norms add to a variance.
        pool: see `rifflemix.nn.pooling.Pooling`; "cls" adds a learned token before the others.
        num_sequences: 1, or 2 for a pair of sequences that share the blocks.
        pair_mix: how to combine a pair, one of `rifflemix.models.sequence.heads.PAIR_FEATURES`.
        head_hidden: channels of the hidden layers of the head.
        head_activation: activation function between the layers of the head.
        head_bias: add a bias to the last linear layer.
        head_dropout: dropout probability in the hidden layers of the head.
        tie_layers: use block 0 `num_layers` times.
        padding: "batch" uses the mask as given. "max_length" also pads every sequence to
            `max_length`. Mixers that depend on the number of positions (strides, landmarks,
            learned projections) are then independent of other samples of the batch. "unmasked"
            pads to `max_length` without a mask, so that padding is processed like other tokens.
        padding_id: token id that always counts as padding, in addition to the mask. The published
            code of the Long Range Arena uses 0, also on images, and so hides their black pixels.
            None uses the mask only.
        cls_mask: "valid" never masks the class token. "first" masks it if the first token is
            padding, as in the published JAX code of the Long Range Arena.

    Raises:
        InputError: a setting is out of range.
    """

    dim: int = 64
    num_layers: int = 2
    num_classes: int = 10
    max_length: int = 1024
    dropout: float = 0.0
    embedding_dropout: float | None = None
    embedding_std: float = 1.0
    positions: str = "learned"
    first_position: int = 0
    scale_embeddings: bool = False
    norm_embedding: bool = False
    norm_eps: float = 1e-5
    pool: str = "mean"
    num_sequences: int = 1
    pair_mix: str = "concat"
    head_hidden: Sequence[int] = ()
    head_activation: str = "relu"
    head_bias: bool = True
    head_dropout: float = 0.0
    tie_layers: bool = False
    padding: str = "batch"
    padding_id: int | None = None
    cls_mask: str = "valid"

    def __post_init__(self) -> None:
        for name in ("dim", "num_layers", "num_classes", "max_length"):
            self._keep(name, check_integer, 1)
        self._keep("num_sequences", check_integer, 1, 2)
        self._keep("first_position", check_integer, 0)
        self._keep("norm_eps", check_positive)
        for name in ("scale_embeddings", "norm_embedding", "head_bias", "tie_layers"):
            self._keep(name, check_bool)
        for name in ("dropout", "head_dropout"):
            self._keep(name, check_probability)
        self._keep("embedding_dropout", self._own_dropout)
        for name, choices in (
            ("positions", POSITIONS),
            ("padding", PADDINGS),
            ("cls_mask", CLS_MASKS),
            ("pair_mix", PAIR_FEATURES),
            ("head_activation", ACTIVATIONS),
        ):
            check_choice(name, getattr(self, name), choices)
        if self.first_position and not self.positions.endswith("sinusoid"):
            wanted = "0 unless positions is sinusoid"
            raise bad_argument("first_position", wanted, self.first_position)

    @property
    def most_positions(self) -> int:
        """Maximum number of tokens in the blocks, including the class token."""
        return self.max_length + 1 if self.pool == "cls" else self.max_length

    def _keep(self, name: str, check: Callable[..., Any], *limits: int) -> None:
        """Store the checked value: NumPy numbers become Python numbers."""
        object.__setattr__(self, name, check(name, getattr(self, name), *limits))

    def _own_dropout(self, name: str, value: float | None) -> float:
        return self.dropout if value is None else check_probability(name, value)
