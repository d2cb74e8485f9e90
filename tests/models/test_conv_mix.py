"""Convolutional channel mixers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.models.vision.resnet_mixers import (
    BlockMixBlock,
    BlockMixStage,
    ButterflyChannels,
    ConvMixBlock,
)

Golden = Callable[[str], dict[str, np.ndarray]]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def official(vectors: dict[str, np.ndarray], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): torch.from_numpy(np.asarray(array))
        for name, array in vectors.items()
        if name.startswith(prefix)
    }


def test_conv_mix_equals_the_golden_file(golden: Golden) -> None:
    vectors = golden("conv_mix_block")
    block = ConvMixBlock(8, 8, groups=4)
    block.load_state_dict(official(vectors, "p."))
    close(block.eval()(torch.from_numpy(vectors["x"])), torch.from_numpy(vectors["y"]))


def test_block_mix_equals_the_golden_file(golden: Golden) -> None:
    vectors = golden("block_mix_sequential")
    stage = BlockMixStage(8, 8, 3, group_size=4)
    blocks = [layer.host if isinstance(layer, ButterflyChannels) else layer for layer in stage]
    strides = [layer.stride for layer in stage if isinstance(layer, ButterflyChannels)]
    assert [1, *strides] == vectors["gaps"].tolist()
    for i, block in enumerate(blocks):
        block.load_state_dict(official(vectors, f"p.blocks.{i}."))
    close(stage.eval()(torch.from_numpy(vectors["x"])), torch.from_numpy(vectors["y"]))


def channels_met(module: nn.Module, channels: int) -> Tensor:
    """Return (C', C) bool: the input channels that each output channel depends on."""
    module = module.double().train()  # batch statistics keep about half of the ReLUs active
    x = torch.randn(2, channels, 6, 6, dtype=torch.float64, requires_grad=True)
    y = module(x)
    weights = torch.randn(y.shape[0], *y.shape[2:], dtype=torch.float64)
    rows = [
        torch.autograd.grad((y[:, c] * weights).sum(), x, retain_graph=True)[0].abs().sum((0, 2, 3))
        for c in range(y.shape[1])
    ]
    return torch.stack(rows) > 1e-12


@pytest.mark.parametrize("groups", [None, 1, 2, 4, 8])
def test_conv_mix_block_mixes_all_channels(groups: int | None) -> None:
    assert channels_met(ConvMixBlock(8, 8, groups=groups), 8).all()


@pytest.mark.parametrize(
    ("in_planes", "planes", "groups", "stride", "pair"),
    [
        (16, 16, 4, 1, (4, 4)),
        (16, 16, 8, 1, (8, 2)),
        (16, 32, 8, 2, (8, 4)),
        (16, 32, 32, 2, (16, 2)),
        (16, 32, None, 2, (1, 1)),
    ],
)
def test_conv_mix_groups(
    in_planes: int, planes: int, groups: int | None, stride: int, pair: tuple[int, int]
) -> None:
    block = ConvMixBlock(in_planes, planes, groups=groups, stride=stride)
    assert (block.conv1.groups, block.conv2.groups) == pair
    y = block(torch.randn(2, in_planes, 5, 5))
    assert y.shape == ((2, planes, 3, 3) if stride == 2 else (2, planes, 5, 5))
    if in_planes != planes:
        assert block.shortcut[0].groups == 1
        assert block.shortcut[0].kernel_size == (1, 1)


def test_shuffle_equals_an_explicit_implementation() -> None:
    block = ConvMixBlock(8, 8, groups=4)
    x = torch.arange(8.0).view(1, 8, 1, 1)
    # (C / g2, g2) = (4, 2), transposed.
    assert block.permute(x).flatten().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_block_mix_blocks_keep_their_groups_apart() -> None:
    met = channels_met(BlockMixBlock(8, 8, groups=2), 8)
    group = torch.arange(8) // 4
    assert torch.equal(met, group[:, None] == group[None, :])


@pytest.mark.parametrize(("planes", "size"), [(8, 4), (16, 4), (12, 4), (32, 4), (27, 3)])
def test_stage_with_all_strides_mixes_all_channels(planes: int, size: int) -> None:
    count = len(rm.ops.butterfly_strides(planes, size))
    assert channels_met(BlockMixStage(planes, planes, count, group_size=size), planes).all()
    fewer = BlockMixStage(planes, planes, count - 1, group_size=size)
    assert not channels_met(fewer, planes).all()


def test_groups_are_counted_on_the_channels_coming_in() -> None:
    stage = BlockMixStage(16, 32, 4, group_size=4, stride=2)
    first, *rest = stage
    assert first.conv1.groups == first.conv2.groups == first.shortcut[0].groups == 4
    assert [layer.host.conv1.groups for layer in rest] == [4, 4, 4]
    assert [layer.radix for layer in rest] == [4, 4, 4]
    assert [layer.stride for layer in rest] == [4, 8, 1]
    assert stage(torch.randn(2, 16, 6, 6)).shape == (2, 32, 3, 3)


def test_dense_stage_has_one_group_and_no_permutation() -> None:
    torch.manual_seed(0)
    stage = BlockMixStage(8, 8, 3)
    torch.manual_seed(0)
    plain = nn.Sequential(*(BlockMixBlock(8, 8) for _ in range(3)))
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(stage(x), plain(x))


def test_permutation_is_applied_around_the_whole_block() -> None:
    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.arange(8.0).view(1, 8, 1, 1)

    x = torch.ones(1, 8, 1, 1)
    # Stride 2, radix 4: the host model gets channels 0, 2, 4, 6, 1, 3, 5, 7.
    y = ButterflyChannels(Scale(), 4, 2)(x).flatten()
    assert y.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize("build", [ConvMixBlock, BlockMixBlock])
def test_convolutions_start_from_kaiming_fan_out(build: type[nn.Module]) -> None:
    block = build(16, 64, stride=2)
    for conv in (block.conv1, block.conv2, block.shortcut[0]):
        fan_out = conv.weight.shape[0] * conv.kernel_size[0] ** 2
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ConvMixBlock(8, 8, groups=3), "groups: .*planes = 8"),
        (lambda: ConvMixBlock(8, 8, groups=0), "groups: .*got 0"),
        (lambda: ConvMixBlock(6, 8, groups=4), "groups: .*in_planes = 6"),
        (lambda: ConvMixBlock(8, 8, stride=0), "stride: .*got 0"),
        (lambda: BlockMixBlock(8, 8, groups=3), "groups: .*got 3"),
        (lambda: BlockMixStage(8, 8, 2, group_size=3), "group_size: .*got 3"),
        (lambda: BlockMixStage(8, 8, 2, group_size=1), r"group_size: .*\b2\b"),
        (lambda: BlockMixStage(8, 8, 0, group_size=4), "num_blocks: expected"),
        (lambda: BlockMixStage(0, 8, 2), "in_planes: expected"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object], named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        call()
