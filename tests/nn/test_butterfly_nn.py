"""Block-diagonal layers, butterfly MLPs, and host blocks on butterfly groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.mixers.strided import mix_groups
from rifflemix.nn.butterfly import (
    BlockMLP,
    ButterflyLinear,
    ButterflyLinearMLP,
    ButterflyMLP,
)

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
def test_butterfly_attention_equals_the_golden_file(
    golden: Golden, length: int, block: int
) -> None:
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


def test_butterfly_vit_equals_the_golden_file(golden: Golden) -> None:
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


def test_model_blocks_ignore_padding() -> None:
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


def test_group_of_padding_is_safe_for_a_naive_model() -> None:
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
def test_model_blocks_keep_samples_separate(length: int) -> None:
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


def test_butterfly_mlp_equals_the_golden_file(golden: Golden) -> None:
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


def test_butterfly_resmlp_equals_the_golden_file(golden: Golden) -> None:
    vectors = load(golden, "butterfly_resmlp_n8b4")
    mlp = ButterflyMLP(8, 4, expansion=2, activation=nn.ELU, residual=True)
    assert mlp.strides == vectors["gaps"].tolist()
    for i, layer in enumerate(mlp.layers):
        load_block_mlp(layer, vectors, f"p.facto_nets.{i}.")
    close(mlp(vectors["x"]), vectors["y"])


def test_butterfly_linear_equals_the_golden_file(golden: Golden) -> None:
    vectors = load(golden, "butterfly_linear_n16b4")
    linear = ButterflyLinear(16, 4)
    assert linear.strides == vectors["gaps"].tolist()
    assert torch.equal(linear(vectors["x"]), vectors["x"]), "it starts as the identity"
    with torch.no_grad():
        for i, layer in enumerate(linear.layers):
            layer.weight.copy_(vectors[f"p.facto_nets.{i}.weight"])
    close(linear(vectors["x"]), vectors["y"])


def test_butterfly_linear_mlp_equals_the_golden_file(golden: Golden) -> None:
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
