"""Block-diagonal layers, butterfly MLPs, and host blocks on butterfly groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.mixers.strided import mix_groups
from rifflemix.nn.butterfly import (
    BlockLinear,
    BlockMLP,
    BlockResMLP,
    ButterflyLinear,
    ButterflyLinearMLP,
    ButterflyMLP,
)
from rifflemix.ops.native import instruction_level

Golden = Callable[[str], dict[str, np.ndarray]]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def load(golden: Golden, name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(array) for key, array in golden(name).items()}


def from_conv(weight: Tensor, blocks: int) -> Tensor:
    """Convert the weight of a grouped 1x1 convolution to (blocks, in, out)."""
    return weight.view(blocks, -1, weight.shape[1]).mT


class PostNormBlock(nn.Module):
    """The paper's transformer block: attention and MLP, each followed by its norm."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = rm.create_mixer("softmax", dim, num_heads=num_heads)
        self.norm1 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        x = self.norm1(self.attention(x, key_padding_mask=key_padding_mask) + x)
        return self.norm2(self.mlp(x) + x)


class ButterflyBlocks(nn.Module):
    """The paper's Algorithm 1: a host block on butterfly groups of tokens."""

    def __init__(self, host: nn.Module, block: int, stride: int) -> None:
        super().__init__()
        self.host, self.block, self.stride = host, block, stride

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        return mix_groups(self.host, x, key_padding_mask, block=self.block, stride=self.stride)


HOST_NAMES = {
    "attention.proj.": "attention.fc_out.",
    "norm1.": "norm1.",
    "norm2.": "norm2.",
    "mlp.0.": "feed_forward.mlp.0.",
    "mlp.2.": "feed_forward.mlp.2.",
}


def host_tensors(vectors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Map tensors (or gradients) of a released block to the names of `PostNormBlock`."""
    tensors = {}
    for kind in ("weight", "bias"):
        names = [f"{prefix}attention.{n}.{kind}" for n in ("queries", "keys", "values")]
        tensors[f"attention.qkv.{kind}"] = torch.cat([vectors[name] for name in names])
        for ours, theirs in HOST_NAMES.items():
            tensors[ours + kind] = vectors[prefix + theirs + kind]
    return tensors


def encoder(vectors: dict[str, Tensor], prefix: str, length: int, block: int, dim: int, heads: int):
    """Build one released encoder: a host block per stride."""
    layers = []
    for i, stride in enumerate(rm.ops.butterfly_strides(length, block)):
        layer = ButterflyBlocks(PostNormBlock(dim, heads), block, stride)
        own = f"p.{prefix}sparse_transformers.{i}."
        layer.host.load_state_dict(host_tensors(vectors, own))
        layers.append(layer)
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(("length", "block"), [(16, 4), (8, 4)])
def test_golden_butterfly_attention(golden: Golden, length: int, block: int) -> None:
    vectors = load(golden, f"butterfly_attention_s{length}b{block}")
    dim = vectors["x"].shape[-1]
    layers = encoder(vectors, "", length, block, dim=dim, heads=2)
    assert [layer.stride for layer in layers] == vectors["gaps"].tolist()
    x = vectors["x"].requires_grad_()
    y = layers(x)
    close(y, vectors["y"])
    (y * vectors["ct"]).sum().backward()
    close(x.grad, vectors["gx"])
    for i, layer in enumerate(layers):
        expected = host_tensors(vectors, f"gp.sparse_transformers.{i}.")
        for name, parameter in layer.host.named_parameters():
            close(parameter.grad, expected[name])


def test_golden_butterfly_vit(golden: Golden) -> None:
    vectors = load(golden, "butterfly_vit_tiny")
    x = nn.functional.unfold(vectors["x"], 2, stride=2).mT
    x = nn.functional.linear(
        x, vectors["p.channel_change.weight"], vectors["p.channel_change.bias"]
    )
    for i in range(2):
        # The divisor of 16 nearest to its square root is 4.
        x = encoder(vectors, f"transformer_blocks.{i}.", 16, 4, dim=16, heads=4)(x)
    y = nn.functional.linear(x.flatten(1), vectors["p.linear.weight"], vectors["p.linear.bias"])
    close(y, vectors["y"])


def test_host_blocks_ignore_padding() -> None:
    layer = ButterflyBlocks(PostNormBlock(8, 2), 4, 3).double()
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    mask = torch.rand(2, 12) < 0.3
    mask[0, [1, 4, 7, 10]] = True  # one full group
    results = []
    for fill in (0.0, 1e3, float("nan")):
        inputs = x.masked_fill(mask.unsqueeze(-1), fill).requires_grad_()
        y = layer(inputs, key_padding_mask=mask)
        assert not y[mask].any()
        gradients = torch.autograd.grad(y.square().sum(), [inputs, *layer.parameters()])
        assert all(g.isfinite().all() for g in gradients)
        results.append((y.detach(), *gradients))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-12, rtol=1e-12)
    # The output of a group equals the host block on its valid tokens alone.
    valid = [position for position in (0, 3, 6, 9) if not mask[1, position]]
    torch.testing.assert_close(results[0][0][1, valid], layer.host(x[1:, valid])[0])


def test_a_group_of_padding_does_no_harm_to_a_naive_host() -> None:
    class Naive(nn.Linear):
        def forward(self, x: Tensor, *, key_padding_mask: Tensor) -> Tensor:
            scores = (x @ x.mT).masked_fill(key_padding_mask[:, None, :], -torch.inf)
            return scores.softmax(-1) @ super().forward(x)

    layer = ButterflyBlocks(Naive(4, 4), 4, 2)
    x = torch.randn(1, 8, 4, requires_grad=True)
    mask = torch.tensor([[True, False, True, False, True, False, True, False]])
    y = layer(x, key_padding_mask=mask)
    assert y.isfinite().all()
    for gradient in torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]):
        assert gradient.isfinite().all()
        assert gradient.any()


@pytest.mark.parametrize("length", [8, 12, 24, 36])
def test_host_blocks_keep_samples_apart(length: int) -> None:
    x, other = torch.randn(2, 2, length, 8, dtype=torch.float64)
    for stride in rm.ops.butterfly_strides(length, 4):
        layer = ButterflyBlocks(PostNormBlock(8, 2), 4, stride).double()
        together = layer(torch.cat((x, other)))
        torch.testing.assert_close(together, torch.cat((layer(x), layer(other))))


def load_block_mlp(layer: BlockMLP, vectors: dict[str, Tensor], prefix: str) -> None:
    with torch.no_grad():
        for i in (0, 2):
            linear = layer.layers[i]
            blocks = linear.weight.shape[0]
            linear.weight.copy_(from_conv(vectors[f"{prefix}mlp.{i}.conv.weight"], blocks))
            linear.bias.copy_(vectors[f"{prefix}mlp.{i}.conv.bias"].view(blocks, -1))


def test_golden_butterfly_mlp(golden: Golden) -> None:
    vectors = load(golden, "butterfly_mlp_n16b4")
    mlp = ButterflyMLP(16, 4, expansion=2)
    for i, layer in enumerate(mlp.layers):
        load_block_mlp(layer, vectors, f"p.facto_nets.{i}.")
    x = vectors["x"].requires_grad_()
    y = mlp(x)
    close(y, vectors["y"])
    (y * vectors["ct"]).sum().backward()
    close(x.grad, vectors["gx"])
    for i, layer in enumerate(mlp.layers):
        for j in (0, 2):
            blocks = layer.layers[j].weight.shape[0]
            prefix = f"gp.facto_nets.{i}.mlp.{j}.conv."
            close(layer.layers[j].weight.grad, from_conv(vectors[f"{prefix}weight"], blocks))
            close(layer.layers[j].bias.grad, vectors[f"{prefix}bias"].view(blocks, -1))


def test_golden_butterfly_resmlp(golden: Golden) -> None:
    vectors = load(golden, "butterfly_resmlp_n8b4")
    mlp = ButterflyMLP(8, 4, expansion=2, activation=nn.ELU, residual=True)
    assert mlp.strides == vectors["gaps"].tolist()
    for i, layer in enumerate(mlp.layers):
        load_block_mlp(layer, vectors, f"p.facto_nets.{i}.")
    close(mlp(vectors["x"]), vectors["y"])


def test_golden_butterfly_linear(golden: Golden) -> None:
    vectors = load(golden, "butterfly_linear_n16b4")
    linear = ButterflyLinear(16, 4)
    assert linear.strides == vectors["gaps"].tolist()
    assert torch.equal(linear(vectors["x"]), vectors["x"]), "it starts as the identity"
    with torch.no_grad():
        for i, layer in enumerate(linear.layers):
            layer.weight.copy_(vectors[f"p.facto_nets.{i}.weight"])
    close(linear(vectors["x"]), vectors["y"])


def test_golden_butterfly_linear_mlp(golden: Golden) -> None:
    vectors = load(golden, "butterfly_linear_mlp_n16b4")
    mlp = ButterflyLinearMLP(16, 4, expansion=2, activation=nn.GELU)
    layers = {
        "linear0_0": mlp.expand_blocks,
        "linear0_1": mlp.expand_across,
        "linear1_0": mlp.reduce_blocks,
        "linear1_1": mlp.reduce_across,
    }
    with torch.no_grad():
        for name, layer in layers.items():
            blocks = layer.weight.shape[0]
            layer.weight.copy_(from_conv(vectors[f"p.{name}.conv.weight"], blocks))
            if layer.bias is not None:
                layer.bias.copy_(vectors[f"p.{name}.conv.bias"].view(blocks, -1))
    close(mlp(vectors["x"]), vectors["y"])


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


def test_leading_axes_are_free_and_stay_apart() -> None:
    mlp = ButterflyMLP(24, 4).double()  # 24 / 4: the rule of the paper would mix samples here
    x = torch.randn(2, 3, 24, dtype=torch.float64)
    y = mlp(x)
    assert y.shape == x.shape
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(y[i, j], mlp(x[i, j]))


def test_no_activation_follows_the_last_map() -> None:
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
def test_maps_run_as_one_and_one_by_one_where_somebody_looks(name: str) -> None:
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


def test_activations_that_the_kernel_does_not_know() -> None:
    x = torch.randn(2, 600, 64)
    kinds = {
        nn.Tanh: torch.tanh,
        partial(nn.GELU, approximate="tanh"): partial(nn.functional.gelu, approximate="tanh"),
        partial(nn.ELU, alpha=0.5): partial(nn.functional.elu, alpha=0.5),
    }
    for kind, function in kinds.items():
        mlp = BlockMLP(64, (8, 8, 8), activation=kind)
        torch.testing.assert_close(mlp(x), mlp.layers[2](function(mlp.layers[0](x))))


def test_a_changed_part_takes_the_place_of_the_one_it_changes() -> None:
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


def test_all_maps_of_a_butterfly_start_as_asked_for() -> None:
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
def test_bad_arguments(build: Callable[[], nn.Module], named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        build()


def test_a_residual_block_puts_features_back_where_they_came_from() -> None:
    mlp = BlockResMLP(12, (3, 6, 3))
    with pytest.raises(rm.InputError, match=r"out_stride: .*in_stride = 2.*got 4\b"):
        mlp(torch.randn(2, 12), 2, 4)
