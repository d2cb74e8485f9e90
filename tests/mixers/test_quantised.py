"""Models under torch's dynamic quantization. It removes the weights of linear layers."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import rifflemix as rm
from rifflemix.mixers import mixer_class
from rifflemix.testing import Form, forms_of
from rifflemix.testing.forms import DIM

FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]


def _quantised(module: nn.Module) -> nn.Module:
    quantisation = pytest.importorskip("torch.ao.quantization")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch name torchao instead
        quantised = quantisation.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    assert isinstance(quantised, nn.Module)
    return quantised


@pytest.mark.parametrize("form", FORMS, ids=str)
@torch.no_grad()
def test_quantised_mixers_run(form: Form) -> None:
    quantised = _quantised(form.build(dtype=torch.float32))
    assert quantised(torch.randn(2, 11, DIM)).isfinite().all()


STREAMS = [form for form in FORMS if form.card.streaming and form.causal]


@pytest.mark.parametrize("form", STREAMS, ids=str)
@torch.no_grad()
def test_quantised_mixers_stream(form: Form) -> None:
    """Check steps from an initial state and after a prompt.

    The initial state is created without a device and a dtype.
    """
    quantised = _quantised(form.build(dtype=torch.float32).eval())
    x = torch.randn(2, 5, DIM)
    state = quantised.init_state(2)
    for x_t in x[:, :4].unbind(1):
        _, state = quantised.step(x_t, state)
    stepped, _ = quantised.step(x[:, 4], state)
    after, _ = quantised.step(x[:, 4], quantised.prefill(x[:, :4])[1])
    torch.testing.assert_close(stepped, after, atol=0.2, rtol=0.2)


@torch.no_grad()
def test_quantised_head_of_a_language_model() -> None:
    model = rm.create_model(
        "gpt", vocab_size=11, dim=16, num_layers=1, num_heads=2, max_length=8, tie_embeddings=False
    ).eval()
    tokens = torch.randint(11, (2, 8))
    torch.testing.assert_close(_quantised(model)(tokens), model(tokens), atol=0.1, rtol=0.1)


@torch.no_grad()
def test_quantised_embedding_of_vectors() -> None:
    model = rm.create_model("point_cloud", dim=16, num_layers=1, max_length=8).eval()
    points = torch.randn(2, 8, 3)
    torch.testing.assert_close(_quantised(model)(points), model(points), atol=0.1, rtol=0.1)
