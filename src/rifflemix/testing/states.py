"""State and randomness: state_dict, seeds, and inputs that stay unchanged."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rifflemix.mixers.base import TokenMixer
from rifflemix.testing.forms import DIM, Form, require, require_close, tokens


def state_dict_holds_everything(form: Form) -> None:
    """Check that loading a state_dict or copying a mixer gives identical outputs.

    A forward pass must not create parameters: an optimizer would not train them, and a new mixer
    could not load them.
    """
    mixer = form.build()
    torch.manual_seed(99)
    other = form.new().double().eval()
    copied = copy.deepcopy(mixer)
    names = set(mixer.state_dict())
    other.load_state_dict(mixer.state_dict())
    x = tokens(2, 19)
    y = mixer(x)
    require(torch.equal(other(x), y), "outputs differ after load_state_dict")
    require(torch.equal(copied(x), y), "outputs of copy.deepcopy differ")
    made = sorted(names ^ set(mixer.state_dict()))
    require(not made, f"a forward pass changes which names there are: make {made} in __init__")


def outputs_and_gradients(mixer: TokenMixer, x: Tensor) -> list[Tensor]:
    """Return the outputs and gradients of one forward and backward pass."""
    inputs = x.clone().requires_grad_()
    y = mixer(inputs)
    used = [inputs, *(p for p in mixer.parameters() if p.requires_grad)]
    gradients = torch.autograd.grad(y.square().sum(), used, allow_unused=True)
    return [y.detach(), *(g for g in gradients if g is not None)]


def require_same(first: list[Tensor], second: list[Tensor], what: str) -> None:
    """Raise AssertionError unless the results of two passes are identical."""
    same = len(first) == len(second) and all(map(torch.equal, first, second))
    require(same, f"{what} gives other outputs or gradients")


def same_seed_gives_the_same(form: Form) -> None:
    """Check that one seed gives identical mixers, outputs and gradients, with dropout."""

    def run() -> list[Tensor]:
        torch.manual_seed(3)
        mixer = form.new(dropout=0.2).train()
        return outputs_and_gradients(mixer, torch.randn(2, 30, DIM))

    require_same(run(), run(), "the same seed")


def evaluation_repeats(form: Form) -> None:
    """Check that evaluation is deterministic, including the order of equal values."""
    mixer = form.build(dtype=torch.float32)
    x = torch.randn(2, 30, DIM).round()
    first = outputs_and_gradients(mixer, x)
    require_same(first, outputs_and_gradients(mixer, x), "the same call")


@torch.no_grad()
def training_without_dropout_is_evaluation(form: Form) -> None:
    """Check that outputs in training and evaluation are equal without dropout.

    If the card names other training noise, outputs may depend on the seed.
    """
    mixer, x = form.build(), tokens(2, 30)
    expected = mixer(x.clone())
    mixer.train()
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        outputs.append(mixer(x.clone()))
    if torch.equal(*outputs) or not form.card.training_noise:
        require_close(outputs[0], expected, "in training", atol=1e-10, rtol=1e-8)


@torch.no_grad()
def inputs_are_left_alone(form: Form) -> None:
    """Check that a mixer does not write to its tokens or mask."""
    mixer = form.build()
    x, mask = tokens(2, 9), torch.rand(2, 9) < 0.4
    for used in form.masks(mask.clone()):
        given = x.clone()
        mixer(given, key_padding_mask=used)
        require(torch.equal(given, x), "the tokens were written to")
        require(used is None or torch.equal(used, mask), "the mask was written to")
