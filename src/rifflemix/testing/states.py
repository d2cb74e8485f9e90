"""State: parameters, seeds, inputs that stay unchanged, and streams."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rifflemix.mixers.base import TokenMixer
from rifflemix.testing.forms import (
    DIM,
    MAX_LENGTH,
    Form,
    require,
    require_close,
    require_refusal,
    tokens,
)


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


def steps_equal_the_parallel_form(form: Form) -> None:
    """Check that steps give the outputs of the whole sequence.

    A step must not change the state that it gets.
    """
    mixer = form.build()
    x = tokens(3, 21)
    state = mixer.init_state(3, device=x.device, dtype=x.dtype)
    outputs = []
    for x_t in x.unbind(1):
        y_t, following = mixer.step(x_t, state)
        again, _ = mixer.step(x_t, state)
        require(torch.equal(again, y_t), "the same step from the same state gives another output")
        outputs.append(y_t)
        state = following
    require_close(torch.stack(outputs, 1), mixer(x), "21 steps", atol=1e-9, rtol=1e-8)


def prefill_equals_steps(form: Form) -> None:
    """Check that `prefill` gives `forward`'s outputs and a state for `step`.

    Without padding, the state equals the state after the same number of steps. With padding, each
    sequence continues as it does alone and without padding.
    """
    mixer = form.build()
    later = tokens(5, 9)
    for length in (1, 13):
        x = tokens(5, length)
        y, state = mixer.prefill(x)
        require_close(y, mixer(x), f"prefill of {length} tokens", atol=1e-10, rtol=1e-8)
        require_close(
            state, _stepped(mixer, x)[1], f"state after {length} tokens", atol=1e-10, rtol=1e-8
        )
        _require_continuation(mixer, x, later, state)
    if form.card.padding:
        _prefill_leaves_padding_out(mixer, later)


def _prefill_leaves_padding_out(mixer: TokenMixer, later: Tensor) -> None:
    index = torch.arange(14)
    rows = (index < 5, index >= 5, index % 3 == 1, index < 0, index >= 0)
    mask = torch.stack(rows)
    x = tokens(5, 14).masked_fill(mask.unsqueeze(-1), 0.0)
    y, state = mixer.prefill(x, key_padding_mask=mask)
    require(not y[mask].any(), "prefill writes other numbers than zeros at padded positions")
    whole = mixer(x, key_padding_mask=mask)
    require_close(y[~mask], whole[~mask], "prefill with padding", atol=1e-10, rtol=1e-8)
    for row, padded in enumerate(mask):
        alone = {name: part[row : row + 1] for name, part in state.items()}
        valid = x[row : row + 1, ~padded]
        _require_continuation(mixer, valid, later[row : row + 1], alone)
    third, _ = mixer.step(later[2:3, 0], {name: part[2:3] for name, part in state.items()})
    together, _ = mixer.step(later[:, 0], state)
    require_close(together[2:3], third, "a step after padding", atol=1e-10, rtol=1e-8)


def states_have_a_row_for_each_sequence(form: Form) -> None:
    """Check that indexing a state along dim 0 selects and repeats sequences."""
    mixer = form.build()
    x, rows = tokens(3, 12), torch.tensor([2, 0, 0, 1])
    _, state = mixer.prefill(x[:, :5])
    for x_t in x[:, 5:].unbind(1):
        selected = {name: part.index_select(0, rows) for name, part in state.items()}
        again, _ = mixer.step(x_t[rows], selected)
        y_t, state = mixer.step(x_t, state)
        require_close(again, y_t[rows], "a step of selected rows", atol=1e-10, rtol=1e-8)


def streams_keep_their_dtype(form: Form) -> None:
    """Check that `step` and `prefill` keep the dtypes of tokens and states."""
    for dtype in (torch.bfloat16, torch.float64):
        mixer = form.build(dtype=dtype)
        start = mixer.init_state(2, dtype=dtype)
        x = tokens(2, 3).to(dtype)
        y_t, stepped = mixer.step(x[:, 0], start)
        require(y_t.dtype == dtype, f"a step with a token of {dtype} gives {y_t.dtype}")
        for what, state in (("a step", stepped), ("prefill", mixer.prefill(x)[1])):
            for name, part in start.items():
                found = state[name].dtype
                require(
                    found == part.dtype,
                    f"of tokens of {dtype}, {name!r} starts as {part.dtype} and is {found} after "
                    f"{what}",
                )


def _stepped(mixer: TokenMixer, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    state = mixer.init_state(len(x), device=x.device, dtype=x.dtype)
    return _continued(mixer, x, state)


def _continued(
    mixer: TokenMixer, x: Tensor, state: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    outputs = []
    for x_t in x.unbind(1):
        y_t, state = mixer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


def _require_continuation(
    mixer: TokenMixer, x: Tensor, later: Tensor, state: dict[str, Tensor]
) -> None:
    """Check that steps after `x` give the outputs of the whole sequence."""
    y, _ = _continued(mixer, later, dict(state))
    whole = mixer(torch.cat((x, later), 1))[:, x.shape[1] :]
    require_close(y, whole, "steps after prefill", atol=1e-10, rtol=1e-8)


def steps_check_their_input(form: Form) -> None:
    """Check the errors for wrong channels, batch sizes and states."""
    mixer = form.build()
    state = mixer.init_state(2, dtype=torch.float64)
    wide = torch.randn(2, DIM, dtype=torch.float64)
    narrow = wide[:, 1:]
    require_refusal(lambda: mixer.step(narrow, state), "x_t: expected")
    require_refusal(lambda: mixer.init_state(0), "batch_size: expected")
    require_refusal(lambda: mixer.step(wide, {}), "state: expected")
    require_refusal(lambda: mixer.step(wide[:1], state), "state: expected")


def foreign_states_are_refused(form: Form) -> None:
    """Check that `step` rejects states with wrong names, axes or types."""
    mixer = form.build()
    _, state = mixer.prefill(tokens(2, 5))
    for what, foreign in _foreign(state).items():
        try:
            require_refusal(partial(mixer.step, tokens(1, 2)[0], foreign), "state: expected")
        except Exception as error:
            raise AssertionError(f"a state {what}: {error}") from None


def _foreign(state: dict[str, Tensor]) -> dict[str, Any]:
    states: dict[str, Any] = {
        "that is no dict": list(state.values()),
        "with another name": {**state, "another": state["position"]},
    }
    for name, part in state.items():
        states[f"without {name!r}"] = {other: state[other] for other in state if other != name}
        states[f"with a row less of {name!r}"] = {**state, name: part[:1]}
        states[f"with an axis more of {name!r}"] = {**state, name: part.unsqueeze(1)}
        other_kind = part.long() if part.is_floating_point() else part.float()
        states[f"with {name!r} of another kind"] = {**state, name: other_kind}
    return states


def streams_end_at_max_length(form: Form) -> None:
    """Check that `step` and `prefill` reject tokens after `max_length`."""
    mixer = form.build()
    x = tokens(2, MAX_LENGTH + 1)
    require_refusal(lambda: mixer.prefill(x), "max_length")
    _, state = mixer.prefill(x[:, :-1])
    require_refusal(lambda: mixer.step(x[:, -1], state), "max_length")


def streaming_is_refused(form: Form) -> None:
    """Check that the error of a variant without streaming names the mixer."""
    require_refusal(lambda: form.build().init_state(2), form.card.name)
