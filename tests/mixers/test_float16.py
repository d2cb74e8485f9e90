"""float16 sums stay below 65,504, and gradients are never 0 / 0.

1e-12 is zero in float16, so it cannot protect a division.
"""

from __future__ import annotations

import pytest
import torch

import rifflemix as rm
from rifflemix.mixers import mixer_class
from rifflemix.testing import Form, forms_of
from rifflemix.testing.forms import DIM

FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]
LINEAR = [form for form in FORMS if form.card.name in {"linear", "cosformer", "performer"}]


@pytest.mark.parametrize("autocast", [False, True], ids=["half", "autocast"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_outputs_and_gradients_are_finite(form: Form, autocast: bool) -> None:
    """Check a fully padded sample, zero tokens and the first token."""
    mixer = form.build(dtype=torch.float32 if autocast else torch.float16)
    mask = torch.zeros(3, 11, dtype=torch.bool)
    mask[1] = True
    for key_padding_mask in form.masks(mask):
        x = torch.randn(3, 11, DIM).to(torch.float32 if autocast else torch.float16)
        x[2] = 0.0
        x.requires_grad_()
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            y = mixer(x, key_padding_mask=key_padding_mask)
        assert y.isfinite().all()
        y.float().sum().backward()
        for leaf in (x, *mixer.parameters()):
            assert leaf.grad is None or leaf.grad.isfinite().all()


@pytest.mark.parametrize("autocast", [False, True], ids=["half", "autocast"])
@pytest.mark.parametrize("form", LINEAR, ids=str)
@torch.no_grad()
def test_linear_attention_over_many_tokens(form: Form, autocast: bool) -> None:
    """Check sums of weights and values beyond the range of float16."""
    mixer = form.mixer(16, num_heads=2, max_length=4096, causal=form.causal)
    mixer.qkv.weight[:-16] *= 3.0
    mixer.qkv.bias += 1.0
    x = torch.randn(1, 4096, 16)
    exact = mixer.double()(x.double())
    mixer = mixer.float() if autocast else mixer.half()
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        y = mixer(x if autocast else x.half()).double()
    assert (y - exact).norm() < 5e-3 * exact.norm()


def test_unnormalised_linear_attention_over_many_tokens() -> None:
    """Check that only the scaled sums need to fit float16.

    The mixer divides these sums by the root of the number of tokens.
    """
    mixer = rm.create_mixer("linear", 16, normalize=False).requires_grad_(False)
    mixer.qkv.bias += 1.0
    x = torch.randn(1, 4096, 16)
    expected = mixer(x)
    torch.testing.assert_close(mixer.half()(x.half()).float(), expected, atol=0.5, rtol=5e-3)


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_float16_compiles_to_one_graph(name: str) -> None:
    mixer = rm.create_mixer(name, 16).eval().requires_grad_(False)
    x = torch.randn(1, 9, 16)
    torch.compiler.reset()
    with torch.autocast("cpu", torch.float16):
        found = torch.compile(mixer, fullgraph=True, backend="eager")(x)
        torch.testing.assert_close(found, mixer(x))
