"""Residual networks for small images, with dense or grouped convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import check_floating, check_integer, check_integers
from rifflemix.errors import bad_argument
from rifflemix.models.base import Model
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.vision.conv_mix import BlockMixStage, ConvMixBlock

_STAGES = 3


class ResNetMixer(Model):
    """Residual network: 3x3 convolution, three stages of blocks, mean over pixels, linear head.

    Stage s has `planes` * 2^s channels; stages 1 and 2 halve the image. Set at most one of `groups`
    and `group_sizes`. Without both, the convolutions are dense.

    Args:
        planes: channels of the first stage.
        blocks_per_stage: number of residual blocks in each stage.
        groups: conv-mix: number of groups of the first convolutions in each stage. The three
            numbers must divide the channels, see
            `rifflemix.models.vision.conv_mix.ConvMixBlock`.
        group_sizes: block-mix: channels per group in each stage, three numbers, see
            `rifflemix.models.vision.conv_mix.BlockMixStage`.
        num_classes: number of outputs.
        in_channels: channels of the image.

    Raises:
        InputError: a size is out of range, the groups do not divide the channels, or both
            `groups` and `group_sizes` are set.

    Source: Dimension Mixer, appendix D.2; He et al. 2016, "Deep Residual Learning for Image
    Recognition", section 4.2.
    """

    def __init__(
        self,
        *,
        planes: int = 16,
        blocks_per_stage: int = 3,
        groups: Sequence[int] | None = None,
        group_sizes: Sequence[int] | None = None,
        num_classes: int = 10,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        planes = check_integer("planes", planes, 1)
        blocks = check_integer("blocks_per_stage", blocks_per_stage, 1)
        if groups is not None and group_sizes is not None:
            raise bad_argument("groups, group_sizes", "at most one of the two", "both")
        self.in_channels = check_integer("in_channels", in_channels, 1)
        self.conv1 = nn.Conv2d(self.in_channels, planes, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.bn1 = nn.BatchNorm2d(planes)
        widths = (planes, *(planes * 2**stage for stage in range(_STAGES)))
        if group_sizes is not None:
            stages = _block_mix(widths, blocks, _one_each("group_sizes", group_sizes))
        else:
            dense: tuple[int | None, ...] = (None,) * _STAGES
            stages = _conv_mix(
                widths, blocks, dense if groups is None else _one_each("groups", groups)
            )
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(widths[-1], check_integer("num_classes", num_classes, 1))

    def forward(self, images: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Compute the logits of each image.

        Args:
            images: (B, in_channels, height, width) of any height and width.
            key_padding_mask: must be None, because images have no padding.

        Returns:
            (B, num_classes).
        """
        check_floating("resnet", images, "(B, channels, height, width)")
        if images.dim() != 4 or images.shape[1] != self.in_channels:
            expected = f"images of shape (B, {self.in_channels}, height, width)"
            raise bad_argument("resnet", expected, tuple(images.shape))
        if key_padding_mask is not None:
            raise bad_argument("key_padding_mask", "None: images have no padding", "a mask")
        x = torch.relu(self.bn1(self.conv1(images)))
        for stage in self.stages:
            for block in stage.children():
                x = self.run_block(block, x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def _one_each(name: str, values: Sequence[int]) -> tuple[int, ...]:
    numbers = check_integers(name, values, 1)
    if len(numbers) != _STAGES:
        raise bad_argument(name, f"{_STAGES} numbers, one for each stage", numbers)
    return numbers


def _conv_mix(
    widths: Sequence[int], blocks: int, groups: Sequence[int | None]
) -> list[nn.Sequential]:
    """Build stages of dense (None) or conv-mix blocks; stage 0 keeps the size."""
    stages = []
    for stage, (before, planes) in enumerate(pairwise(widths)):
        first = ConvMixBlock(before, planes, groups=groups[stage], stride=1 if stage == 0 else 2)
        others = (ConvMixBlock(planes, planes, groups=groups[stage]) for _ in range(blocks - 1))
        stages.append(nn.Sequential(first, *others))
    return stages


def _block_mix(
    widths: Sequence[int], blocks: int, group_sizes: Sequence[int]
) -> list[nn.Sequential]:
    """Build stages of block-mix blocks; stage 0 keeps the size."""
    return [
        BlockMixStage(
            before,
            planes,
            blocks,
            group_size=group_sizes[stage],
            stride=1 if stage == 0 else 2,
        )
        for stage, (before, planes) in enumerate(pairwise(widths))
    ]


_TITLES = {
    "dense": "dense convolutions",
    "conv_mix": "grouped convolutions that meet inside each block",
    "block_mix": "grouped blocks that meet from one to the next",
}
_NOTE = "depth as the paper's Figure 7 counts it, 3 blocks + 11; no count is printed"
# Figure 7: mixing, depth as counted there, planes, and the groups or group sizes of the stages.
_FIGURE: tuple[tuple[str, int, int, list[int] | None], ...] = (
    ("dense", 20, 16, None),
    ("conv_mix", 20, 32, [8, 8, 16]),
    ("block_mix", 20, 32, [4, 4, 8]),
    ("block_mix", 17, 32, [8, 8, 16]),
    ("dense", 20, 32, None),
    ("block_mix", 20, 64, [4, 8, 8]),
    ("conv_mix", 20, 64, [8, 16, 16]),
    ("dense", 23, 32, None),
    ("conv_mix", 23, 64, [8, 16, 16]),
    ("block_mix", 23, 64, [8, 16, 16]),
)
_SETTING = {"conv_mix": "groups", "block_mix": "group_sizes"}


def _preset(mixing: str, depth: int, planes: int, numbers: list[int] | None) -> Preset:
    settings: dict[str, Any] = {"planes": planes, "blocks_per_stage": (depth - 11) // 3}
    if numbers is not None:
        settings[_SETTING[mixing]] = numbers
    return Preset(
        ModelCard(
            name=f"resnet_{mixing}_{depth}_p{planes}",
            title=f"ResNet with {_TITLES[mixing]}, {planes} planes",
            paper="Sapkota and Bhattarai 2025, Dimension Mixer",
            inputs="images",
            note=_NOTE,
        ),
        ResNetMixer,
        settings,
    )


PRESETS = tuple(_preset(*row) for row in _FIGURE)
