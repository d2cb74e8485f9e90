"""Inputs: outputs match shapes, dtypes and devices; bad arguments are named in errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from rifflemix.testing.forms import DIM, HEADS, MAX_LENGTH, Form, require, require_refusal, tokens

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


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "heads do not divide": ({"num_heads": 5}, "num_heads"),
    "no heads": ({"num_heads": 0}, "num_heads"),
    "heads as float": ({"num_heads": 2.0}, "num_heads"),
    "heads as truth": ({"num_heads": True}, "num_heads"),
    "no channels": ({"dim": 0}, "dim"),
    "channels as float": ({"dim": 32.0}, "dim"),
    "channels as text": ({"dim": "32"}, "dim"),
    "channels as tensor": ({"dim": torch.tensor(32)}, "dim"),
    "no length": ({"max_length": 0}, "max_length"),
    "length as float": ({"max_length": 4.5}, "max_length"),
    "layer outside the stack": ({"layer_index": 2, "num_layers": 2}, "layer_index"),
    "negative layer": ({"layer_index": -1}, "layer_index"),
    "layer as text": ({"layer_index": "0"}, "layer_index"),
    "no layers": ({"num_layers": 0}, "num_layers"),
    "layers as float": ({"num_layers": 1.5}, "num_layers"),
    "causal as text": ({"causal": "yes"}, "causal"),
    "causal as number": ({"causal": 1}, "causal"),
    "dropout of one": ({"dropout": 1.0}, "dropout"),
    "dropout as text": ({"dropout": "a"}, "dropout"),
    "no dropout": ({"dropout": None}, "dropout"),
}


def bad_settings_are_named(form: Form) -> None:
    """Check that the constructor rejects arguments with wrong values or types."""
    good = {"dim": DIM, "num_heads": HEADS, "max_length": MAX_LENGTH}
    for what, (change, named) in BAD_SETTINGS.items():
        try:
            require_refusal(partial(form.mixer, **{**good, **change}), f"{named}: expected")
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None


def bad_inputs_are_named(form: Form) -> None:
    """Check that `forward` reports wrong inputs before torch raises an error."""
    mixer = form.build(dtype=torch.float32)
    x = torch.randn(2, 4, DIM)
    calls: dict[str, tuple[Any, Any, str]] = {
        "rank": (torch.randn(4, DIM), None, "x"),
        "channels": (torch.randn(2, 4, DIM - 1), None, "x"),
        "integers": (torch.ones(2, 4, DIM, dtype=torch.int64), None, "x"),
        "no tokens": (torch.randn(2, 0, DIM), None, "x"),
        "too long": (torch.randn(2, MAX_LENGTH + 1, DIM), None, "max_length"),
        "mask shape": (x, torch.zeros(2, 5, dtype=torch.bool), "key_padding_mask"),
        "mask dtype": (x, torch.zeros(2, 4), "key_padding_mask"),
    }
    if any(True for _ in mixer.parameters()):
        calls["another dtype than the parameters'"] = (x.double(), None, "x")
    for what, (inputs, mask, named) in calls.items():
        try:
            run = partial(mixer, inputs, key_padding_mask=mask)
            require_refusal(run, named, "expected", "got")
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
