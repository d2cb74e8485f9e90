"""Batched gradients, as in torch's Jacobians, equal the separate gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import rifflemix as rm
from rifflemix.mixers import mixer_class
from rifflemix.testing import Form, forms_of
from rifflemix.testing.forms import DIM

FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]
STREAMS = [form for form in FORMS if form.card.streaming and form.causal]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # from a loop over the batch
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_batched_gradients_equal_single_gradients(form: Form) -> None:
    mixer = form.build(dtype=torch.float32).eval()
    x = torch.randn(2, 11, DIM, requires_grad=True)
    y = mixer(x)
    grads = torch.randn(2, *y.shape)

    def gradient(grad: Tensor, **options: bool) -> Tensor:
        (found,) = torch.autograd.grad(y, x, grad, retain_graph=True, **options)
        return found

    each = torch.stack([gradient(grad) for grad in grads])
    torch.testing.assert_close(gradient(grads, is_grads_batched=True), each, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # from a loop over the batch
@pytest.mark.parametrize(
    ("name", "options"),
    [("sinkhorn", {"top_k": 2, "gumbel": "never"}), ("longformer", {"num_global": 30})],
)
def test_gradients_of_each_sample(name: str, options: dict[str, Any]) -> None:
    """Check per-sample gradients, as needed to train with differential privacy."""
    mixer = rm.create_mixer(name, DIM, num_heads=4, max_length=64, **options).eval()
    parameters = {n: p.detach() for n, p in mixer.named_parameters()}
    x = torch.randn(3, 11, DIM)

    def loss(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(mixer, weights, (sample.unsqueeze(0),))
        return y.square().sum()

    gradient = torch.func.grad(loss)
    with sdpa_kernel(SDPBackend.MATH):
        found = torch.func.vmap(gradient, (None, 0))(parameters, x)
        for index, sample in enumerate(x):
            expected = gradient(parameters, sample)
            each = {n: g[index] for n, g in found.items()}
            torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # from a loop over the batch
@pytest.mark.parametrize("form", STREAMS, ids=str)
@torch.no_grad()
def test_streams_of_an_ensemble_can_be_vmapped(form: Form) -> None:
    """Check ensembles of streams: their positions cannot be compared with `max_length`."""
    mixer = form.build()
    x = torch.randn(3, 9, DIM, dtype=torch.float64)
    _, state = mixer.prefill(x[:, :-1])
    expected = mixer.step(x[:, -1], state)

    def one(x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y_t, after = mixer.step(
            x_t.unsqueeze(0), {n: part.unsqueeze(0) for n, part in state.items()}
        )
        return y_t[0], {n: part[0] for n, part in after.items()}

    torch.testing.assert_close(torch.func.vmap(one)(x[:, -1], state), expected)


@pytest.mark.parametrize("mode", ["random", "factorized", "dense"])
def test_learned_scores_under_transforms(mode: str) -> None:
    """Check score masks: torch's fused attention does not differentiate them."""
    mixer = rm.create_mixer("synthesizer", DIM, num_heads=4, max_length=16, mode=mode).eval()
    parameters = {n: p.detach() for n, p in mixer.named_parameters()}
    x, mask = torch.randn(3, 11, DIM), torch.arange(11) >= torch.tensor([[11], [8], [5]])

    def loss(weights: dict[str, Tensor], x: Tensor, mask: Tensor) -> Tensor:
        y = torch.func.functional_call(mixer, weights, (x,), {"key_padding_mask": mask})
        return y.square().sum()

    def of_sample(weights: dict[str, Tensor], x: Tensor, mask: Tensor) -> Any:
        return torch.func.grad(loss)(weights, x.unsqueeze(0), mask.unsqueeze(0))

    found = torch.func.vmap(of_sample, (None, 0, 0))(parameters, x, mask)
    expected = torch.autograd.grad(
        loss(dict(mixer.named_parameters()), x, mask), list(mixer.parameters())
    )
    for gradients, total in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(gradients.sum(0), total, rtol=1e-4, atol=1e-4)
    one = torch.func.vmap(lambda x, mask: mixer(x[None], key_padding_mask=mask[None])[0])
    torch.testing.assert_close(one(x, mask), mixer(x, key_padding_mask=mask))
