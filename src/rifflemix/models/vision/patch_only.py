"""Patch-only MLP-Mixer: mixes patches of coprime sizes instead of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from rifflemix.checks import check_integer, check_integers, check_positive
from rifflemix.models.official import OfficialTensor
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.vision.dimension_mixer_layers import PatchOnlyBlock, official_layer
from rifflemix.models.vision.images import ImageModel, Size
from rifflemix.nn.embeddings import Resize


class PatchOnlyMixer(ImageModel):
    """Patch-only MLP-Mixer: resizing to P x P, blocks, one linear layer over all pixels.

    The model has no final norm.

    Args:
        patch_sizes: patch sizes that a block mixes in turn, preferably pairwise coprime; P is
            their product. A warning reports sizes that never mix some parts of the image.
        hidden_channels: number of channels in the blocks. A 1x1 convolution produces them. None,
            or the number of image channels, omits the convolution.
        num_layers: number of blocks.
        mlp_ratio: hidden features of an MLP divided by the features of a patch, rounded down.
        num_classes: number of outputs.
        image_size: height and width, or one number for square images.
        in_channels: channels of the image.

    Raises:
        InputError: a size is out of range.

    Source: Dimension Mixer, section 3.2 and 4 (Vision MLP Mixers).

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.PatchOnlyMixer(num_layers=2)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        patch_sizes: Sequence[int] = (5, 7),
        hidden_channels: int | None = None,
        num_layers: int = 7,
        mlp_ratio: float = 2,
        num_classes: int = 10,
        image_size: Size = 32,
        in_channels: int = 3,
    ) -> None:
        super().__init__("patch_only", image_size, in_channels)
        sizes = check_integers("patch_sizes", patch_sizes, 1)
        channels = self.in_channels
        if hidden_channels is not None:
            channels = check_integer("hidden_channels", hidden_channels, 1)
        side = math.prod(sizes)
        self.resize = Resize((side, side))
        self.expand: nn.Module = nn.Identity()
        if channels != self.in_channels:
            self.expand = nn.Conv2d(self.in_channels, channels, 1)
        ratio = check_positive("mlp_ratio", mlp_ratio)
        self.blocks = nn.ModuleList(
            PatchOnlyBlock(channels, side, sizes, expansion=ratio)
            for _ in range(check_integer("num_layers", num_layers, 1))
        )
        self.head = nn.Linear(channels * side**2, check_integer("num_classes", num_classes, 1))

    def embed(self, images: Tensor) -> Tensor:
        return self.expand(self.resize(images))

    def official_tensors(self) -> dict[str, OfficialTensor]:
        """Map the keys of the released code to our tensors.

        The released code has one block per patch size.

        Returns:
            Official key -> `OfficialTensor`.
        """
        layout = official_layer(self.head, "head", "linear")
        if isinstance(self.expand, nn.Conv2d):
            layout |= official_layer(self.expand, "expand", "conv1x1")
        for index, block in enumerate(self.blocks):
            layers = list(block.children())
            for position, layer in enumerate(layers):
                theirs = f"mixer_blocks.{index * len(layers) + position}"
                layout |= official_layer(layer, f"blocks.{index}.{position}", theirs)
        return layout


_CLASSES = {"cifar10": 10, "cifar100": 100}
# Reported counts of parameters and of multiply-accumulates.
_PRINTED = {
    ("cifar10", 7): ("0.81 M", "23.04 M"),
    ("cifar10", 10): ("1.14 M", "32.9 M"),
    ("cifar100", 7): ("1.14 M", "23.37 M"),
    ("cifar100", 10): ("1.47 M", "33.23 M"),
}


def _preset(data: str, layers: int) -> Preset:
    parameters, macs = _PRINTED[data, layers]
    return Preset(
        ModelCard(
            name=f"patch_only_{data}_l{layers}",
            title=f"Patch-only MLP-Mixer, {layers} layers",
            paper="Sapkota and Bhattarai 2025, Dimension Mixer",
            inputs="images",
            printed=parameters,
            printed_macs=macs,
            printed_in="Table 7",
        ),
        PatchOnlyMixer,
        {"num_classes": _CLASSES[data], "num_layers": layers},
    )


PRESETS = tuple(_preset(data, layers) for data in _CLASSES for layers in (7, 10))
