"""Short convolutions before mixers: values, padding, packed batches, streaming, export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.nn.block import ShortConvolution

TINY: dict[str, Any] = {"dim": 8, "num_heads": 2, "vocab_size": 11, "max_length": 16}


def convolution(size: int, causal: bool) -> ShortConvolution:
    torch.manual_seed(0)
    return ShortConvolution(4, size, causal=causal).double()


def with_torch(layer: ShortConvolution, x: Tensor) -> Tensor:
    """Compute the same with torch's convolution."""
    left = layer.size - 1 if layer.causal else layer.size // 2
    x = F.pad(x.transpose(1, 2), (left, layer.size - 1 - left))
    weight = layer.weight.flip(0).T.unsqueeze(1)
    return F.conv1d(x, weight, layer.bias, groups=layer.dim).transpose(1, 2)


@pytest.mark.parametrize(
    ("size", "causal"), [(2, True), (3, True), (4, True), (3, False), (5, False)]
)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_equals_the_convolution_of_torch(size: int, causal: bool, length: int) -> None:
    layer, x = convolution(size, causal), torch.randn(2, length, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x), with_torch(layer, x))


@pytest.mark.parametrize(("size", "causal"), [(3, True), (5, False)])
def test_padding_anywhere_is_ignored(size: int, causal: bool) -> None:
    layer, x = convolution(size, causal), torch.randn(2, 9, 4, dtype=torch.float64)
    mask = torch.tensor([[0, 1, 0, 0, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 1, 1]]).bool()
    x[mask] = torch.nan
    y = layer(x, key_padding_mask=mask)
    assert y.isfinite().all()
    for row in range(2):
        alone = layer(x[row][~mask[row]].unsqueeze(0))
        torch.testing.assert_close(y[row][~mask[row]], alone[0])


@pytest.mark.parametrize(("size", "causal"), [(3, True), (5, False)])
def test_packed_sequences_do_not_affect_each_other(size: int, causal: bool) -> None:
    layer, x = convolution(size, causal), torch.randn(1, 9, 4, dtype=torch.float64)
    y = layer(x, cu_seqlens=torch.tensor([0, 4, 4, 5, 9]))
    for start, end in ((0, 4), (4, 5), (5, 9)):
        torch.testing.assert_close(y[:, start:end], layer(x[:, start:end]))


def test_streams_equal_the_parallel_output() -> None:
    layer, x = convolution(3, True), torch.randn(2, 6, 4, dtype=torch.float64)
    expected = layer(x)
    state = layer.init_state(2, device=x.device, dtype=x.dtype)
    for n in range(6):
        y_t, state = layer.step(x[:, n], state)
        torch.testing.assert_close(y_t, expected[:, n])
    y, after = layer.prefill(x, None)
    torch.testing.assert_close(after, state)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("mixer", ["softmax", "csp", "tssa", "mega"])
def test_models_stream_after_a_padded_prompt(mixer: str) -> None:
    torch.manual_seed(0)
    model = rm.create_model("gpt", mixer=mixer, short_conv=3, **TINY).double().eval()
    tokens = torch.randint(11, (2, 10))
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[1, :3] = True
    logits, state = model.prefill(tokens[:, :7], key_padding_mask=mask)
    for n in range(7, 10):
        logits, state = model.step(tokens[:, n], state)
    torch.testing.assert_close(logits[0], model(tokens[:1])[0, -1])
    torch.testing.assert_close(logits[1], model(tokens[1:, 3:])[0, -1])
    state = model.init_state(2)
    for n in range(10):
        logits, state = model.step(tokens[:, n], state)
    torch.testing.assert_close(logits, model(tokens)[:, -1])


@pytest.mark.parametrize("mixer", ["butterfly", "csp"])
def test_the_encoder_has_centered_convolutions(mixer: str) -> None:
    torch.manual_seed(0)
    model = rm.create_model("encoder", mixer=mixer, short_conv=3, num_classes=3, **TINY).eval()
    plain = rm.create_model("encoder", mixer=mixer, num_classes=3, **TINY)
    assert model.num_parameters() - plain.num_parameters() == 2 * 4 * 8
    assert all(not block.short_conv.causal for block in model.blocks)
    tokens = torch.randint(11, (2, 12))
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[:, 8:] = True
    if mixer == "csp":
        torch.testing.assert_close(model(tokens, key_padding_mask=mask), model(tokens[:, :8]))
    program = torch.export.export(model, (tokens,), {"key_padding_mask": mask})
    torch.testing.assert_close(
        program.module()(tokens, key_padding_mask=mask), model(tokens, key_padding_mask=mask)
    )


def test_causal_models_have_causal_convolutions() -> None:
    torch.manual_seed(0)
    model = rm.create_model(
        "encoder", mixer="csp", causal=True, short_conv=3, pool="none", num_classes=3, **TINY
    ).eval()
    tokens = torch.randint(11, (1, 12))
    other = tokens.clone()
    other[:, 7:] = 0
    torch.testing.assert_close(model(tokens)[:, :7], model(other)[:, :7])


@pytest.mark.parametrize(
    ("model", "size"), [("encoder", 4), ("encoder", 1), ("gpt", 0), ("gpt", 2.5)]
)
def test_bad_sizes_are_refused(model: str, size: Any) -> None:
    with pytest.raises(InputError, match="short_conv"):
        rm.create_model(model, short_conv=size, **TINY)
