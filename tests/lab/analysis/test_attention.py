"""Tests of `trace` and `matrix_of` on torch's attention and on cross-attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.analysis import analyze, matrix_of, trace
from rifflemix.lab.analysis.trace import TorchAttention
from rifflemix.mixers import SinkhornCrossAttention, SoftmaxCrossAttention

B, N, M, C, H = 2, 7, 5, 8, 2
PADDING = torch.arange(N) >= torch.tensor([[N], [4]])


def by_hand(layer: nn.MultiheadAttention, x: Tensor, memory: Tensor, hidden: Any) -> Any:
    """Compute softmax(q k^T / sqrt(d)) in float64 with numpy.

    `hidden` (B, N, M) is True for masked pairs.
    """
    weight, bias = (p.detach().double().numpy() for p in (layer.in_proj_weight, layer.in_proj_bias))
    q = (x.double().numpy() @ weight[:C].T + bias[:C]).reshape(B, -1, H, C // H)
    k = (memory.double().numpy() @ weight[C : 2 * C].T + bias[C : 2 * C]).reshape(B, -1, H, C // H)
    scores = np.einsum("bnhd,bmhd->bhnm", q, k) / np.sqrt(C // H)
    scores = np.where(np.asarray(hidden)[:, None], -np.inf, scores)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded and causal"])
def test_layers_of_torch_are_mixers(batch_first: bool, masked: bool) -> None:
    """Check torch's encoder, because it uses additive masks and a fast path without calls."""
    block = nn.TransformerEncoderLayer(C, H, 16, batch_first=batch_first)
    model = nn.TransformerEncoder(block, num_layers=2, enable_nested_tensor=batch_first)
    x = torch.randn(B, N, C)
    inputs: dict[str, Any] = {"src": x if batch_first else x.transpose(0, 1)}
    hidden = torch.zeros(B, N, N, dtype=torch.bool)
    if masked:
        causal = torch.ones(N, N, dtype=torch.bool).triu(1)
        inputs |= {"mask": causal, "src_key_padding_mask": PADDING}
        hidden = causal | PADDING[:, None, :]
    fast = torch.backends.mha.get_fastpath_enabled()
    (calls,) = trace(model, [inputs])
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert [call.name for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    for call, layer in zip(calls, model.layers, strict=True):
        assert isinstance(call.module, TorchAttention)
        assert call.module.attention is layer.self_attn
        assert call.x.shape == call.y.shape == (B, N, C)
        assert call.memory is None
        again = call.module.eval()(call.x, key_padding_mask=call.key_padding_mask)
        torch.testing.assert_close(again, call.y)
        expected = by_hand(layer.self_attn, call.x, call.x, hidden)
        if masked:
            assert call.key_padding_mask is not None
            assert torch.equal(call.key_padding_mask, PADDING)
            expected[PADDING[:, None].expand(B, H, N).numpy()] = 0.0
        found = matrix_of(call)
        assert found is not None
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    if not masked:
        torch.testing.assert_close(calls[0].x, x)


def test_a_plain_model_of_torch_is_analysed() -> None:
    block = nn.TransformerEncoderLayer(C, H, 16, batch_first=True)
    model = nn.TransformerEncoder(block, num_layers=2)
    for kind in ("spectrum", "softmax-spread", "collapse", "pattern"):
        finding = analyze(kind, model, [torch.randn(B, N, C)])
        assert "TransformerEncoder" in finding.data["models"]


class Positioned(nn.Module):
    """Attention that adds positions to queries and keys only, as DETR; one mask per head."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(C, H, batch_first=True)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        where = x + torch.linspace(0, 1, N)[:, None]
        return self.attention(where, where, x, attn_mask=self.mask)[0]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "a mask for each head"])
def test_values_without_the_positions_of_the_keys(masked: bool) -> None:
    heads = torch.randn(B * H, N, N).triu(1) > 0.5
    model = Positioned(heads if masked else None)
    x = torch.randn(B, N, C)
    ((call,),) = trace(model, [x])
    again = call.module.eval()(call.x)
    torch.testing.assert_close(again, call.y)
    for kind in ("spectrum", "softmax-spread", "collapse", "pattern"):
        assert "Positioned" in analyze(kind, model, [x]).data["models"]
    reach = analyze("pattern", model, [x]).arrays["Positioned/after1"]
    hidden = heads[:H].all(0).numpy() if masked else np.zeros((N, N), bool)
    np.testing.assert_array_equal(reach, ~hidden)


def test_a_decoder_of_torch_attends_to_its_memory() -> None:
    layer = nn.TransformerDecoderLayer(C, H, 16, batch_first=True)
    model = nn.TransformerDecoder(layer, num_layers=1)
    x, memory = torch.randn(B, M, C), torch.randn(B, N, C)
    batch = {"tgt": x, "memory": memory, "memory_key_padding_mask": PADDING}
    assert [call.name for call in next(trace(model, [batch]))] == ["layers.0.self_attn"]
    _, cross = next(trace(model, [batch], cross=True))
    assert cross.name == "layers.0.multihead_attn"
    assert cross.memory is not None
    assert torch.equal(cross.memory, memory)
    found = matrix_of(cross)
    assert found is not None
    hidden = PADDING[:, None, :].expand(B, M, N)
    expected = by_hand(model.layers[0].multihead_attn, cross.x, memory, hidden)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", ["softmax", "sinkhorn"])
def test_rifflemix_cross_attention_to_a_memory(kind: str, masked: bool) -> None:
    """Check that the matrix times the values equals the output of our cross-attention."""
    layer: Any = SoftmaxCrossAttention(C, num_heads=H)
    if kind == "sinkhorn":
        layer = SinkhornCrossAttention(C, num_heads=H, max_length=8, block_size=2)
    layer = layer.double()
    x, memory = (torch.randn(B, n, C, dtype=torch.float64) for n in (M, N))
    batch = {"x": x, "memory": memory} | ({"key_padding_mask": PADDING} if masked else {})
    ((call,),) = trace(layer, [batch], cross=True)
    found = matrix_of(call)
    assert found is not None
    assert found.shape == (B, H, M, N)
    if masked:
        assert not found[1, :, :, 4:].any()
        memory = memory.masked_fill(PADDING[..., None], 0.0)
    values = layer.key_value(memory).chunk(2, -1)[1].unflatten(-1, (H, -1)).transpose(1, 2)
    torch.testing.assert_close(layer.proj((found @ values).transpose(1, 2).flatten(2)), call.y)
    if kind == "softmax":
        torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
    with pytest.raises(InputError, match=type(layer).__name__):
        next(trace(layer, [batch]))


def test_a_sequence_to_sequence_model_has_both() -> None:
    settings = {"vocab_size": 9, "max_length": 8, "dim": C, "num_heads": H, "num_layers": 1}
    model = rm.create_model("seq2seq", **settings)
    batch = {"inputs": torch.randint(9, (B, N)), "decoder_inputs": torch.randint(9, (B, M))}
    plain, both = (next(trace(model, [batch], cross=cross)) for cross in (False, True))
    assert len(both) == len(plain) + 1
    (call,) = (call for call in both if call.memory is not None)
    assert call.x.shape[:2] == (B, M)
    assert call.memory is not None
    assert call.memory.shape[:2] == (B, N)
