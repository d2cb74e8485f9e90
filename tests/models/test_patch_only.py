"""Compare patch-only mixing with torch's unfold and fold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.models.vision.dimension_mixer_layers import PatchMix, PatchOnlyBlock

Golden = Callable[[str], dict[str, np.ndarray]]
NAMES = {"norm.": "ln0.", "fc1.": "mlp_patch.mlp.0.", "fc2.": "mlp_patch.mlp.2."}


def official(vectors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        ours + kind: vectors[prefix + theirs + kind]
        for ours, theirs in NAMES.items()
        for kind in ("weight", "bias")
    }


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_block_equals_the_golden_file(golden: Golden) -> None:
    vectors = {k: torch.from_numpy(v) for k, v in golden("patch_only_block").items()}
    layer = PatchMix(2, 3)
    layer.load_state_dict(official(vectors, "p."))
    x = vectors["x"].requires_grad_()
    y = layer(x)
    close(y, vectors["y"])
    (y * vectors["ct"]).sum().backward()
    close(x.grad, vectors["gx"])
    for name, gradient in official(vectors, "gp.").items():
        close(layer.get_parameter(name).grad, gradient)


def test_mixer_equals_the_golden_file(golden: Golden) -> None:
    vectors = {k: torch.from_numpy(v) for k, v in golden("patch_only_mixer_tiny").items()}
    x = F.interpolate(vectors["x"], size=(6, 6), mode="bilinear", align_corners=True)
    for i in range(2):
        block = PatchOnlyBlock(3, 6, (2, 3))
        for j, layer in enumerate(block):
            layer.load_state_dict(official(vectors, f"p.mixer_blocks.{2 * i + j}."))
        x = block(x)
    close(
        F.linear(x.flatten(1), vectors["p.linear.weight"], vectors["p.linear.bias"]), vectors["y"]
    )


@pytest.mark.parametrize(("size", "shape"), [(2, (6, 4)), (3, (9, 6)), (1, (3, 5)), (7, (7, 7))])
def test_equals_unfold_and_fold(size: int, shape: tuple[int, int]) -> None:
    layer = PatchMix(3, size, expansion=1.5, activation=nn.Tanh).double()
    x = torch.randn(2, 3, *shape, dtype=torch.float64)
    patches = F.unfold(x, size, stride=size).mT
    y = layer.fc2(layer.act(layer.fc1(layer.norm(patches)))).mT
    expected = x + F.fold(y, shape, size, stride=size)
    torch.testing.assert_close(layer(x), expected, atol=1e-12, rtol=1e-12)


def reach(sizes: tuple[int, ...], image: int, blocks: int) -> Tensor:
    """Return (P, P) bool: the input rows that each output row depends on."""
    torch.manual_seed(0)
    stack = nn.Sequential(*(PatchOnlyBlock(1, image, sizes) for _ in range(blocks))).double()
    x = torch.randn(1, 1, image, image, dtype=torch.float64, requires_grad=True)
    y = stack(x)[0, 0, :, 0]
    rows = [torch.autograd.grad(out, x, retain_graph=True)[0][0, 0].abs().sum(1) for out in y]
    return torch.stack(rows) > 0


def test_coprime_sizes_mix_the_whole_image() -> None:
    assert reach((2, 3), 6, blocks=3).all()
    assert not reach((2, 3), 6, blocks=1).all()
    assert reach((2, 3, 5), 30, blocks=6).all()


@pytest.mark.parametrize(
    ("sizes", "image", "run"), [((2, 2), 4, 2), ((2, 4), 8, 4), ((2, 3), 12, 6), ((2,), 4, 2)]
)
def test_other_sizes_stay_within_the_least_common_multiple(
    sizes: tuple[int, ...], image: int, run: int
) -> None:
    with pytest.warns(UserWarning, match=rf"\b{run}\b"):
        met = reach(sizes, image, blocks=6)
    parts = torch.arange(image) // run
    assert torch.equal(met, parts[:, None] == parts[None, :])


def test_sizes_with_a_common_factor_warn() -> None:
    with pytest.warns(UserWarning, match=r"patch_sizes \(4, 6\)"):
        PatchOnlyBlock(1, 12, (4, 6))


@pytest.mark.parametrize(("layers", "total"), [(7, 807082), (10, 1137220)])
def test_parameters_of_the_papers_table(layers: int, total: int) -> None:
    block = sum(p.numel() for p in PatchOnlyBlock(3, 35, (5, 7)).parameters())
    assert layers * block + 3 * 35 * 35 * 10 + 10 == total


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: PatchOnlyBlock(3, 35, (5, 6)), r"patch_sizes: .*image_size.*got \(5, 6\)"),
        (lambda: PatchOnlyBlock(3, 35, ()), r"patch_sizes: .*got \(\)"),
        (lambda: PatchOnlyBlock(3, 0, (5, 7)), "image_size: expected"),
        (lambda: PatchMix(0, 2), "channels: .*got 0"),
        (lambda: PatchMix(1, 0), "patch_size: expected"),
        (lambda: PatchMix(1, 2, expansion=0), "expansion: .*got 0"),
        (lambda: PatchMix(1, 2)(torch.randn(1, 1, 5, 4)), r"x: .*got \(1, 1, 5, 4\)"),
        (lambda: PatchMix(1, 2)(torch.randn(1, 2, 4, 4)), r"x: .*got \(1, 2, 4, 4\)"),
        (lambda: PatchMix(1, 2)(torch.randn(1, 4, 4)), r"x: .*got \(1, 4, 4\)"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object], named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        call()
