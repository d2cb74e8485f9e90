"""MLP-Mixer with dense, butterfly-linear or butterfly MLPs."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from rifflemix.checks import check_integer, check_positive
from rifflemix.errors import bad_argument, check_choice
from rifflemix.models.official import OfficialTensor
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.vision.dimension_mixer_layers import official_layer
from rifflemix.models.vision.images import PatchModel, Size, size_pair
from rifflemix.nn.butterfly import ButterflyLinearMLP, ButterflyMLP
from rifflemix.nn.embeddings import PatchEmbedding, Resize
from rifflemix.nn.layers import FeedForward

MLPS = ("dense", "butterfly_linear", "butterfly_mlp")


class MLPMixerBlock(nn.Module):
    """Pre-norm block: x += token_mlp(LN(x)^T)^T; x += channel_mlp(LN(x)).

    Args:
        token_mlp: an MLP over the N tokens, (..., N) -> (..., N).
        channel_mlp: an MLP over the C channels, (..., C) -> (..., C).
        dim: channels C; both norms are over them.

    Source: Tolstikhin et al. 2021, "MLP-Mixer", equation (1).

    Example:
        >>> import torch, rifflemix as rm
        >>> token_mlp, channel_mlp = torch.nn.Linear(64, 64), torch.nn.Linear(32, 32)
        >>> block = rm.models.MLPMixerBlock(token_mlp, channel_mlp, dim=32)
        >>> block(torch.randn(2, 64, 32)).shape
        torch.Size([2, 64, 32])
    """

    def __init__(self, token_mlp: nn.Module, channel_mlp: nn.Module, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.token_mlp = token_mlp
        self.norm2 = nn.LayerNorm(dim)
        self.channel_mlp = channel_mlp

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, then channels.

        Args:
            x: (B, N, C) tokens.

        Returns:
            (B, N, C).
        """
        x = x + self.token_mlp(self.norm1(x).mT).mT
        return x + self.channel_mlp(self.norm2(x))


class MLPMixer(PatchModel):
    """MLP-Mixer: patches, mixer blocks, one linear layer over all tokens; no final norm or pooling.

    Args:
        mlp: kind of both MLPs of a block. "dense" has two dense layers. "butterfly_linear" has
            two layers, each a product of two block-diagonal matrices, with ELU between them.
            "butterfly_mlp" applies MLPs to blocks along a complete butterfly. "dense" and
            "butterfly_mlp" use GELU. The two butterfly kinds need square numbers N and C, and
            their blocks have size sqrt(N) and sqrt(C).
        dim: channels C.
        num_layers: number of blocks.
        mlp_ratio: hidden features of an MLP divided by its input features, rounded down; must be
            an integer for "butterfly_linear".
        num_classes: number of outputs.
        image_size: height and width, or one number for square images.
        resize: height and width after resizing, see `rifflemix.nn.embeddings.Resize`; None skips
            resizing.
        patch_size: size of a patch; must divide the (resized) image into N patches.
        in_channels: channels of the image.

    Raises:
        InputError: a size is out of range, or the MLPs do not support it.

    Source: Dimension Mixer, section 4 (Butterfly MLP, Vision MLP Mixers).

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.MLPMixer(dim=32, num_layers=2)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        mlp: str = "dense",
        dim: int = 121,
        num_layers: int = 7,
        mlp_ratio: float = 2,
        num_classes: int = 10,
        image_size: Size = 32,
        resize: Size | None = None,
        patch_size: Size = 4,
        in_channels: int = 3,
    ) -> None:
        super().__init__("mlp_mixer", image_size, patch_size, in_channels, resize)
        self.resize = nn.Identity() if resize is None else Resize(size_pair("resize", resize))
        dim = check_integer("dim", dim, 1)
        tokens = self.num_patches
        self.patch_embed = PatchEmbedding(self.in_channels, dim, self.patch_size, order="chw")
        self.blocks = nn.ModuleList(
            MLPMixerBlock(
                _mlp(mlp, "number of patches", tokens, mlp_ratio),
                _mlp(mlp, "dim", dim, mlp_ratio),
                dim,
            )
            for _ in range(check_integer("num_layers", num_layers, 1))
        )
        self.head = nn.Linear(tokens * dim, check_integer("num_classes", num_classes, 1))

    def embed(self, images: Tensor) -> Tensor:
        return self.patch_embed(self.resize(images))

    def official_tensors(self) -> dict[str, OfficialTensor]:
        """Map the keys of the released code to our tensors.

        Returns:
            Official key -> `OfficialTensor`.
        """
        layout = official_layer(self.patch_embed.proj, "patch_embed.proj", "channel_change")
        for index, block in enumerate(self.blocks):
            for our, their in _OFFICIAL_PARTS:
                layer = block.get_submodule(our)
                layout |= official_layer(
                    layer, f"blocks.{index}.{our}", f"mixer_blocks.{index}.{their}"
                )
        return layout | official_layer(self.head, "head", "linear")


_OFFICIAL_PARTS = (
    ("norm1", "ln0"),
    ("token_mlp", "mlp_patch"),
    ("norm2", "ln1"),
    ("channel_mlp", "mlp_channel"),
)


def _mlp(kind: str, name: str, features: int, ratio: float) -> nn.Module:
    """Build an MLP over `features`; messages call this size `name`."""
    check_choice("mlp", kind, MLPS)
    ratio = check_positive("mlp_ratio", ratio)
    if kind == "dense":
        return FeedForward(features, int(ratio * features))
    block = math.isqrt(features)
    if block**2 != features:
        raise bad_argument(name, f"a square number for mlp={kind!r}", features)
    if kind == "butterfly_mlp":
        return ButterflyMLP(features, block, ratio)
    if ratio != int(ratio):
        raise bad_argument("mlp_ratio", f"an integer for mlp={kind!r}", ratio)
    return ButterflyLinearMLP(features, block, int(ratio))


_PAPER = "Sapkota and Bhattarai 2025, Dimension Mixer"
_KINDS = {"dense": "dense", "butterfly_linear": "butterfly-linear", "butterfly_mlp": "butterfly"}
# Reported counts of parameters and of multiply-accumulates.
_PRINTED = {
    ("dense", 1): ("0.35168 M", "20.73 M"),
    ("butterfly_linear", 1): ("0.14096 M", "5.0 M"),
    ("butterfly_mlp", 1): ("0.14355 M", "5.33 M"),
    ("dense", 2): ("0.61529 M", "40.89 M"),
    ("butterfly_linear", 2): ("0.19386 M", "9.34 M"),
    ("butterfly_mlp", 2): ("0.19775 M", "9.88 M"),
}
# Baselines of the patch-only mixer: settings, and both reported counts for each depth.
_COMPARED: dict[str, tuple[dict[str, Any], dict[int, tuple[str, str]]]] = {
    "c1": (
        {"dim": 144, "resize": 36},
        {7: ("0.90 M", "74.65 M"), 10: ("1.23 M", "106.36 M")},
    ),
    "c2": ({"dim": 153}, {7: ("0.88 M", "60.48 M"), 10: ("1.22 M", "86.16 M")}),
}


def _sparse(kind: str, expansion: int) -> Preset:
    parameters, macs = _PRINTED[kind, expansion]
    return Preset(
        ModelCard(
            name=f"mlp_mixer_{kind}_e{expansion}",
            title=f"MLP-Mixer with {_KINDS[kind]} MLPs of expansion {expansion}",
            paper=_PAPER,
            inputs="images",
            printed=parameters,
            printed_macs=macs,
            printed_in="Table 3",
        ),
        MLPMixer,
        {"mlp": kind, "mlp_ratio": expansion},
    )


def _compared(name: str, layers: int) -> Preset:
    settings, printed = _COMPARED[name]
    parameters, macs = printed[layers]
    return Preset(
        ModelCard(
            name=f"mlp_mixer_{name}_l{layers}",
            title=f"MLP-Mixer, configuration {name} with {layers} layers",
            paper=_PAPER,
            inputs="images",
            printed=parameters,
            printed_macs=macs,
            printed_in="Table 7",
        ),
        MLPMixer,
        settings | {"num_layers": layers},
    )


PRESETS = (
    *(_sparse(kind, expansion) for expansion in (1, 2) for kind in _KINDS),
    *(_compared(name, layers) for layers in (7, 10) for name in _COMPARED),
)
