"""Public functions of this family: they check their arguments and call a backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rifflemix.checks import (
    check_divides,
    check_floating,
    check_integer,
    check_like,
)
from rifflemix.errors import bad_argument, check_choice
from rifflemix.ops.butterfly import backends
from rifflemix.ops.butterfly.eager import ACTIVATIONS, BlockMap


def butterfly_split(
    x: Tensor, block: int, stride: int, dim: int = 1, *, backend: str = "auto"
) -> Tensor:
    """Split an axis into groups of `block` positions at distance `stride`.

    Args:
        x: tensor of any shape and dtype; axis `dim` has length n.
        block: a, positions per group.
        stride: s, distance between the positions of a group; block * stride must divide n.
        dim: axis to split; a negative number counts from the end.
        backend: "auto", "reference" or "eager".

    Returns:
        x with axis `dim` replaced by two axes (n/a, a). Group q * s + r contains the positions
        q * a * s + r + j * s for j = 0 .. a-1.

    Raises:
        InputError: block * stride does not divide n, or `dim` is out of range.

    Source: Dimension Mixer, Algorithm 1 (the permutation before the block).

    Example:
        >>> import torch, rifflemix as rm
        >>> rm.ops.butterfly_split(torch.arange(8), block=2, stride=4, dim=0).tolist()
        [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    _check_tensor("x", x)
    dim = _axis(dim, x.dim(), x.dim())
    block, stride = _check_groups(block, stride, x.shape[dim])
    return backends.FAMILY.pick(backend).butterfly_split(x, block, stride, dim)


def butterfly_merge(y: Tensor, stride: int, dim: int = 1, *, backend: str = "auto") -> Tensor:
    """Invert `butterfly_split`.

    Args:
        y: tensor of any shape and dtype with axes (n/a, a) at `dim` and `dim + 1`.
        stride: s, the stride of the split.
        dim: axis of the groups; a negative number counts from the end.
        backend: "auto", "reference" or "eager".

    Returns:
        y with the two axes replaced by one axis of length n.

    Raises:
        InputError: a * s does not divide n, or `dim` is out of range.

    Source: Dimension Mixer, Algorithm 1 (the permutation after the block).

    Example:
        >>> import torch, rifflemix as rm
        >>> groups = torch.tensor([[0, 4], [1, 5], [2, 6], [3, 7]])
        >>> rm.ops.butterfly_merge(groups, stride=4, dim=0).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    _check_tensor("y", y)
    dim = _axis(dim, y.dim(), y.dim() - 1)
    _, stride = _check_groups(y.shape[dim + 1], stride, y.shape[dim] * y.shape[dim + 1])
    return backends.FAMILY.pick(backend).butterfly_merge(y, stride, dim)


def block_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    in_stride: int = 1,
    out_stride: int = 1,
    backend: str = "auto",
) -> Tensor:
    """Multiply by a block-diagonal matrix: one linear layer per block of features.

    Args:
        x: (..., blocks * in) features.
        weight: (blocks, in, out).
        bias: (blocks, out) or None.
        in_stride: distance in x between the features of a block, a divisor of blocks. Block k reads
            group k of `butterfly_split` with this stride. 1: adjacent features.
        out_stride: distance in the result between the features of a block, a divisor of blocks. The
            result is `butterfly_merge` of the blocks with this stride.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        (..., blocks * out); block k is x_k @ weight[k] + bias[k]. The compiled kernel keeps the
        memory layout of x: if x is a transposed view, the result is one too.

    Raises:
        InputError: incompatible shapes, dtypes or devices.

    Source: Dimension Mixer, Algorithm 2 (BlockLinear).

    Example:
        >>> import torch, rifflemix as rm
        >>> weight = torch.tensor([[[1.0, 1.0]], [[10.0, 10.0]]])
        >>> rm.ops.block_linear(torch.tensor([1.0, 2.0]), weight)
        tensor([ 1.,  1., 20., 20.])
    """
    maps = [_check_map(x, None, BlockMap(weight, bias, in_stride, out_stride))]
    return backends.for_blocks(x, maps, backend).block_mlp(x, maps)


def block_mlp(x: Tensor, maps: Sequence[BlockMap], *, backend: str = "auto") -> Tensor:
    """Apply a sequence of block-diagonal linear layers with optional activations.

    Args:
        x: (..., n) features.
        maps: layers, at least one. The input width of a layer must equal the output width of the
            layer before it.
        backend: "auto", "reference", "eager" or "cpu". The compiled kernel keeps the intermediate
            features in the processor cache, in float32 or wider. It saves only `x` for the backward
            pass.

    Returns:
        (..., blocks * out) with the sizes of the last layer.

    Raises:
        InputError: layers that do not fit x or each other.

    Source: Dimension Mixer, Algorithm 2 (BlockMLP); with strides of a butterfly, section 3.1.

    Example:
        >>> import torch, rifflemix as rm
        >>> up, down = torch.randn(4, 8, 16), torch.randn(4, 16, 8)
        >>> maps = [rm.ops.BlockMap(up, activation="gelu"), rm.ops.BlockMap(down)]
        >>> rm.ops.block_mlp(torch.randn(2, 32), maps).shape
        torch.Size([2, 32])
    """
    if not isinstance(maps, Sequence) or not all(isinstance(one, BlockMap) for one in maps):
        raise bad_argument("maps", "a sequence of BlockMap", type(maps).__name__)
    if not maps:
        raise bad_argument("maps", "at least one BlockMap", "none")
    checked: list[BlockMap] = []
    for index, one in enumerate(maps):
        before = checked[-1].weight if checked else None
        checked.append(_check_map(x, before, one, f"maps[{index}]."))
    return backends.for_blocks(x, checked, backend).block_mlp(x, checked)


def _check_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise bad_argument(name, "a tensor", type(x).__name__)
    if x.is_nested:
        raise bad_argument(name, "a dense tensor", "a nested tensor", "use to_padded_tensor(0.0)")
    if x.layout != torch.strided:
        raise bad_argument(name, "a dense tensor", f"one of layout {x.layout}", "use to_dense()")


def _axis(dim: int, rank: int, axes: int) -> int:
    """Return `dim` counted from the front; it must be less than `axes`."""
    dim = check_integer("dim", dim)
    front = dim + rank if dim < 0 else dim
    if not 0 <= front < axes:
        raise bad_argument("dim", f"an axis from {-rank} to {axes - 1}", dim)
    return front


def _check_groups(block: int, stride: int, length: int) -> tuple[int, int]:
    block = check_divides("block", block, length, "the axis length")
    stride = check_integer("stride", stride)
    if stride < 1 or length % (block * stride):
        raise bad_argument(
            "stride",
            f"a divisor of length / block = {length // block}",
            stride,
            "butterfly_strides lists strides that are valid",
        )
    return block, stride


def _check_map(x: Tensor, before: Tensor | None, one: BlockMap, prefix: str = "") -> BlockMap:
    """Check a layer against x or the previous weight.

    Errors put `prefix` before the names of the fields.
    """
    weight, bias, in_stride, out_stride, activation = one
    check_floating("x", x, "(..., blocks * in)")
    _check_tensor(f"{prefix}weight", weight)
    if weight.dim() != 3:
        raise bad_argument(f"{prefix}weight", "shape (blocks, in, out)", tuple(weight.shape))
    blocks, width, out = weight.shape
    if before is None and (x.dim() < 1 or x.shape[-1] != blocks * width):
        expected = f"shape (..., blocks * in) = (..., {blocks * width})"
        raise bad_argument("x", expected, tuple(x.shape))
    if before is not None and blocks * width != before.shape[0] * before.shape[2]:
        expected = f"blocks * in = {before.shape[0] * before.shape[2]}, as the map before puts out"
        raise bad_argument(f"{prefix}weight", expected, f"shape {tuple(weight.shape)}")
    check_like(f"{prefix}weight", weight, x, "x")
    if bias is not None:
        _check_tensor(f"{prefix}bias", bias)
        if tuple(bias.shape) != (blocks, out):
            expected = f"shape (blocks, out) = {(blocks, out)}"
            raise bad_argument(f"{prefix}bias", expected, tuple(bias.shape))
        check_like(f"{prefix}bias", bias, x, "x")
    strides = [
        check_divides(f"{prefix}{name}", stride, blocks, "the number of blocks")
        for name, stride in (("in_stride", in_stride), ("out_stride", out_stride))
    ]
    if activation is not None:
        check_choice(f"{prefix}activation", activation, ACTIVATIONS)
    return BlockMap(weight, bias, strides[0], strides[1], activation)
