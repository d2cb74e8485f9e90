"""How many multiply-accumulates (MACs) a forward pass takes, as vision papers print them."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix import compat
from rifflemix.models.calling import without_fast_path
from rifflemix.nn.butterfly import BlockLinear
from rifflemix.ops import triton_support
from rifflemix.ops.butterfly.cpu import weights_of_maps

# One operation for each number that comes out.
_PER_ELEMENT = (nn.LayerNorm, nn.BatchNorm2d, nn.GELU, nn.ELU, nn.ReLU)


def multiply_accumulates(model: nn.Module, *inputs: Tensor) -> int:
    """MACs of `model(*inputs)`; on the meta device nothing is computed.

    Matrix products, convolutions and attention by torch's FLOP counter, two FLOPs to a MAC; one
    for every number that a norm or an activation layer puts out, or to which a block-diagonal map
    adds a bias. The counter behind the Dimension Mixer's tables does so, and there these are up
    to 14 % of the whole. Everything else has none: Fourier transforms, sorts, shifts, products
    number by number. Mixers of long convolutions (S4, Mega, FNet ...) take more than is counted.

    Args:
        model: any module; its parameters and mode are left as they are.
        inputs: of its forward.
    """
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton, where there is one

    counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
    elements = 0

    def add(module: nn.Module, args: Any, output: Tensor) -> None:
        nonlocal elements
        elements += output.numel()

    hooks = [layer.register_forward_hook(add) for layer in model.modules() if _is_counted(layer)]
    try:
        with torch.no_grad(), without_fast_path(), counter:
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return int(counter.get_total_flops()) // 2 + elements


def _is_counted(layer: nn.Module) -> bool:
    return isinstance(layer, _PER_ELEMENT) or (
        isinstance(layer, BlockLinear) and layer.bias is not None
    )


def flop_formulas() -> dict[Any, Any]:
    """A `custom_mapping` for torch's counter, which knows its own attention on GPUs only.

    Attention with dropout, Sinkhorn attention and block-diagonal maps, which run in kernels of this
    library, are in it too. What a backward pass finds again counts. Torch's own formula takes the
    weights of grouped convolutions for dense ones in backward passes.
    """
    from torch.utils.flop_counter import (
        conv_flop_count,
        sdpa_backward_flop_count,
        sdpa_flop_count,
    )

    def forward(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return int(sdpa_flop_count(q, k, v))

    def backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return int(sdpa_backward_flop_count(grad, q, k, v))

    def dropout_backward(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return int(sdpa_backward_flop_count(q[:-1] + v[-1:], q, k, v))

    def blocks(q: Any, k: Any, v: Any, sort: Any, block_size: int, *_: Any, **__: Any) -> int:
        # Each query meets its block and the sorted ones beside it twice, each row all sources.
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
        # All but the last map run again; each gives a gradient to what came to it and its weight.
        again, to_x = sum(weights[:-1]), sum(weights) if needs_x else sum(weights[1:])
        to_weights = sum(weights) if needs_parameters else 0
        return int(2 * math.prod(x[:-1]) * (again + to_x + to_weights))

    def convolution_backward(
        grad: Any, x: Any, weight: Any, *args: Any, out_shape: Any, **kwargs: Any
    ) -> int:
        _, _, _, _, transposed, _, _, needed = args
        # The gradients of x and of the weight take as much as the forward pass.
        return int(conv_flop_count(x, weight, grad, transposed) * sum(needed[:2]))

    if triton_support.INSTALLED:
        importlib.import_module("rifflemix.ops.sinkhorn.triton_attention")
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
