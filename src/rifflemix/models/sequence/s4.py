"""Backbone of S4, S5, CCNN and ETSMLP: residual blocks of a norm and a mixer only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rifflemix.checks import check_integer, check_probability
from rifflemix.errors import check_choice
from rifflemix.mixers import Stack
from rifflemix.models.parts import block_mixer
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.classifier import SequenceClassifier
from rifflemix.models.sequence.config import ClassifierConfig, TokenNorm
from rifflemix.models.sequence.encoder import HOSTS, task_inputs, task_settings
from rifflemix.nn.block import NORMS
from rifflemix.nn.embeddings import ValueEmbedding, input_embedding
from rifflemix.nn.layers import Dropout


class MixerBlock(nn.Module):
    """A mixer, a norm and a residual connection, without a feed-forward branch.

    "pre": x += drop(mixer(norm(x))). "post": x = norm(x + drop(mixer(x))).

    Args:
        mixer: a module (B, N, C) -> (B, N, C) with an argument `key_padding_mask`.
        dim: channels C.
        dropout: dropout probability after the mixer.
        norm: "pre" or "post".
        norm_kind: see `TokenNorm`.
    """

    def __init__(
        self, mixer: nn.Module, dim: int, dropout: float, *, norm: str, norm_kind: str
    ) -> None:
        super().__init__()
        self.norm = TokenNorm(norm_kind, dim)
        self.mixer = mixer
        self.drop = Dropout(dropout)
        self.is_post_norm = norm == "post"

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Apply the block, (B, N, C) -> (B, N, C); see `TokenMixer.forward`."""
        mask = key_padding_mask
        options = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
        normed = x if self.is_post_norm else self.norm(x, mask)
        y: Tensor = x + self.drop(self.mixer(normed, key_padding_mask=mask, **options))
        return self.norm(y, mask) if self.is_post_norm else y


class MixerClassifier(SequenceClassifier):
    """Sequence classifier without positions and feed-forward branches; mean over tokens.

    Args:
        mixer: registry name of the token mixer, or a stack.
        mixer_options: options of the mixer.
        dim: channels C.
        num_layers: number of blocks.
        num_heads: number of heads, for mixers that have heads.
        causal: use causal mixing in mixers that support it.
        norm: "pre", with one more norm after the last block, or "post".
        norm_kind: "layer", "scale" or "batch", see `TokenNorm`.
        num_classes: number of outputs.
        vocab_size: number of token ids. Set exactly one of `vocab_size` and `in_channels`.
        in_channels: features per input vector.
        level_scale: mean and standard deviation of the inputs; if set, token ids are levels from
            0 to 1.
        max_length: maximum number of tokens.
        dropout: dropout probability in the mixer.
        residual_dropout: dropout probability after the mixer; None uses `dropout`.
        num_sequences: 1, or 2 for pairs.
        pair_mix: how to combine a pair, see `rifflemix.models.sequence.config.PAIR_FEATURES`.
        head_hidden: channels of the hidden layers of the head.
        head_activation: activation function between the layers of the head.

    Raises:
        InputError: a size is out of range.

    Source: Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces",
    appendix D, and the released configurations.
    """

    def __init__(
        self,
        *,
        mixer: Stack = "s4",
        mixer_options: dict[str, Any] | None = None,
        dim: int = 128,
        num_layers: int = 6,
        num_heads: int = 1,
        causal: bool = False,
        norm: str = "pre",
        norm_kind: str = "batch",
        num_classes: int = 10,
        vocab_size: int | None = None,
        in_channels: int | None = None,
        level_scale: Sequence[float] | None = None,
        max_length: int = 1024,
        dropout: float = 0.0,
        residual_dropout: float | None = None,
        num_sequences: int = 1,
        pair_mix: str = "concat",
        head_hidden: Sequence[int] = (),
        head_activation: str = "relu",
    ) -> None:
        dim, num_layers = check_integer("dim", dim, 1), check_integer("num_layers", num_layers, 1)
        dropout = check_probability("dropout", dropout)
        after = dropout if residual_dropout is None else residual_dropout
        after = check_probability("residual_dropout", after)
        check_choice("norm", norm, NORMS)

        def make_block(index: int) -> MixerBlock:
            mixing = block_mixer(
                mixer,
                mixer_options,
                dim,
                num_heads=num_heads,
                max_length=max_length,
                layer_index=index,
                num_layers=num_layers,
                causal=causal,
                dropout=dropout,
            )
            return MixerBlock(mixing, dim, after, norm=norm, norm_kind=norm_kind)

        embed = input_embedding(vocab_size, in_channels, dim, level_scale=level_scale)
        if isinstance(embed, ValueEmbedding):  # S4's code uses torch's initialization here
            embed.proj.reset_parameters()
        super().__init__(
            embed,
            make_block,
            TokenNorm(norm_kind, dim) if norm == "pre" else nn.Identity(),
            ClassifierConfig(
                dim=dim,
                num_layers=num_layers,
                num_classes=num_classes,
                max_length=max_length,
                positions="none",
                num_sequences=num_sequences,
                pair_mix=pair_mix,
                head_hidden=head_hidden,
                head_activation=head_activation,
            ),
        )


# dim, layers, norm, kind of norm, dropout of each task in the released configurations (s4-lra-*).
_SIZES: dict[str, tuple[int, int, str, str, float]] = {
    "listops": (128, 8, "post", "batch", 0.0),
    "text": (256, 6, "pre", "batch", 0.0),
    "retrieval": (256, 6, "pre", "batch", 0.0),
    "image": (512, 6, "post", "layer", 0.1),
    "pathfinder": (256, 6, "pre", "batch", 0.0),
}
_PAIRS: dict[str, Any] = {"pair_mix": "concat_product_difference", "head_hidden": [256]}


def _settings(task: str) -> dict[str, Any]:
    dim, num_layers, norm, norm_kind, dropout = _SIZES[task]
    return {
        "dim": dim,
        "num_layers": num_layers,
        "norm": norm,
        "norm_kind": norm_kind,
        "dropout": dropout,
        **task_settings(task),
        **(_PAIRS if task == "retrieval" else {}),
    }


_PAPER = "Gu et al. 2022, Efficiently Modeling Long Sequences with Structured State Spaces"

_STACK = Preset(
    ModelCard(
        name="mixer_stack",
        title="Residual blocks of any mixer alone, without feed-forward branches",
        paper=_PAPER,
        inputs="tokens or vectors",
    ),
    MixerClassifier,
)

PRESETS = (
    _STACK,
    *(
        Preset(
            ModelCard(
                name=f"s4_lra_{task}",
                title=f"S4's model for {HOSTS[task][0]}, any mixer",
                paper=_PAPER,
                inputs=task_inputs(task),
                note="sizes of the released configurations; the mixer is diagonal S4 (S4D-Lin)",
            ),
            MixerClassifier,
            _settings(task),
        )
        for task in _SIZES
    ),
)
