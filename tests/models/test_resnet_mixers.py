"""ResNets with grouped channel mixing: parameter counts, structure, statistics, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rifflemix as rm
from rifflemix.models.vision.resnet_mixers import BlockMixBlock, ButterflyChannels, ResNetMixer

# Figure 7 of the paper: blocks per stage, planes, and groups or group sizes.
FIGURE: dict[str, tuple[int, int, list[int] | None]] = {
    "resnet_dense_20_p16": (3, 16, None),
    "resnet_dense_20_p32": (3, 32, None),
    "resnet_dense_23_p32": (4, 32, None),
    "resnet_conv_mix_20_p32": (3, 32, [8, 8, 16]),
    "resnet_conv_mix_20_p64": (3, 64, [8, 16, 16]),
    "resnet_conv_mix_23_p64": (4, 64, [8, 16, 16]),
    "resnet_block_mix_17_p32": (2, 32, [8, 8, 16]),
    "resnet_block_mix_20_p32": (3, 32, [4, 4, 8]),
    "resnet_block_mix_20_p64": (3, 64, [4, 8, 8]),
    "resnet_block_mix_23_p64": (4, 64, [8, 16, 16]),
}


def expected_parameters(mixing: str, blocks: int, planes: int, numbers: list[int] | None) -> int:
    """Count parameters layer by layer with the rules of the paper."""
    total = 9 * 3 * planes + 2 * planes  # stem and its norm
    before = planes
    for stage in range(3):
        width = planes * 2**stage
        for _ in range(blocks):
            first = second = shortcut = 1
            if mixing == "conv_mix":
                first = min(numbers[stage], before)
                second = width // first
            elif mixing == "block_mix":
                # The number of groups of a stage depends on its input channels.
                into = planes if stage == 0 else width // 2
                first = second = shortcut = into // numbers[stage]
            total += 9 * before * width // first + 9 * width * width // second + 4 * width
            if before != width:
                total += before * width // shortcut + 2 * width
            before = width
    return total + before * 10 + 10


def test_all_ten_models_are_registered() -> None:
    assert {name for name in rm.list_models() if name.startswith("resnet_")} == set(FIGURE)


@pytest.mark.parametrize("name", FIGURE)
def test_parameter_counts_equal_the_formula(name: str) -> None:
    mixing = name.removeprefix("resnet_").rsplit("_", 2)[0]
    with torch.device("meta"):
        found = rm.create_model(name).num_parameters()
    assert found == expected_parameters(mixing, *FIGURE[name])


def test_classic_resnet20_has_its_parameters() -> None:
    """ResNet-20 of He et al. has 269,722 parameters with padded shortcuts.

    1x1 convolutions as shortcuts add 2,752.
    """
    with torch.device("meta"):
        model = rm.create_model("resnet_dense_20_p16")
    shortcuts = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    assert model.num_parameters() == 269722 + shortcuts


def test_stages_halve_the_image_and_double_the_channels() -> None:
    model = rm.create_model("resnet_conv_mix_20_p32").eval()
    shapes = []
    for stage in model.stages:
        stage[-1].register_forward_hook(lambda _m, _a, y: shapes.append(tuple(y.shape[1:])))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert shapes == [(32, 32, 32), (64, 16, 16), (128, 8, 8)]


@pytest.mark.parametrize("size", [(32, 32), (9, 14), (1, 1)])
def test_any_image_size(size: tuple[int, int]) -> None:
    model = rm.create_model("resnet_block_mix_17_p32", num_classes=4, in_channels=1).eval()
    assert model(torch.randn(2, 1, *size)).shape == (2, 4)


def test_strides_of_block_mix() -> None:
    model = rm.create_model("resnet_block_mix_20_p32")
    strides = []
    for stage in model.stages:
        assert isinstance(stage[0], BlockMixBlock)
        strides.append([(b.radix, b.stride) for b in stage if isinstance(b, ButterflyChannels)])
    assert strides == [[(4, 4), (4, 8)], [(4, 4), (4, 16)], [(8, 8), (8, 16)]]


def test_convolutions_start_by_fan_out() -> None:
    model = rm.create_model("resnet_dense_20_p32")
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            fan_out = module.kernel_size[0] ** 2 * module.out_channels
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)


@pytest.mark.parametrize("name", ["resnet_conv_mix_20_p32", "resnet_block_mix_17_p32"])
def test_checkpointing_enters_a_batch_into_the_statistics_once(name: str) -> None:
    images = torch.randn(4, 3, 8, 8)
    buffers = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = rm.create_model(name, blocks_per_stage=2).train()
        model.gradient_checkpointing = checkpointing
        for _ in range(2):
            model(images).square().sum().backward()
        buffers.append(dict(model.named_buffers()))
        assert all(m.momentum == 0.1 for m in model.modules() if hasattr(m, "momentum"))
    for key, value in buffers[0].items():
        assert torch.equal(buffers[1][key], value), key
    assert buffers[1]["bn1.num_batches_tracked"] == 2


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "both": (
        {"groups": [4, 4, 4], "group_sizes": [4, 4, 4]},
        "group_sizes",
    ),
    "two groups": ({"groups": [4, 4]}, r"groups: .*\b3\b"),
    "four sizes": ({"group_sizes": [4, 4, 4, 4]}, r"group_sizes: .*\b3\b"),
    "groups": ({"groups": [3, 4, 4]}, r"groups: .*planes = 16.*got 3\b"),
    "size": ({"group_sizes": [4, 5, 4]}, r"group_size: .*\b2\b"),
    "no sequence": ({"groups": 4}, "groups: .*got 4"),
    "planes": ({"planes": 0}, "planes"),
    "blocks": ({"blocks_per_stage": 0}, "blocks_per_stage"),
    "classes": ({"num_classes": 0}, "num_classes"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        ResNetMixer(**change)


def test_bad_images_are_refused() -> None:
    model = rm.create_model("resnet_dense_20_p16")
    with pytest.raises(rm.InputError, match=r"\(B, 3, .*got \(2, 1, 8, 8\)"):
        model(torch.zeros(2, 1, 8, 8))
    with pytest.raises(rm.InputError, match=r"key_padding_mask: .*None"):
        model(torch.zeros(2, 3, 8, 8), key_padding_mask=torch.zeros(2, 4, dtype=torch.bool))
