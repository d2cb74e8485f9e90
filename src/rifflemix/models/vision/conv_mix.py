"""Residual blocks of grouped convolutions, with permutations of channels between the groups."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rifflemix.checks import check_divides, check_integer, check_tokens
from rifflemix.errors import bad_argument
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
        y: Tensor = x.unflatten(1, (-1, self.groups[1])).transpose(1, 2).flatten(1, 2)
        return y


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
