"""Tensors changed between forward and backward raise torch's error, or do not affect gradients."""

from __future__ import annotations

import pytest
import torch
from test_surroundings import CALLS, Inputs, first, inputs
from torch import Tensor

from rifflemix.ops.dispatch import prefer_backend

VERSION_ERROR = "inplace"


def change(value: Tensor) -> None:
    """Change the values in place, so that torch increments the version counter."""
    with torch.no_grad():
        if value.dtype == torch.bool:
            value.logical_not_()
        else:
            value.add_(1)


def leaves() -> Inputs:
    return {
        key: value.clone().requires_grad_(value.is_floating_point())
        for key, value in inputs().items()
    }


def gradients(name: str, changed: str | None = None) -> dict[str, Tensor | None]:
    """Return gradients of the first output, with an optional change after the call.

    `changed` names the changed tensor: an input or "output".
    """
    learned = leaves()
    given = {key: value * 1 if value.requires_grad else value for key, value in learned.items()}
    y = first(CALLS[name](given))
    if not y.requires_grad:
        return {}
    if changed == "output":
        y = y.mul_(2)
    elif changed is not None:
        change(given[changed])
    weight = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    (y * weight).sum().backward()
    return {key: value.grad for key, value in learned.items()}


def require_same(found: dict[str, Tensor | None], expected: dict[str, Tensor | None]) -> None:
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, msg=key)


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("name", CALLS)
def test_inputs_changed_before_backward_are_detected_or_harmless(name: str, backend: str) -> None:
    with prefer_backend(backend):
        expected = gradients(name)
        doubled = {k: None if g is None else 2 * g for k, g in expected.items()}
        for changed in (*inputs(), "output"):
            try:
                found = gradients(name, changed)
            except RuntimeError as error:
                if VERSION_ERROR not in str(error):
                    raise
                continue
            require_same(found, doubled if changed == "output" else expected)
