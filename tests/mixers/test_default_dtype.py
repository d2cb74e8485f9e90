"""Mixers use torch's default dtype, also for models too large for float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import rifflemix as rm
from rifflemix.mixers.registry import mixer_class
from rifflemix.testing.forms import DIM, Form, forms_of

FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_parameter_has_the_default_dtype(form: Form, dtype: torch.dtype) -> None:
    mixer = form.new().eval()
    others = {name: p.dtype for name, p in mixer.named_parameters() if p.dtype != dtype}
    assert not others
    assert all(bool(p.isfinite().all()) for p in mixer.parameters())
    assert mixer(torch.randn(2, 9, DIM)).dtype == dtype
