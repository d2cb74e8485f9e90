"""Shapes, dtypes and devices: outputs match inputs."""

from __future__ import annotations

import torch

from rifflemix.testing.forms import DIM, MAX_LENGTH, Form, require, require_refusal, tokens

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
LENGTHS = (1, 2, 3, 7, 16, 33, MAX_LENGTH)


def card_is_complete(form: Form) -> None:
    """Check that the card is complete and consistent."""
    card = form.card
    for field in ("name", "title", "paper", "equations", "complexity"):
        require(bool(getattr(card, field)), f"card.{field} is empty")
    require(card.cost_exponent > 0, f"card.cost_exponent is {card.cost_exponent}")
    require(card.causal or not card.streaming, "card.streaming needs card.causal")


def shape_and_dtype_are_kept(form: Form) -> None:
    """Check that outputs are finite and have the inputs' shape and dtype.

    Lengths range from 1 to max_length.
    """
    for dtype in DTYPES:
        mixer = form.build(dtype=dtype)
        for length in LENGTHS:
            y = mixer(tokens(2, length).to(dtype))
            what = f"{length} tokens of {dtype}"
            require(y.shape == (2, length, DIM), f"{what} give shape {tuple(y.shape)}")
            require(y.dtype == dtype, f"{what} give {y.dtype}")
            require(bool(y.isfinite().all()), f"{what} give infinite values")


def no_samples_are_mixed_to_none(form: Form) -> None:
    """Check outputs and gradients of an empty batch, with and without mask."""
    mixer = form.build()
    for mask in form.masks(torch.zeros(0, 16, dtype=torch.bool)):
        x = tokens(0, 16).requires_grad_()
        y = mixer(x, key_padding_mask=mask)
        require(y.shape == (0, 16, DIM), f"no samples give shape {tuple(y.shape)}")
        y.sum().backward()
        require(x.grad is not None, "no samples have no gradient")


def shapes_are_known_without_memory(form: Form) -> None:
    """Check that the mixer runs on the meta device."""
    with torch.device("meta"):
        mixer = form.new()
        y = mixer(torch.empty(2, 16, DIM))
    require(y.is_meta and y.shape == (2, 16, DIM), f"got {y.device}, {tuple(y.shape)}")


def builds_with_few_arguments(form: Form) -> None:
    """Check that `dim` is enough, plus `max_length` if the card needs it.

    Without a needed `max_length`, the constructor must raise.
    """
    if form.card.needs_max_length:
        require_refusal(lambda: form.mixer(16), "max_length")
    mixer = form.mixer(16, max_length=32 if form.card.needs_max_length else None)
    y = mixer(torch.randn(1, 20, 16))
    require(y.shape == (1, 20, 16), f"got {tuple(y.shape)}")
