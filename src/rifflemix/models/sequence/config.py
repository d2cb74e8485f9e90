"""Settings of a sequence classifier, its norms and its heads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rifflemix.checks import (
    check_bool,
    check_integer,
    check_integers,
    check_positive,
    check_probability,
)
from rifflemix.errors import bad_argument, check_choice
from rifflemix.nn.layers import ACTIVATIONS, Dropout, activation_layer

PAIR_FEATURES = {"concat": 2, "concat_product_difference": 4}
"""Ways to combine the vectors a, b of two sequences, with the number of vectors in the result:
[a, b] or [a, b, a * b, a - b]. The Long Range Arena calls the second one NLI."""


def classifier_head(
    in_dim: int,
    num_classes: int,
    hidden_dims: Sequence[int] = (),
    *,
    activation: str = "relu",
    bias: bool = True,
    dropout: float = 0.0,
) -> nn.Module:
    """Build linear layers (..., in_dim) -> (..., num_classes) with hidden layers.

    Args:
        in_dim: input channels.
        num_classes: number of outputs.
        hidden_dims: channels of each hidden layer.
        activation: one of `rifflemix.nn.layers.ACTIVATIONS`.
        bias: add a bias to the last linear layer.
        dropout: dropout probability in the hidden layers, before the activation.

    Raises:
        InputError: a size is below 1, the activation is unknown, or `dropout` is not a
            probability.
    """
    check_integer("num_classes", num_classes, 1)
    widths = (in_dim, *check_integers("head_hidden", hidden_dims, 1))
    dropout = check_probability("head_dropout", dropout)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        # One module for both, so that the names of weights do not depend on dropout.
        between = nn.Sequential(Dropout(dropout), activation_layer(activation))
        layers += [nn.Linear(before, after), between]
    last = nn.Linear(widths[-1], num_classes, bias=bias)
    return nn.Sequential(*layers, last) if layers else last


def pair_features(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """Combine the vectors of two sequences.

    Args:
        a: vectors (B, C) of the first sequences.
        b: vectors (B, C) of the second sequences.
        kind: one of `PAIR_FEATURES`.

    Returns:
        (B, 2 C) or (B, 4 C).

    Raises:
        InputError: `kind` is unknown.
    """
    check_choice("pair_features", kind, PAIR_FEATURES)
    parts = (a, b) if kind == "concat" else (a, b, a * b, a - b)
    return torch.cat(parts, dim=-1)


NORMS = ("layer", "scale", "batch")


class ScaleNorm(nn.Module):
    """Root mean square norm with one learned scale for all channels.

    The norm divides each token by the root mean square of its channels.

    Args:
        dim: channels C.
        eps: value added to the mean square.

    Source: Nguyen and Salazar 2019, "Transformers without Tears", equation (5), as implemented in
    MEGA: the learned number starts at 1, and the norm is the mean instead of the sum of squares.
    """

    def __init__(self, dim: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim, 1)
        self.eps = check_positive("eps", eps)
        self.scalar = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (..., C) -> (..., C); the mean uses at least float32."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        power = wide.square().mean(dim=-1, keepdim=True)
        return x * (self.scalar * torch.rsqrt(power + self.eps)).to(x.dtype)

    def no_weight_decay(self) -> set[str]:
        """Exclude the scale from weight decay."""
        return {"scalar"}

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}"


class TokenNorm(nn.Module):
    """Norm of (B, N, C) tokens that ignores padding.

    Args:
        kind: "layer", "scale" (`ScaleNorm`) or "batch". "batch" normalizes each channel over all
            valid tokens of the batch in training, and with running statistics otherwise. With
            several processes, `torch.nn.SyncBatchNorm.convert_sync_batchnorm` turns "batch" into
            MEGA's "syncbatch".
        dim: channels C.

    Raises:
        InputError: `kind` is unknown.
    """

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        check_choice("norm_kind", kind, NORMS)
        self.kind = kind
        scale = partial(ScaleNorm, eps=1e-5)  # eps of all norms in MEGA's code
        layers: dict[str, Any] = {"layer": nn.LayerNorm, "scale": scale, "batch": nn.BatchNorm1d}
        self.norm: nn.Module = layers[kind](dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Normalize (B, N, C) tokens; mask (B, N), True = padding."""
        if self.kind == "batch" and key_padding_mask is not None and self.training:
            valid = ~key_padding_mask
            return torch.zeros_like(x).masked_scatter(valid.unsqueeze(-1), self.norm(x[valid]))
        return self.norm(x.flatten(0, 1)).view_as(x) if self.kind == "batch" else self.norm(x)


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
        pair_mix: how to combine a pair, one of `rifflemix.models.sequence.config.PAIR_FEATURES`.
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

    position_kinds: ClassVar[tuple[str, ...]] = POSITIONS

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
            ("positions", self.position_kinds),
            ("padding", PADDINGS),
            ("cls_mask", CLS_MASKS),
            ("pair_mix", PAIR_FEATURES),
            ("head_activation", ACTIVATIONS),
        ):
            check_choice(name, getattr(self, name), choices)
        if self.pool == "none" and self.num_sequences > 1:
            raise bad_argument("pool", "one that makes a vector of each sequence of a pair", "none")
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
