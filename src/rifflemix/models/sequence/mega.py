"""MEGA for the Long Range Arena, with attention, attention in chunks, or CSP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive, check_probability
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers import Stack, mixer_classes, stack_name
from rifflemix.mixers.baselines.mega_layer import MegaLayer
from rifflemix.mixers.packed import packing_refused
from rifflemix.models.parts import block_mixer
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.classifier import SequenceClassifier
from rifflemix.models.sequence.config import ClassifierConfig, TokenNorm
from rifflemix.models.sequence.encoder import HOSTS, task_inputs, task_settings
from rifflemix.nn.block import NORMS
from rifflemix.nn.embeddings import input_embedding
from rifflemix.nn.layers import FeedForward


class MegaBlock(nn.Module):
    """MEGA layer with a gated residual connection, and a feed-forward branch.

    "pre": x = mega(norm(x), x); x += mlp(norm(x)).

    "post": x = norm(mega(x, x)); x = norm(x + mlp(x)).

    Args:
        mixer: a `MegaLayer`.
        mlp: the feed-forward branch.
        dim: channels C.
        norm: "pre" or "post".
        norm_kind: see `TokenNorm`.
    """

    def __init__(
        self, mixer: MegaLayer, mlp: nn.Module, dim: int, *, norm: str, norm_kind: str
    ) -> None:
        super().__init__()
        self.norm1 = TokenNorm(norm_kind, dim)
        self.mixer = mixer
        self.norm2 = TokenNorm(norm_kind, dim)
        self.mlp = mlp
        self.is_post_norm = norm == "post"

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Apply the block to (B, N, C); mask (B, N), True = padding."""
        mask = key_padding_mask
        if self.is_post_norm:
            x = self.norm1(self.mixer.gated_residual(x, x, key_padding_mask=mask), mask)
            x = self.norm2(x + self.mlp(x), mask)
        else:
            x = self.mixer.gated_residual(self.norm1(x, mask), x, key_padding_mask=mask)
            x = x + self.mlp(self.norm2(x, mask))
        return x


class MegaClassifier(SequenceClassifier):
    """Sequence classifier with MEGA blocks: no positions, mean over tokens, a hidden layer.

    Args:
        mixer: "mega" or "mega_chunk".
        mixer_options: options of the mixer, for example chunk_size, or mixing="csp" with
            csp_options.
        dim: channels C.
        num_layers: number of blocks.
        z_dim: channels of queries and keys.
        hidden_dim: channels of the values.
        mlp_ratio: hidden channels of the feed-forward branch divided by C.
        attention_fn: "softmax" or "laplace".
        norm: "pre", with one more norm after the last block, or "post".
        norm_kind: "layer", "scale" or "batch", see `TokenNorm`.
        num_classes: number of outputs.
        vocab_size: number of token ids. Set exactly one of `vocab_size` and `in_channels`.
        in_channels: features per input vector.
        level_scale: mean and standard deviation of the inputs; if set, token ids are levels from
            0 to 1.
        max_length: maximum number of tokens.
        dropout: dropout probability on the embedding, in the layer and at the end of the branch.
        attention_dropout: dropout probability on the attention weights.
        hidden_dropout: dropout probability on the values and in the hidden layer of the branch.
        num_sequences: 1, or 2 for pairs.
        pair_mix: how to combine a pair, see `rifflemix.models.sequence.config.PAIR_FEATURES`.
        head_hidden: channels of the hidden layers of the head.

    Raises:
        InputError: a size is out of range, or the mixer has no gated residual connection.

    Source: Ma et al. 2023, "Mega: Moving Average Equipped Gated Attention", section 4.1 and the
    released code.
    """

    def __init__(
        self,
        *,
        mixer: Stack = "mega",
        mixer_options: dict[str, Any] | None = None,
        dim: int = 128,
        num_layers: int = 4,
        z_dim: int = 64,
        hidden_dim: int = 256,
        mlp_ratio: float = 2.0,
        attention_fn: str = "softmax",
        norm: str = "pre",
        norm_kind: str = "layer",
        num_classes: int = 10,
        vocab_size: int | None = None,
        in_channels: int | None = None,
        level_scale: Sequence[float] | None = None,
        max_length: int = 1024,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        num_sequences: int = 1,
        pair_mix: str = "concat",
        head_hidden: Sequence[int] = (256,),
    ) -> None:
        dim = check_integer("dim", dim, 1)
        num_layers = check_integer("num_layers", num_layers, 1)
        ffn_dim = max(1, round(dim * check_positive("mlp_ratio", mlp_ratio)))
        check_choice("norm", norm, NORMS)
        options: dict[str, Any] = {
            "z_dim": z_dim,
            "hidden_dim": hidden_dim,
            "attention_fn": attention_fn,
            "layer_dropout": dropout,
            "hidden_dropout": hidden_dropout,
        }
        dropout = check_probability("dropout", dropout)
        attention_dropout = check_probability("attention_dropout", attention_dropout)
        if not all(issubclass(cls, MegaLayer) for cls in mixer_classes(stack_name(mixer))):
            raise bad_argument("mixer", "mega or mega_chunk", repr(mixer))

        def make_block(index: int) -> MegaBlock:
            layer = block_mixer(
                mixer,
                mixer_options,
                dim,
                of_host=options,
                max_length=max_length,
                layer_index=index,
                num_layers=num_layers,
                dropout=attention_dropout,
            )
            branch = FeedForward(
                dim, ffn_dim, dropout=dropout, hidden_dropout=hidden_dropout, activation="silu"
            )
            return MegaBlock(
                cast(MegaLayer, layer), _small(branch), dim, norm=norm, norm_kind=norm_kind
            )

        super().__init__(
            input_embedding(vocab_size, in_channels, dim, std=dim**-0.5, level_scale=level_scale),
            make_block,
            TokenNorm(norm_kind, dim) if norm == "pre" else nn.Identity(),
            ClassifierConfig(
                dim=dim,
                num_layers=num_layers,
                num_classes=num_classes,
                max_length=max_length,
                dropout=dropout,
                positions="none",
                num_sequences=num_sequences,
                pair_mix=pair_mix,
                head_hidden=head_hidden,
                head_activation="gelu",
                head_bias=False,
                head_dropout=dropout,
            ),
        )

    def encode_packed(
        self, inputs: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor
    ) -> Tensor:
        """Raise InputError, because MEGA layers do not support packed sequences."""
        raise packing_refused(f"this {type(self).__name__}", cu_seqlens)


def _small(branch: FeedForward) -> FeedForward:
    """Initialize as in MEGA: deviation 0.02, zero biases."""
    for linear in (branch.fc1, branch.fc2):
        nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(linear.bias)
    return branch


# dim, layers, z, norm, kind of norm and attention of each task. Values and feed-forward branch have
# 2 * dim channels. As in the released commands, text tasks use post-norm, image tasks pre-norm.
_SIZES: dict[str, tuple[int, int, int, str, str, str]] = {
    "listops": (80, 6, 64, "post", "layer", "softmax"),
    "text": (128, 4, 64, "post", "scale", "softmax"),
    "retrieval": (128, 6, 64, "post", "scale", "softmax"),
    "image": (160, 8, 96, "pre", "batch", "laplace"),
    "pathfinder": (128, 6, 64, "pre", "batch", "laplace"),
    "pathx": (64, 4, 32, "pre", "batch", "laplace"),
}
# Dropout in the released commands of MEGA, and of CSP if different. The default is 0.1.
_DROPOUT = {"image": 0.0, "pathfinder": 0.0, "pathx": 0.0}
_CSP_DROPOUT = {"image": 0.0, "pathx": 0.5}
_CHUNKS = {"pathx": 4096}
_TEXT_LENGTH = 4096  # the value in MEGA; the benchmark's own code uses 1,000
_SORT: dict[str, Any] = {"num_groups": 1, "shift": "none"}
# Groups of 2 match the paper's K = 512 for 1,024 tokens and K = 8,192 for 16,384 tokens.
_CSP: dict[str, dict[str, Any]] = {
    "image": {"group_size": 1, "shift": "linear"},
    "pathfinder": {"group_size": 2, "shift": "linear"},
    "pathx": {"group_size": 2, "shift": "power"},
}


def _settings(task: str) -> dict[str, Any]:
    dim, num_layers, z_dim, norm, norm_kind, attention_fn = _SIZES[task]
    return {
        "dim": dim,
        "num_layers": num_layers,
        "z_dim": z_dim,
        "hidden_dim": 2 * dim,
        "norm": norm,
        "norm_kind": norm_kind,
        "attention_fn": attention_fn,
        "head_hidden": [2 * dim],
        "dropout": _DROPOUT.get(task, 0.1),
        **task_settings(task),
        **({"max_length": _TEXT_LENGTH} if task == "text" else {}),
    }


def _variants(task: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return title and settings of each variant, by name prefix."""
    csp = {"mixing": "csp", "csp_options": _CSP.get(task, _SORT)}
    chunks = {"chunk_size": _CHUNKS.get(task, 128)}
    return {
        "mega": ("MEGA", {"mixer": "mega"}),
        "mega_chunk": ("MEGA-chunk", {"mixer": "mega_chunk", "mixer_options": chunks}),
        "mega_csp": (
            "MEGA with CSP",
            {"mixer": "mega", "mixer_options": csp, "dropout": _CSP_DROPOUT.get(task, 0.1)},
        ),
    }


_PAPERS = {
    "mega": "Ma et al. 2023, Mega: Moving Average Equipped Gated Attention",
    "mega_chunk": "Ma et al. 2023, Mega: Moving Average Equipped Gated Attention",
    "mega_csp": "Yuan and Xu, Towards Better Multi-head Attention via Channel-wise Sample "
    "Permutation",
}

PRESETS = tuple(
    Preset(
        ModelCard(
            name=f"{prefix}_lra_{task}",
            title=f"{words} for {HOSTS[task][0]}",
            paper=_PAPERS[prefix],
            inputs=task_inputs(task),
        ),
        MegaClassifier,
        {**_settings(task), **variant},
    )
    for task in _SIZES
    for prefix, (words, variant) in _variants(task).items()
)
