"""The settings of what stands around the blocks of a classifier of sequences."""

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
    """The parts around the blocks of a `SequenceClassifier`; checked when it is made.

    Attributes:
        dim: channels C.
        num_layers: blocks.
        num_classes: outputs.
        max_length: most tokens.
        dropout: probability that stands for those that a model does not have for itself.
        embedding_dropout: probability after the positions and their norm; None: `dropout`.
        embedding_std: deviation of the token embedding at the start, and of the class token where
            embeddings are scaled; that token is zero at the start where they are not.
        positions: "learned", "sinusoid" or "interleaved_sinusoid", see
            `rifflemix.nn.positions.SinusoidalPositions`, or "none".
        first_position: number of the first token in the sinusoids; 2 in fairseq.
        scale_embeddings: multiply embeddings, the class token's too, by sqrt(dim).
        norm_embedding: LayerNorm after the positions.
        norm_eps: what the norms add to a variance.
        pool: see `rifflemix.nn.pooling.Pooling`; "cls" puts a learned token before the others.
        num_sequences: 1, or 2 for a pair that goes through the same blocks.
        pair_mix: how the two meet, one of `rifflemix.models.sequence.heads.PAIR_FEATURES`.
        head_hidden: channels of the hidden layers of the head.
        head_activation: between the layers of the head.
        head_bias: give the last map a bias.
        head_dropout: probability of dropping a hidden channel of the head.
        tie_layers: use block 0 `num_layers` times.
        padding: "batch": padding is what the mask says and is kept out; "max_length": the same,
            and every sequence is filled up to `max_length` with padding, so that what is laid out
            over the positions (strides, landmarks, learned projections) does not depend on the
            other samples of a batch; "unmasked": sequences are filled up to `max_length`, no mask
            is used and padding takes part as all other tokens do.
        padding_id: a token id that is padding wherever it stands, beside what the mask says: 0
            in the published code of the Long Range Arena, on images too, whose black pixels are
            hidden that way. None: only the mask says what padding is.
        cls_mask: the class token is "valid", or padding where the "first" token is, as in the
            published JAX code of the Long Range Arena.

    Raises:
        InputError: a setting out of range.
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
        """Most tokens that reach the blocks: the class token is one more."""
        return self.max_length + 1 if self.pool == "cls" else self.max_length

    def _keep(self, name: str, check: Callable[..., Any], *limits: int) -> None:
        """Hold a setting as its check returns it: NumPy's numbers become Python's."""
        object.__setattr__(self, name, check(name, getattr(self, name), *limits))

    def _own_dropout(self, name: str, value: float | None) -> float:
        return self.dropout if value is None else check_probability(name, value)
