"""Count the multiply-accumulates (MACs) of a forward pass, as vision papers report them."""

from __future__ import annotations

import importlib
import math
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix import compat
from rifflemix.models.base import without_fast_path
from rifflemix.nn.butterfly import BlockLinear
from rifflemix.ops import triton_support
from rifflemix.ops.butterfly.cpu import weights_of_maps

# Layers that count as one MAC per output element.
_PER_ELEMENT = (nn.LayerNorm, nn.BatchNorm2d, nn.GELU, nn.ELU, nn.ReLU)


def multiply_accumulates(model: nn.Module, *inputs: Tensor) -> int:
    """Count the MACs of `model(*inputs)`; tensors on the meta device suffice.

    Matrix products, convolutions and attention come from torch's FLOP counter, at two FLOPs per
    MAC. Norms, activation layers and the biases of block-diagonal linear layers add one MAC per
    output element. The tables of the Dimension Mixer use the same convention, and there these
    layers are up to 14 % of the total. Everything else counts as zero: Fourier transforms, sorts,
    shifts and elementwise products. Mixers with long convolutions (S4, Mega, FNet ...) therefore
    need more operations than reported.

    Args:
        model: any module; its parameters and mode do not change.
        inputs: arguments of its forward pass.

    Returns:
        Number of multiply-accumulates.

    Example:
        >>> import torch, rifflemix as rm
        >>> rm.bench.multiply_accumulates(torch.nn.Linear(64, 32), torch.randn(10, 64))
        20480
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports triton if it is installed

    counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
    elements = 0

    def add(module: nn.Module, args: Any, output: Tensor) -> None:
        nonlocal elements
        elements += output.numel()

    with ExitStack() as hooks, torch.no_grad(), without_fast_path(), counter:
        for layer in filter(_is_counted, model.modules()):
            hooks.enter_context(layer.register_forward_hook(add))
        model(*inputs)
    return int(counter.get_total_flops()) // 2 + elements


def _is_counted(layer: nn.Module) -> bool:
    return isinstance(layer, _PER_ELEMENT) or (
        isinstance(layer, BlockLinear) and layer.bias is not None
    )


def flop_formulas() -> dict[Any, Any]:
    """Return a `custom_mapping` for torch's FLOP counter.

    The mapping adds attention on the CPU, since torch only counts attention on GPUs. It also adds
    the custom operators of rifflemix: attention with dropout, Sinkhorn attention and block-diagonal
    linear layers. Recomputation in a backward pass counts. Torch counts the backward pass of
    grouped convolutions as dense; the mapping corrects this.
    """
    from torch.utils.flop_counter import conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

    def forward(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return int(sdpa_flop_count(q, k, v))

    def backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return int(sdpa_backward_flop_count(grad, q, k, v))

    def dropout_backward(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return int(sdpa_backward_flop_count(q[:-1] + v[-1:], q, k, v))

    def blocks(q: Any, k: Any, v: Any, sort: Any, block_size: int, *_: Any, **__: Any) -> int:
        # Scores and values cover the block of a query and the sorted blocks; k and v are sorted.
        per_block = sort[-2] // sort[-1] + 1
        attended = 4 * math.prod(q) * per_block * block_size
        return int(attended + 4 * math.prod(sort) * block_size * q[-1])

    def blocks_backward(
        q: Any, k: Any, v: Any, sort: Any, block_size: int, *_: Any, **__: Any
    ) -> int:
        sorting = 4 * math.prod(sort) * block_size * q[-1]
        attended = blocks(q, k, v, sort, block_size) - sorting
        return int(attended // 2 * 5 + 3 * sorting)

    def maps(x: Any, parameters: Any, sizes: Any, *_: Any, **__: Any) -> int:
        return int(2 * math.prod(x[:-1]) * sum(weights_of_maps(sizes)))

    def maps_backward(
        x: Any,
        parameters: Any,
        grad_y: Any,
        sizes: Any,
        needs_x: bool,
        needs_parameters: bool,
        *_: Any,
        **__: Any,
    ) -> int:
        weights = weights_of_maps(sizes)
        # All layers except the last run again. Every layer computes input and weight gradients.
        again, to_x = sum(weights[:-1]), sum(weights) if needs_x else sum(weights[1:])
        to_weights = sum(weights) if needs_parameters else 0
        return int(2 * math.prod(x[:-1]) * (again + to_x + to_weights))

    def convolution_backward(
        grad: Any, x: Any, weight: Any, *args: Any, out_shape: Any, **kwargs: Any
    ) -> int:
        _, _, _, _, transposed, _, _, needed = args
        # The gradients of x and of the weight each cost the same as the forward pass.
        return int(conv_flop_count(x, weight, grad, transposed) * sum(needed[:2]))

    if triton_support.INSTALLED:
        importlib.import_module("rifflemix.ops.sinkhorn.triton")
    ours = torch.ops.rifflemix
    on_gpu = {
        "triton_sinkhorn_attention": blocks,
        "triton_sinkhorn_attention_backward": blocks_backward,
    }
    return {
        **dict(zip(compat.attention_on_cpu(), (forward, backward), strict=True)),
        torch.ops.aten.convolution_backward: convolution_backward,
        ours.dropout_attention: forward,
        ours.dropout_attention_backward: dropout_backward,
        ours.sinkhorn_attention: blocks,
        ours.sinkhorn_attention_backward: blocks_backward,
        ours.block_maps: maps,
        ours.block_maps_backward: maps_backward,
        **{getattr(ours, name): count for name, count in on_gpu.items() if hasattr(ours, name)},
    }
