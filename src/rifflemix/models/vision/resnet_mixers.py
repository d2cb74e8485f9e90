"""Residual networks for small images, with dense or grouped convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import (
    check_divides,
    check_floating,
    check_integer,
    check_integers,
    check_tokens,
)
from rifflemix.errors import bad_argument
from rifflemix.models.base import Model
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.ops.butterfly import butterfly_merge, butterfly_split, butterfly_strides


class _GroupedResidual(nn.Module):
    """3x3 conv, BN, ReLU, permutation, 3x3 conv, BN, + shortcut, ReLU."""

    def __init__(
        self, in_planes: int, planes: int, stride: int, groups: tuple[int, int], shortcut: int
    ) -> None:
        super().__init__()
        self.in_planes = in_planes
        self.conv1 = nn.Conv2d(
            in_planes, planes, 3, stride=stride, padding=1, groups=groups[0], bias=False
        )
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, groups=groups[1], bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, groups=shortcut, bias=False),
                nn.BatchNorm2d(planes),
            )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def permute(self, x: Tensor) -> Tensor:
        """Permute the channels between the convolutions."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block: (B, in_planes, H, W) -> (B, planes, ceil(H/stride), ceil(W/stride))."""
        check_tokens("x", x, rank=4, layout="(B, C, H, W)")
        if x.shape[1] != self.in_planes:
            expected = f"{self.in_planes} channels in shape (B, C, H, W)"
            raise bad_argument("x", expected, tuple(x.shape))
        y = self.permute(torch.relu(self.bn1(self.conv1(x))))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class ConvMixBlock(_GroupedResidual):
    """Residual block that mixes all channels: grouped conv, channel shuffle, grouped conv.

    The first convolution has g groups, the second planes / g. The shuffle gives each group of the
    second convolution one channel of every group of the first. If the shape changes, the shortcut
    has a dense 1x1 convolution.

    Args:
        in_planes: input channels.
        planes: output channels.
        groups: g, a divisor of `planes`; None for dense convolutions without shuffle (-1 in the
            released code). In a block that changes the shape, g is reduced to at most
            `in_planes`.
        stride: stride of the first convolution and of the shortcut.

    Raises:
        InputError: the groups do not divide the channels.

    Source: Dimension Mixer, appendix D.2 (conv-mix, Figure 6 left).
    """

    def __init__(
        self, in_planes: int, planes: int, *, groups: int | None = None, stride: int = 1
    ) -> None:
        in_planes, planes, stride = _check_planes(in_planes, planes, stride)
        if groups is None:
            pair = (1, 1)
        else:
            groups = check_divides("groups", groups, planes, "planes")
            changes = stride != 1 or in_planes != planes
            first = min(groups, in_planes) if changes else groups
            if in_planes % first or planes % first:
                raise bad_argument("groups", f"a divisor of in_planes = {in_planes}", groups)
            pair = (first, planes // first)
        super().__init__(in_planes, planes, stride, pair, shortcut=1)
        self.groups = pair

    def permute(self, x: Tensor) -> Tensor:
        """Shuffle channels by transposing them as a (C / g2, g2) matrix."""
        return x.unflatten(1, (-1, self.groups[1])).transpose(1, 2).flatten(1, 2)


class BlockMixBlock(_GroupedResidual):
    """Parallel residual blocks: all convolutions have the same groups, without mixing.

    Args:
        in_planes: input channels.
        planes: output channels.
        groups: number of groups, a divisor of both; 1 for a dense block.
        stride: stride of the first convolution and of the shortcut.

    Raises:
        InputError: the groups do not divide the channels.

    Source: Dimension Mixer, appendix D.2 (block-mix, Figure 6 right).
    """

    def __init__(self, in_planes: int, planes: int, *, groups: int = 1, stride: int = 1) -> None:
        in_planes, planes, stride = _check_planes(in_planes, planes, stride)
        groups = check_integer("groups", groups, 1)
        if in_planes % groups or planes % groups:
            expected = f"a divisor of in_planes = {in_planes} and planes = {planes}"
            raise bad_argument("groups", expected, groups)
        super().__init__(in_planes, planes, stride, (groups, groups), shortcut=groups)


class ButterflyChannels(nn.Module):
    """Apply a module to channels in the order of a butterfly stride, then restore the order.

    Args:
        host: the module, (B, C, H, W) -> (B, C', H', W').
        radix: channels per butterfly group; radix * stride divides C and C'.
        stride: distance between the channels of a group; 1 changes nothing.
    """

    def __init__(self, host: nn.Module, radix: int, stride: int) -> None:
        super().__init__()
        self.host = host
        self.radix = radix
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Apply the module: (B, C, H, W) -> (B, C', H', W')."""
        y = self.host(butterfly_split(x, self.radix, self.stride).flatten(1, 2))
        return butterfly_merge(y.unflatten(1, (-1, self.radix)), self.stride)

    def extra_repr(self) -> str:
        return f"radix={self.radix}, stride={self.stride}"


class BlockMixStage(nn.Sequential):
    """Grouped residual blocks, each wrapped in a butterfly permutation of the channels.

    Several strides mix `planes` channels in groups of `group_size`. Block k uses stride number k
    modulo the number of strides. The first block may change the shape and has stride 1.

    As in the released code, the number of groups is in_planes / group_size. In a stage that doubles
    the channels, the groups therefore have 2 * group_size channels, but the permutation still uses
    `group_size`.

    Args:
        in_planes: input channels.
        planes: output channels.
        num_blocks: number of residual blocks.
        group_size: channels per group, at least 2, a divisor of both; None for dense blocks
            without permutation.
        stride: stride of the convolutions of the first block.

    Raises:
        InputError: the group size does not divide the channels.

    Source: Dimension Mixer, appendix D.2 (block-mix, Figure 6 right).
    """

    def __init__(
        self,
        in_planes: int,
        planes: int,
        num_blocks: int,
        *,
        group_size: int | None = None,
        stride: int = 1,
    ) -> None:
        in_planes, planes, stride = _check_planes(in_planes, planes, stride)
        num_blocks = check_integer("num_blocks", num_blocks, 1)
        groups, strides, radix = 1, [1], planes
        if group_size is not None:
            group_size = check_integer("group_size", group_size)
            if group_size < 2 or in_planes % group_size or planes % group_size:
                expected = f"a divisor from 2 of in_planes = {in_planes} and planes = {planes}"
                raise bad_argument("group_size", expected, group_size)
            groups, radix = in_planes // group_size, group_size
            strides = butterfly_strides(planes, group_size)
        blocks: list[nn.Module] = [BlockMixBlock(in_planes, planes, groups=groups, stride=stride)]
        for k in range(1, num_blocks):
            block = BlockMixBlock(planes, planes, groups=groups)
            blocks.append(ButterflyChannels(block, radix, strides[k % len(strides)]))
        super().__init__(*blocks)


def _check_planes(in_planes: int, planes: int, stride: int) -> tuple[int, int, int]:
    return (
        check_integer("in_planes", in_planes, 1),
        check_integer("planes", planes, 1),
        check_integer("stride", stride, 1),
    )


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
            `rifflemix.models.vision.resnet_mixers.ConvMixBlock`.
        group_sizes: block-mix: channels per group in each stage, three numbers, see
            `rifflemix.models.vision.resnet_mixers.BlockMixStage`.
        num_classes: number of outputs.
        in_channels: channels of the image.

    Raises:
        InputError: a size is out of range, the groups do not divide the channels, or both
            `groups` and `group_sizes` are set.

    Source: Dimension Mixer, appendix D.2; He et al. 2016, "Deep Residual Learning for Image
    Recognition", section 4.2.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.ResNetMixer(planes=8, blocks_per_stage=1)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
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

        Raises:
            InputError: the shape or dtype of the images is wrong, or a mask is given.
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
        return self.head(x.mean(dim=(2, 3)))


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
    "conv_mix": "grouped convolutions with a permutation inside each block",
    "block_mix": "grouped blocks with a permutation between them",
}
_NOTE = "depth as in Figure 7 of the paper, 3 blocks + 11; the paper reports no count"
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
