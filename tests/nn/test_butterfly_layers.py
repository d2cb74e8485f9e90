"""Tests of butterfly MLPs: parameters, activations, initialization, hooks and arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.nn.butterfly import (
    BlockLinear,
    BlockMLP,
    BlockResMLP,
    ButterflyLinear,
    ButterflyLinearMLP,
    ButterflyMLP,
)
from rifflemix.ops.native import instruction_level


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("kind", "expansion", "total"),
    [
        (ButterflyLinearMLP, 1, 140961),
        (ButterflyMLP, 1, 143551),
        (ButterflyLinearMLP, 2, 193860),
        (ButterflyMLP, 2, 197745),
    ],
)
def test_parameters_of_the_papers_mlp_mixer(kind, expansion: int, total: int) -> None:
    """64 tokens, 121 channels, 7 blocks."""
    mixing = count(kind(64, 8, expansion)) + count(kind(121, 11, expansion))
    norms, embedding, head = 2 * 2 * 121, 48 * 121 + 121, 64 * 121 * 10 + 10
    assert 7 * (mixing + norms) + embedding + head == total


@pytest.mark.parametrize(
    ("n", "build"),
    [
        (24, lambda: ButterflyMLP(24, 4)),
        (8, lambda: ButterflyMLP(8, 4, residual=True)),
        (27, lambda: ButterflyMLP(27, 3, 1)),
        (5, lambda: ButterflyMLP(5, 5)),
        (9, lambda: ButterflyLinearMLP(9, 3, 2)),
        (16, lambda: ButterflyLinearMLP(16, 4, 1)),
    ],
)
def test_every_output_depends_on_every_input(n: int, build: Callable[[], nn.Module]) -> None:
    x = torch.randn(n, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(build().double(), x)
    assert jacobian.shape == (n, n)
    assert (jacobian != 0).all()


def test_any_leading_axes_are_independent() -> None:
    mlp = ButterflyMLP(24, 4).double()  # 24 / 4: the rule of the paper would mix samples here
    x = torch.randn(2, 3, 24, dtype=torch.float64)
    y = mlp(x)
    assert y.shape == x.shape
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(y[i, j], mlp(x[i, j]))


def test_no_activation_after_the_last_layer() -> None:
    mlp = BlockMLP(8, (4, 6, 2), activation=nn.ReLU)
    assert [type(layer) for layer in mlp.layers] == [BlockLinear, nn.ReLU, BlockLinear]
    assert mlp(torch.randn(3, 8)).shape == (3, 4)


def test_residual_mlp_adds_its_input() -> None:
    torch.manual_seed(1)
    plain = BlockMLP(8, (4, 8, 4), activation=nn.ELU)
    torch.manual_seed(1)
    residual = BlockResMLP(8, (4, 8, 4))
    x = torch.randn(3, 8)
    assert torch.equal(residual(x), x + plain(x))


STACKS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: ButterflyMLP(64, 8, 2),
    "MLP with ELU": lambda: ButterflyMLP(121, 11, 1, activation=nn.ELU),
    "deep": lambda: BlockMLP(64, (8, 12, 4, 8)),
    "linear": lambda: ButterflyLinear(64, 8),
    "linear MLP": lambda: ButterflyLinearMLP(64, 8),
    "residual": lambda: BlockResMLP(64, (8, 16, 8)),
}


@pytest.mark.parametrize("name", STACKS)
def test_layers_run_fused_or_separately_with_hooks(name: str) -> None:
    """Layers run fused. With a hook on an inner module they run separately, with equal results."""
    torch.manual_seed(0)
    layer = STACKS[name]()
    weight = next(layer.parameters())
    x = torch.randn(4, 300, weight.shape[0] * weight.shape[1])
    with torch.profiler.profile() as profile:
        y = layer(x)
    if instruction_level() >= 2:
        assert sum(e.count for e in profile.key_averages() if e.key == "rifflemix::block_maps") == 1
    seen: list[nn.Module] = []
    for module in layer.modules():
        if isinstance(module, BlockLinear):
            module.register_forward_hook(lambda module, args, output: seen.append(module))
    torch.testing.assert_close(layer(x), y, atol=1e-5, rtol=1e-5)
    assert len(seen) == sum(isinstance(module, BlockLinear) for module in layer.modules())


def test_a_hook_on_a_block_mlp_of_a_butterfly_is_called() -> None:
    layer, seen = ButterflyMLP(64, 8), []
    layer.layers[1].register_forward_pre_hook(lambda module, args: seen.append(args[1:]))
    layer(torch.randn(300, 64))
    assert seen == [(8, 8)]


def test_activations_that_the_kernel_does_not_support() -> None:
    x = torch.randn(2, 600, 64)
    kinds = {
        nn.Tanh: torch.tanh,
        partial(nn.GELU, approximate="tanh"): partial(nn.functional.gelu, approximate="tanh"),
        partial(nn.ELU, alpha=0.5): partial(nn.functional.elu, alpha=0.5),
    }
    for kind, function in kinds.items():
        mlp = BlockMLP(64, (8, 8, 8), activation=kind)
        torch.testing.assert_close(mlp(x), mlp.layers[2](function(mlp.layers[0](x))))


def test_modified_submodule_replaces_the_original() -> None:
    mlp = ButterflyMLP(64, 8)
    x = torch.randn(300, 64)
    torch.nn.utils.parametrize.register_parametrization(
        mlp.layers[0].layers[0], "weight", _Doubled()
    )
    y = mlp(x)
    torch.nn.utils.parametrize.remove_parametrizations(mlp.layers[0].layers[0], "weight")
    torch.testing.assert_close(mlp(x), y)


class _Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_all_layers_of_a_butterfly_use_the_given_initialization() -> None:
    mlp = ButterflyLinearMLP(16, 4, init="randn")
    assert [part.init for part in mlp.children() if isinstance(part, BlockLinear)] == ["randn"] * 4


@pytest.mark.parametrize("init", ["uniform", "randn", "identity"])
def test_block_linear_init(init: str) -> None:
    layer = BlockLinear(100, 16, 16, init=init)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    if init == "identity":
        assert torch.equal(weight, torch.eye(16).expand(100, 16, 16))
        assert not bias.any()
    elif init == "uniform":
        for values in (weight, bias):
            assert values.abs().max() <= 0.25
            assert values.std().item() == pytest.approx(0.25 / 3**0.5, rel=0.1)
    else:
        for values in (weight, bias):
            assert values.std().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: BlockLinear(0, 2, 2), r"blocks: .*\b1\b"),
        (lambda: BlockLinear(2, 2, 0), r"out_features: .*\b1\b"),
        (lambda: BlockLinear(2, 2, 3, init="identity"), "init: .*got 'identity'"),
        (lambda: BlockLinear(2, 2, 2, init="unifrom"), "uniform.*got 'unifrom'"),
        (lambda: BlockMLP(8, (3, 6, 3)), r"block_dims: .*got \(3, 6, 3\)"),
        (lambda: BlockMLP(8, (4,)), r"block_dims: .*got \(4,\)"),
        (lambda: BlockResMLP(8, (4, 8, 2)), r"block_dims: .*got \(4, 8, 2\)"),
        (lambda: ButterflyMLP(10, 4), "block: .*got 4"),
        (lambda: ButterflyMLP(8, 1), r"block: .*\b2\b"),
        (lambda: ButterflyMLP(8, 4, 0), r"expansion: .*\b0\b"),
        (lambda: ButterflyLinearMLP(8, 4), "block: .*got 4"),
        (lambda: ButterflyLinearMLP(9, 3, 0), "expansion: .*got 0"),
    ],
)
def test_bad_arguments_are_refused(build: Callable[[], nn.Module], named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        build()


def test_residual_block_restores_the_order_of_features() -> None:
    mlp = BlockResMLP(12, (3, 6, 3))
    with pytest.raises(rm.InputError, match=r"out_stride: .*in_stride = 2.*got 4\b"):
        mlp(torch.randn(2, 12), 2, 4)
