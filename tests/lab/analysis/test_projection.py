"""Check that outputs before the output projection reproduce the output of the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.lab.analysis import Call, trace
from rifflemix.lab.analysis.kinds.spectrum import before_projection
from rifflemix.lab.analysis.trace import undisturbed

C, H, N = 8, 2, 6
MASK = torch.tensor([[False] * N, [False, True, False, False, True, True]])
# Layers that continue after their projection: a gate, a residual, or two branches.
NOT_SEPARABLE = ("exp_smoothing", "long_conv", "spade")
PROJECTED = ("softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn", "linear", "xca")


def call_of(name: str, mask: Tensor | None = None, **options: Any) -> Call:
    mixer = rm.create_mixer(name, C, num_heads=H, max_length=N, **options).double()
    x = torch.randn(2, N, C, dtype=torch.float64)
    with undisturbed(mixer):
        y = mixer(x, key_padding_mask=mask)
    return Call("mixer", mixer, x, y, mask)


def projection_of(module: nn.Module) -> nn.Module:
    inner = getattr(module, "attention", module)
    return inner.out_proj if hasattr(inner, "out_proj") else inner.proj


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize("name", PROJECTED)
def test_projection_of_the_result_is_the_output(name: str, mask: Tensor | None) -> None:
    call = call_of(name, mask)
    before = before_projection(call)
    assert before is not None
    with torch.no_grad():
        y = projection_of(call.module)(before)
    if mask is not None:
        assert not before[mask].any()
        y = y.masked_fill(mask.unsqueeze(-1), 0.0)
    torch.testing.assert_close(y, call.y)
    assert not torch.allclose(before, call.y)


@pytest.mark.parametrize("name", rm.list_mixers())
def test_every_output_projection_is_separated_or_reported(name: str) -> None:
    before = before_projection(call_of(name))
    assert (before is None) == (name in NOT_SEPARABLE)


def test_wider_layer_has_its_inner_channels() -> None:
    before = before_projection(call_of("csp", inner_dim=3 * C))
    assert before is not None
    assert before.shape == (2, N, 3 * C)


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_of_torch_is_separated(batch_first: bool) -> None:
    layer = nn.MultiheadAttention(C, H, batch_first=batch_first)
    weight = layer.out_proj.weight.clone()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    ((call,),) = trace(Model(), [torch.randn(2, N, C)])
    before = before_projection(call)
    assert before is not None
    with torch.no_grad():
        torch.testing.assert_close(layer.out_proj(before), call.y)
    assert torch.equal(layer.out_proj.weight, weight), "the model is unchanged"
    assert not torch.allclose(before, call.y)
