"""Outputs of a layer before its output projection."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.lab.analysis.trace import Call, TorchAttention, undisturbed

_NAMES = ("proj", "out_proj")


def before_projection(call: Call) -> Tensor | None:
    """Return the output of a layer before its output projection W_O.

    The layer runs a second time without W_O. The projection of that result must be the recorded
    output of the layer.

    Args:
        call: a call that `trace` recorded.

    Returns:
        (B, N, C'), zero at padded positions. The output itself if the layer has no module named
        `proj` or `out_proj`. None if the projection of the result is not the output, as in layers
        with further operations after the projection.

    Source: CSP, Figure 3; Sliceformer, Figure 4. Both show matrices before W_O.
    """
    if isinstance(call.module, TorchAttention):
        projections: list[nn.Module] = [call.module.attention.out_proj]
    else:
        projections = _projections(call.module)
    for projection in projections:
        y = _without(call, projection)
        if _reproduces(call, projection, y):
            return y
    return None if projections else _padded_with_zeros(call, call.y)


def _projections(mixer: nn.Module) -> list[nn.Module]:
    """Find submodules with the name of an output projection, the outermost first."""
    found = (getattr(module, name, None) for module in mixer.modules() for name in _NAMES)
    return list(dict.fromkeys(child for child in found if isinstance(child, nn.Module)))


def _without(call: Call, projection: nn.Module) -> Tensor:
    """Run the layer without its output projection."""
    layer = call.module
    if isinstance(layer, TorchAttention):
        layer = _with_identity(layer)
        return _padded_with_zeros(call, _run(layer, call))
    hook = projection.register_forward_hook(_leave_out)
    try:
        return _padded_with_zeros(call, _run(layer, call))
    finally:
        hook.remove()


def _with_identity(layer: TorchAttention) -> TorchAttention:
    """Copy torch's attention with an identity as W_O.

    torch reads the weights of W_O and does not call the module.
    """
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        nn.init.eye_(layer.attention.out_proj.weight)
        if layer.attention.out_proj.bias is not None:
            layer.attention.out_proj.bias.zero_()
    return layer


def _leave_out(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Replace the output of a projection by its input."""
    y: Tensor = args[0]
    return y


def _run(layer: nn.Module, call: Call) -> Tensor:
    with undisturbed(layer):
        y: Tensor = layer(call.x, key_padding_mask=call.key_padding_mask)
    return y


def _reproduces(call: Call, projection: nn.Module, y: Tensor) -> bool:
    """Check that the projection of `y` reproduces the layer's output."""
    expected = _padded_with_zeros(call, call.y)
    if isinstance(projection, nn.Linear) and y.shape[-1] != projection.in_features:
        return False
    with undisturbed(projection):
        projected = _padded_with_zeros(call, projection(y))
    if projected.shape != expected.shape:
        return False
    share = 1e-4 if torch.finfo(expected.dtype).bits > 16 else 2e-2
    distance = (projected - expected).abs().amax()
    return bool(distance <= share * expected.abs().amax().clamp_min(1e-6))


def _padded_with_zeros(call: Call, y: Tensor) -> Tensor:
    mask = call.key_padding_mask
    return y if mask is None else y.masked_fill(mask.unsqueeze(-1), 0.0)
