"""Layers reject arguments of the wrong type and accept NumPy numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.models.vision.dimension_mixer_layers import PatchMix, PatchOnlyBlock
from rifflemix.models.vision.resnet_mixers import BlockMixBlock, BlockMixStage, ConvMixBlock
from rifflemix.models.vision.tost_layers import ISTA
from rifflemix.nn.butterfly import (
    BlockLinear,
    BlockMLP,
    ButterflyLinear,
    ButterflyLinearMLP,
    ButterflyMLP,
)
from rifflemix.nn.layers import FeedForward
from rifflemix.nn.positions import PositionEmbedding

BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "patch sizes a number": ("patch_sizes", lambda: PatchOnlyBlock(3, 35, 5)),
    "patch sizes text": ("patch_sizes", lambda: PatchOnlyBlock(3, 35, "57")),
    "patch size 5.0": ("patch_sizes", lambda: PatchOnlyBlock(3, 35, (5.0, 7))),
    "image size 35.0": ("image_size", lambda: PatchOnlyBlock(3, 35.0, (5, 7))),
    "patch expansion": ("expansion", lambda: PatchMix(1, 2, expansion="2")),
    "patches of a list": ("x", lambda: PatchMix(1, 2)([1])),
    "conv of 7 channels": ("x", lambda: ConvMixBlock(8, 8)(torch.randn(1, 7, 4, 4))),
    "conv of three axes": ("x", lambda: BlockMixBlock(8, 8)(torch.randn(8, 4, 4))),
    "conv of integers": ("x", lambda: ConvMixBlock(8, 8)(torch.ones(1, 8, 4, 4).long())),
    "planes 8.0": ("planes", lambda: ConvMixBlock(8, 8.0)),
    "conv groups 2.0": ("groups", lambda: ConvMixBlock(8, 8, groups=2.0)),
    "block groups True": ("groups", lambda: BlockMixBlock(8, 8, groups=True)),
    "stage of 2.0 blocks": ("num_blocks", lambda: BlockMixStage(8, 8, 2.0)),
    "stage group 4.0": ("group_size", lambda: BlockMixStage(8, 8, 2, group_size=4.0)),
    "no expansion": ("expansion", lambda: ButterflyMLP(12, 4, 0)),
    "expansion under a feature": ("expansion", lambda: ButterflyMLP(12, 4, 0.1)),
    "expansion text": ("expansion", lambda: ButterflyMLP(12, 4, "2")),
    "butterfly block 4.0": ("block", lambda: ButterflyMLP(12, 4.0)),
    "butterfly features 12.0": ("num_features", lambda: ButterflyLinear(12.0, 4)),
    "Monarch expansion 1.5": ("expansion", lambda: ButterflyLinearMLP(9, 3, 1.5)),
    "widths a number": ("block_dims", lambda: BlockMLP(8, 4)),
    "width 4.0": ("block_dims", lambda: BlockMLP(8, (4.0, 4))),
    "features 2.0": ("in_features", lambda: BlockLinear(2, 2.0, 2)),
    "ISTA dim": ("dim", lambda: ISTA(4.0)),
    "ISTA step": ("step_size", lambda: ISTA(4, step_size="a")),
    "ISTA sparsity": ("sparsity", lambda: ISTA(4, sparsity=None)),
    "ISTA of a number": ("x", lambda: ISTA(4)(1.0)),
    "ISTA without axes": ("x", lambda: ISTA(4)(torch.ones(()))),
    "feed-forward width": ("hidden_dim", lambda: FeedForward(4, 8.0)),
    "feed-forward dropout": ("dropout", lambda: FeedForward(4, 8, dropout="a")),
    "positions": ("max_length", lambda: PositionEmbedding(4.0, 8)),
    "model dim": ("dim", lambda: rm.create_model("encoder", vocab_size=3, dim="a")),
    "model layers": (
        "num_layers",
        lambda: rm.create_model("encoder", vocab_size=3, num_layers=2.0),
    ),
    "model vocabulary": ("vocab_size", lambda: rm.create_model("encoder", vocab_size=3.0)),
    "model dropout": ("dropout", lambda: rm.create_model("encoder", vocab_size=3, dropout="a")),
}


@pytest.mark.parametrize(("name", "call"), BAD.values(), ids=BAD)
def test_arguments_of_a_wrong_type_are_named(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(rm.InputError, match=f"^{name}: expected"):
        call()


def test_numbers_of_numpy() -> None:
    two, four, eight = np.int64(2), np.int32(4), np.int64(8)
    image = torch.randn(2, 8, 6, 6)
    assert ConvMixBlock(eight, eight, groups=four)(image).shape == image.shape
    assert BlockMixStage(eight, eight, two, group_size=four)(image).shape == image.shape
    with warnings.catch_warnings(action="error"):
        block = PatchOnlyBlock(eight, np.int64(6), np.array([2, 3]), expansion=np.float32(0.5))
    assert block(image).shape == image.shape
    x = torch.randn(2, 8)
    for layer in (
        ButterflyMLP(eight, four, np.float32(2)),
        ButterflyLinear(eight, two),
        BlockMLP(eight, np.array([4, 6, 4])),
        ISTA(eight, step_size=np.float64(0.1)),
        FeedForward(eight, four, dropout=np.float32(0.5)),
    ):
        assert layer(x).shape == x.shape
