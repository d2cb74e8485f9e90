"""Layers with butterfly structure: block-diagonal linear layers and block MLPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rifflemix import compat
from rifflemix.checks import check_integer, check_integers, check_positive
from rifflemix.errors import bad_argument, check_choice
from rifflemix.ops.butterfly import BlockMap, block_linear, block_mlp, butterfly_strides

# Modules in order of execution, each with its in_stride and out_stride.
_Steps = list[tuple[nn.Module, int, int]]


class BlockLinear(nn.Module):
    """A linear layer with a block-diagonal matrix.

    Args:
        blocks: number of blocks.
        in_features: input features per block.
        out_features: output features per block.
        bias: add a bias.
        init: initialization. "uniform" draws weight and bias from U(-1/sqrt(in), 1/sqrt(in)), as
            in the paper's runs. "randn" draws both from N(0, 1), as in the paper's pseudocode.
            "identity" sets square blocks to the identity and the bias to zero.

    Source: Dimension Mixer, Algorithm 2.
    """

    def __init__(
        self,
        blocks: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        init: str = "uniform",
    ) -> None:
        super().__init__()
        sizes = {"blocks": blocks, "in_features": in_features, "out_features": out_features}
        shape = [check_integer(name, size, 1) for name, size in sizes.items()]
        check_choice("init", init, ("uniform", "randn", "identity"))
        if init == "identity" and in_features != out_features:
            raise bad_argument(
                "init", "uniform or randn for blocks that are not square", repr(init)
            )
        self.init = init
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0], shape[2])) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        width = self.weight.shape[1]
        for parameter in self.parameters():
            if self.init == "uniform":
                nn.init.uniform_(parameter, -1 / math.sqrt(width), 1 / math.sqrt(width))
            elif self.init == "randn":
                nn.init.normal_(parameter)
            else:
                nn.init.zeros_(parameter)
        if self.init == "identity":
            with torch.no_grad():
                self.weight.diagonal(dim1=1, dim2=2).fill_(1.0)

    def forward(self, x: Tensor, in_stride: int = 1, out_stride: int = 1) -> Tensor:
        """Map (..., blocks * in_features) to (..., blocks * out_features); see `block_linear`."""
        return block_linear(x, self.weight, self.bias, in_stride=in_stride, out_stride=out_stride)

    def extra_repr(self) -> str:
        blocks, width, out = self.weight.shape
        return f"blocks={blocks}, in_features={width}, out_features={out}"


class BlockMLP(nn.Module):
    """A separate MLP for each block of features, without an activation after the last layer.

    Args:
        num_features: number of input features n.
        block_dims: features per block before and after each linear layer, such as (a, r a, a).
            The first number must divide n.
        activation: module class between the linear layers.
        init: see `BlockLinear`.

    Source: Dimension Mixer, Algorithm 2.
    """

    def __init__(
        self,
        num_features: int,
        block_dims: Sequence[int],
        *,
        activation: Callable[[], nn.Module] = nn.GELU,
        init: str = "uniform",
    ) -> None:
        super().__init__()
        num_features = check_integer("num_features", num_features, 1)
        widths = check_integers("block_dims", block_dims, 1)
        if len(widths) < 2:
            raise bad_argument("block_dims", "at least two widths", widths)
        if num_features % widths[0]:
            expected = f"a first width that divides num_features = {num_features}"
            raise bad_argument("block_dims", expected, widths)
        blocks = num_features // widths[0]
        layers: list[nn.Module] = []
        for width, out in pairwise(widths):
            layers += [BlockLinear(blocks, width, out, init=init), activation()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor, in_stride: int = 1, out_stride: int = 1) -> Tensor:
        """Map (..., n) to (..., blocks * block_dims[-1]).

        Args:
            x: (..., n) features.
            in_stride: input stride of the first linear layer, see `block_linear`.
            out_stride: output stride of the last linear layer.
        """
        steps = self.steps(in_stride, out_stride)
        maps = _as_maps(steps)
        return _one_by_one(x, steps) if maps is None else block_mlp(x, maps)

    def steps(self, in_stride: int, out_stride: int) -> _Steps:
        """Return the modules in order of execution, each with in_stride and out_stride."""
        last = len(self.layers) - 1
        return [
            (layer, in_stride if i == 0 else 1, out_stride if i == last else 1)
            for i, layer in enumerate(self.layers)
        ]


class BlockResMLP(BlockMLP):
    """A `BlockMLP` with a residual connection around each block.

    Args:
        num_features: number of input and output features n.
        block_dims: features per block before and after each linear layer. The first number must
            divide n, and the last must equal the first.
        activation: module class between the linear layers; ELU as in the released code.
        init: see `BlockLinear`.
    """

    def __init__(
        self,
        num_features: int,
        block_dims: Sequence[int],
        *,
        activation: Callable[[], nn.Module] = nn.ELU,
        init: str = "uniform",
    ) -> None:
        super().__init__(num_features, block_dims, activation=activation, init=init)
        if block_dims[-1] != block_dims[0]:
            raise bad_argument("block_dims", "a last width equal to the first", tuple(block_dims))

    def forward(self, x: Tensor, in_stride: int = 1, out_stride: int = 1) -> Tensor:
        """Map (..., n) to (..., n).

        Both strides must be equal: the residual connection needs the same feature order.
        """
        if in_stride != out_stride:
            raise bad_argument("out_stride", f"in_stride = {in_stride}", out_stride)
        return x + super().forward(x, in_stride, out_stride)


class _ButterflyStack(nn.Module):
    """Layers of n features in sequence, one for each butterfly stride."""

    def __init__(self, num_features: int, block: int, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.block = block
        self.strides = butterfly_strides(check_integer("num_features", num_features, 1), block)
        self.layers = nn.ModuleList(make() for _ in self.strides)

    def forward(self, x: Tensor) -> Tensor:
        steps: _Steps = []
        for stride, layer in zip(self.strides, self.layers, strict=True):
            if type(layer) is BlockMLP and not compat.hooks_of(layer):
                steps += layer.steps(stride, stride)
            else:
                steps.append((layer, stride, stride))
        maps = _as_maps(steps)
        if maps is not None:
            return block_mlp(x, maps)
        for stride, layer in zip(self.strides, self.layers, strict=True):
            x = layer(x, stride, stride)
        return x

    def extra_repr(self) -> str:
        return f"block={self.block}, strides={self.strides}"


class ButterflyMLP(_ButterflyStack):
    """Block MLPs in a complete butterfly: every output feature depends on every input feature.

    There is no activation between the butterfly layers, because each is an MLP.

    Args:
        num_features: number of features n.
        block: features per block a, a divisor of n.
        expansion: expansion ratio r; the hidden layer of a block has int(r a) features.
        activation: module class inside the block MLPs. The default is GELU, or ELU with
            `residual`.
        residual: add a residual connection around each block (`BlockResMLP`).
        init: see `BlockLinear`.

    Source: Dimension Mixer, section 3.1 and Algorithm 2.
    """

    def __init__(
        self,
        num_features: int,
        block: int,
        expansion: float = 2,
        *,
        activation: Callable[[], nn.Module] | None = None,
        residual: bool = False,
        init: str = "uniform",
    ) -> None:
        hidden = int(check_positive("expansion", expansion) * check_integer("block", block, 1))
        if hidden < 1:
            raise bad_argument("expansion", f"at least 1/{block}", expansion)
        dims = (block, hidden, block)
        kind, usual = (BlockResMLP, nn.ELU) if residual else (BlockMLP, nn.GELU)
        act = usual if activation is None else activation
        super().__init__(
            num_features, block, lambda: kind(num_features, dims, activation=act, init=init)
        )


class ButterflyLinear(_ButterflyStack):
    """A product of butterfly factors without bias, initialized to the identity.

    Args:
        num_features: number of features n.
        block: features per block a, a divisor of n.

    Source: Dimension Mixer, section 3.1 (the linear special case).
    """

    def __init__(self, num_features: int, block: int) -> None:
        super().__init__(
            num_features,
            block,
            lambda: BlockLinear(num_features // block, block, block, bias=False, init="identity"),
        )


class ButterflyLinearMLP(nn.Module):
    """An MLP n -> r n -> n with Monarch layers: products of two block-diagonal matrices.

    It is the paper's baseline for `ButterflyMLP`.

    Args:
        num_features: number of features n, the square of `block`.
        block: features per block a.
        expansion: expansion ratio r, an integer.
        activation: module class between the two Monarch layers. ELU is the default of the released
            class and of the paper's MLP-Mixer runs. Other MLPs in these runs use GELU.
        init: see `BlockLinear`.

    Source: Dimension Mixer, section 4 (Butterfly-Linear); Dao et al. 2022, Monarch.
    """

    def __init__(
        self,
        num_features: int,
        block: int,
        expansion: int = 2,
        *,
        activation: Callable[[], nn.Module] = nn.ELU,
        init: str = "uniform",
    ) -> None:
        super().__init__()
        block = check_integer("block", block, 1)
        if check_integer("num_features", num_features, 1) != block * block:
            raise bad_argument("block", f"the square root of num_features = {num_features}", block)
        expansion = check_integer("expansion", expansion, 1)
        self.block = block
        self.wide = wide = expansion * block
        self.expand_blocks = BlockLinear(block, block, wide, bias=False, init=init)
        self.expand_across = BlockLinear(wide, block, block, init=init)
        self.act = activation()
        self.reduce_blocks = BlockLinear(wide, block, block, bias=False, init=init)
        self.reduce_across = BlockLinear(block, wide, block, init=init)

    def forward(self, x: Tensor) -> Tensor:
        steps: _Steps = [
            (self.expand_blocks, 1, 1),
            (self.expand_across, self.wide, 1),
            (self.act, 1, 1),
            (self.reduce_blocks, 1, 1),
            (self.reduce_across, self.block, 1),
        ]
        maps = _as_maps(steps)
        return _one_by_one(x, steps) if maps is None else block_mlp(x, maps)


def _one_by_one(x: Tensor, steps: _Steps) -> Tensor:
    for layer, in_stride, out_stride in steps:
        x = layer(x, in_stride, out_stride) if isinstance(layer, BlockLinear) else layer(x)
    return x


def _as_maps(steps: _Steps) -> list[BlockMap] | None:
    """Return the steps for `block_mlp`; None for hooks or unsupported modules."""
    maps: list[BlockMap] = []
    for layer, in_stride, out_stride in steps:
        if compat.hooks_of(layer):
            return None
        activation = _activation(layer)
        if type(layer) is BlockLinear:
            maps.append(BlockMap(layer.weight, layer.bias, in_stride, out_stride))
        elif activation and maps and maps[-1].activation is None:
            maps[-1] = maps[-1]._replace(activation=activation)
        else:
            return None
    return maps


def _activation(layer: nn.Module) -> str | None:
    """Return the name of an activation in `block_mlp`, if supported."""
    if type(layer) is nn.GELU and layer.approximate == "none":
        return "gelu"
    return "elu" if type(layer) is nn.ELU and layer.alpha == 1.0 else None
