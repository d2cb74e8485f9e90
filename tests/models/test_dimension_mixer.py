"""The vision transformer of Dimension Mixer: parameter counts, released weights, layers, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.models.macs import multiply_accumulates
from rifflemix.models.vision.dimension_mixer import DimensionMixerViT, PostNormBlock

Golden = Callable[[str], dict[str, np.ndarray]]
TINY = {"image_size": 8, "patch_size": 2, "dim": 16, "num_layers": 4, "num_heads": 4}
NAME = "dimmixer_vit_cifar10_p4_l4"


def tiny(**settings: Any) -> DimensionMixerViT:
    return DimensionMixerViT(**{**TINY, **settings}).eval()


def counted(name: str, **settings: Any) -> int:
    with torch.device("meta"):
        return rm.create_model(name, **settings).num_parameters()


COUNTS = {
    "dimmixer_vit_cifar10_p4_l8": 1148042,
    "dimmixer_vit_cifar10_p4_l4": 618122,
    "dimmixer_vit_cifar10_p2_l4": 298570,
    "dimmixer_vit_cifar10_p1_l4": 789514,
    "dimmixer_vit_cifar100_p4_l4": 1355492,
    "dimmixer_vit_cifar100_p2_l4": 1773220,
}


@pytest.mark.parametrize("mixer", ["butterfly", "softmax"])
@pytest.mark.parametrize(("name", "total"), COUNTS.items(), ids=COUNTS)
def test_parameters_of_table_4(name: str, total: int, mixer: str) -> None:
    assert counted(name, mixer=mixer) == total


# The paper reports 1.06 M for 8 layers without output projections; see the note on the card.
TABLE_9 = {
    "no_wout": {"p4_l8": 1015946, "p4_l4": 552074, "p2_l4": 281930},
    "tp2": {"p4_l8": 721034, "p4_l4": 404618, "p2_l4": 245066},
    "tp1": {"p4_l8": 689290, "p4_l4": 388746, "p2_l4": 241226},
}


@pytest.mark.parametrize(
    ("name", "total"),
    [
        (f"dimmixer_vit_cifar10_{size}_{kind}", total)
        for kind, sizes in TABLE_9.items()
        for size, total in sizes.items()
    ],
)
def test_parameters_of_table_9(name: str, total: int) -> None:
    assert counted(name) == total


@pytest.mark.parametrize(("groups", "total"), [(4, 404618 + 4 * 4224), (8, 388746 - 4 * 2176)])
def test_token_parallel_as_the_paper_words_it(groups: int, total: int) -> None:
    """In the text of the paper, there is an output projection for two heads per group only.

    Table 9 reverses this.
    """
    options = {"num_groups": groups}
    assert counted(NAME, mixer="token_parallel", mixer_options=options) == total


def test_every_size_is_registered() -> None:
    sizes = {f"p{patch}_l{layers}" for patch in (4, 2, 1) for layers in (8, 4)}
    names = {f"dimmixer_vit_{data}_{size}" for data in ("cifar10", "cifar100") for size in sizes}
    assert names <= set(rm.list_models())


def official(vectors: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {
        key.removeprefix("p."): torch.from_numpy(array)
        for key, array in vectors.items()
        if key.startswith("p.")
    }


def test_equals_the_golden_file(golden: Golden) -> None:
    vectors = golden("butterfly_vit_tiny")
    settings = {**TINY, "num_classes": 5, "mixer_options": {"block_size": 4}}
    model = rm.create_model(NAME, **settings).eval()
    rm.models.load_official(model, official(vectors))
    logits = model(torch.from_numpy(vectors["x"]))
    torch.testing.assert_close(logits, torch.from_numpy(vectors["y"]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [8, 16])
def test_encoder_equals_the_golden_file(golden: Golden, length: int) -> None:
    """The blocks alone equal one encoder of the released code, including gradients."""
    vectors = golden(f"butterfly_attention_s{length}b4")
    sizes = {"image_size": [2, 2 * length], "dim": 8, "num_heads": 2, "num_layers": 2}
    model = tiny(**sizes, mixer_options={"block_size": 4})
    weights = {f"transformer_blocks.0.{key}": value for key, value in official(vectors).items()}
    for ours, theirs in (("patch_embed.proj", "channel_change"), ("head", "linear")):
        part = model.get_submodule(ours).state_dict()
        weights |= {f"{theirs}.{name}": tensor for name, tensor in part.items()}
    rm.models.load_official(model, weights)
    assert model.blocks[0].mixer.strides(length) == vectors["gaps"].tolist()
    x = torch.from_numpy(vectors["x"]).requires_grad_()
    y = model.blocks[1](model.blocks[0](x))
    torch.testing.assert_close(y, torch.from_numpy(vectors["y"]), atol=1e-5, rtol=1e-4)
    (gradient,) = torch.autograd.grad((y * torch.from_numpy(vectors["ct"])).sum(), x)
    torch.testing.assert_close(gradient, torch.from_numpy(vectors["gx"]), atol=1e-5, rtol=1e-4)


MIXERS: dict[str, tuple[str, dict[str, Any]]] = {
    "butterfly": ("butterfly", {"block_size": 4}),
    "softmax": ("softmax", {}),
    "no bias": ("softmax", {"bias": False}),
    "tp1": ("token_parallel", {"num_groups": 4, "use_wout": True}),
    "tp2": ("token_parallel", {"num_groups": 2, "use_wout": False}),
}


@pytest.mark.parametrize(("mixer", "options"), MIXERS.values(), ids=MIXERS)
def test_every_tensor_has_one_position_in_the_released_code(
    mixer: str, options: dict[str, Any]
) -> None:
    """The loaded tensors fill every parameter of the model exactly once."""
    model = tiny(mixer=mixer, mixer_options=options)
    own, layout = model.state_dict(), model.official_tensors()
    shapes = {
        key: entry.shape or tuple(entry.position(own[str(entry.name)]).shape)
        for key, entry in layout.items()
    }
    assert sum(np.prod(shape) for shape in shapes.values()) == model.num_parameters()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    rm.models.load_official(model, {key: torch.randn(shape) for key, shape in shapes.items()})
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_released_blocks_are_grouped_in_encoders() -> None:
    def encoders(**settings: Any) -> set[str]:
        keys = tiny(**settings).official_tensors()
        return {key.rsplit(".attention", 1)[0] for key in keys if "attention" in key}

    path = "transformer_blocks.{}.sparse_transformers.{}"
    pairs = {path.format(e, j) for e in (0, 1) for j in (0, 1)}
    singles = {path.format(e, 0) for e in range(4)}
    assert encoders() == pairs
    assert encoders(mixer="softmax") == singles
    assert encoders(mixer="butterfly", mixer_options={"block_size": 16}) == singles
    assert encoders(mixer="token_parallel") == pairs  # groups of 4 of the 16 channels
    assert encoders(mixer="token_parallel", mixer_options={"num_groups": 1}) == singles


def test_token_parallel_weights_are_loaded_into_the_right_modules(golden: Golden) -> None:
    vectors = golden("token_parallel_attention_wout0")
    options = {"num_groups": 2, "use_wout": False, "softmax_over": "queries"}
    model = tiny(mixer="token_parallel", mixer_options=options, num_layers=1)
    layout = model.official_tensors()
    own = model.state_dict()
    with torch.no_grad():
        for key, tensor in official(vectors).items():
            entry = layout[f"transformer_blocks.0.sparse_transformers.0.attention.{key}"]
            position = entry.position(own[str(entry.name)])
            position.copy_(tensor.reshape(position.shape))
    y = model.blocks[0].mixer(torch.from_numpy(vectors["x"]))
    torch.testing.assert_close(y, torch.from_numpy(vectors["y"]), atol=1e-5, rtol=1e-4)


def test_layers_use_the_strides_in_turn() -> None:
    """Consecutive layers use consecutive strides: two layers reach every patch, one does not.

    The patch grid determines the strides, even without positions.
    """
    images = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    moved = images.clone()
    moved[..., :2, :2] += 1.0
    model = tiny(num_layers=2).double()
    x, y = model.patch_embed(images), model.patch_embed(moved)
    reached = []
    for block in model.blocks:
        x, y = block(x), block(y)
        reached.append(int(((x - y).abs().amax((0, 2)) > 1e-12).sum()))
    assert reached == [4, 16]


def test_patches_are_read_as_unfold_reads_them() -> None:
    model = tiny()
    images = torch.randn(2, 3, 8, 8)
    patches = torch.nn.functional.unfold(images, kernel_size=2, stride=2).mT
    torch.testing.assert_close(model.patch_embed(images), model.patch_embed.proj(patches))


def test_block_is_post_norm() -> None:
    block = PostNormBlock(torch.nn.Linear(6, 6), 6, 12, dropout=0.0)
    x = torch.randn(2, 5, 6)
    middle = block.norm1(block.mixer(x) + x)
    torch.testing.assert_close(block(x), block.norm2(block.mlp(middle) + middle))


def test_dropout_is_applied_after_the_norms() -> None:
    block = PostNormBlock(torch.nn.Linear(6, 6), 6, 12, dropout=0.5)
    y = block(torch.randn(4, 50, 6))
    assert 0.4 < (y == 0).float().mean() < 0.6
    assert (block.eval()(torch.randn(4, 50, 6)) != 0).all()


@pytest.mark.parametrize("mixer", ["softmax", "butterfly", "token_parallel"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_operations_are_counted_on_every_device(mixer: str, device: str) -> None:
    with torch.device(device):
        model = DimensionMixerViT(mixer=mixer, num_layers=1).eval()
        found = multiply_accumulates(model, torch.randn(1, 3, 32, 32))
    n, c, groups = 64, 128, 8
    seen = 8 if mixer == "butterfly" else n
    maps = 3 * n * c * c // groups if mixer == "token_parallel" else 4 * n * c * c
    # A block-diagonal layer counts its biases, like the counter of the paper's tables.
    biases = 3 * n * c if mixer == "token_parallel" else 0
    mlp = 2 * n * c * 2 * c
    norms_and_gelu = 2 * n * c + n * 2 * c
    ends = n * 48 * c + n * c * 10
    assert found == maps + biases + 2 * n * seen * c + mlp + norms_and_gelu + ends


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "patch": ({"patch_size": 3}, r"patch_size: .*height = 8.*got 3\b"),
    "heads": ({"num_heads": 3}, r"num_heads: .*dim = 16.*got 3\b"),
    "mixer": ({"mixer": "buterfly"}, "'buterfly'.*butterfly"),
    "option": ({"mixer_options": {"radix": 4}}, "butterfly.*'radix'"),
    "layers": ({"num_layers": 0}, "num_layers"),
    "classes": ({"num_classes": 0}, "num_classes"),
    "hidden": ({"mlp_ratio": 0.01}, "hidden_dim"),
    "ratio": ({"mlp_ratio": -1}, "mlp_ratio"),
    "dropout": ({"dropout": 1.0}, "dropout"),
    "channels": ({"in_channels": 0}, "in_channels"),
    "setting": ({"depth": 3}, "dimmixer_vit.*got 'depth'"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.create_model(NAME, **{**TINY, **change})


def test_bad_images_are_refused() -> None:
    model = tiny()
    with pytest.raises(rm.InputError, match=r"\(B, 3, 8, 8\).*got \(2, 3, 8, 6\)"):
        model(torch.zeros(2, 3, 8, 6))
    with pytest.raises(rm.InputError, match="key_padding_mask"):
        model(torch.zeros(2, 3, 8, 8), key_padding_mask=torch.zeros(2, 16, dtype=torch.bool))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixer": "tssa"}, "got TSSA"),
        ({"mixer_options": {"token_order": "random"}}, "model:"),
    ],
)
def test_settings_without_released_code(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.models.load_official(tiny(**settings), {})
