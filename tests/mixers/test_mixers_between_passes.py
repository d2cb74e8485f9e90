"""Tensors that change between the passes: torch's error, or the gradient of the forward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers import TokenMixer, mixer_class
from rifflemix.ops.dispatch import prefer_backend
from rifflemix.testing import Form, forms_of

VERSION_ERROR = "inplace"
FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]


def gradients(mixer: TokenMixer, masked: bool, changed: str = "") -> list[Tensor | None]:
    """Return gradients of tokens and parameters; `changed` is modified after the call."""
    mixer = copy.deepcopy(mixer)
    torch.manual_seed(3)
    tokens = torch.randn(2, 12, mixer.dim, requires_grad=True)
    x, mask = tokens * 1, None
    if masked:
        mask = torch.arange(12) >= torch.tensor([[9], [12]])
    y = mixer(x, key_padding_mask=mask)
    parameters = [p for p in mixer.parameters() if p.requires_grad]
    with torch.no_grad():
        if changed == "tokens":
            x.add_(1)
        elif changed == "mask" and mask is not None:
            mask.logical_not_()
        elif changed.isdigit():
            parameters[int(changed)].add_(1)
    if changed == "output":
        y = y.mul_(2)
    weight = torch.linspace(-1, 2, y.numel()).view(y.shape)
    return list(torch.autograd.grad((y * weight).sum(), [tokens, *parameters], allow_unused=True))


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_tensors_changed_before_backward_are_detected_or_harmless(form: Form, backend: str) -> None:
    mixer = form.build(dtype=torch.float32)
    count = sum(p.requires_grad for p in mixer.parameters())
    with prefer_backend(backend):
        for masked in (False, True) if form.card.padding else (False,):
            expected = gradients(mixer, masked)
            inputs = ("tokens", "mask") if masked else ("tokens",)
            for changed in (*inputs, "output", *map(str, range(count))):
                try:
                    found = gradients(mixer, masked, changed)
                except RuntimeError as error:
                    if VERSION_ERROR not in str(error):
                        raise
                    continue
                factor = 2 if changed == "output" else 1
                for gradient, wanted in zip(found, expected, strict=True):
                    if wanted is None:
                        assert gradient is None
                    elif not torch.equal(gradient, factor * wanted):
                        torch.testing.assert_close(gradient, factor * wanted, msg=changed)
