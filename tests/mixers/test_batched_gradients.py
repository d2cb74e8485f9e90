"""Several gradients taken at once, as torch's Jacobians take them, are each of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers import mixer_class
from rifflemix.testing import Form, forms_of
from rifflemix.testing.forms import DIM

FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of a loop over the batch
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_batch_of_gradients_is_each_of_them(form: Form) -> None:
    mixer = form.build(dtype=torch.float32).eval()
    x = torch.randn(2, 11, DIM, requires_grad=True)
    y = mixer(x)
    grads = torch.randn(2, *y.shape)

    def gradient(grad: Tensor, **options: bool) -> Tensor:
        (found,) = torch.autograd.grad(y, x, grad, retain_graph=True, **options)
        return found

    each = torch.stack([gradient(grad) for grad in grads])
    torch.testing.assert_close(gradient(grads, is_grads_batched=True), each, rtol=1e-4, atol=1e-5)
