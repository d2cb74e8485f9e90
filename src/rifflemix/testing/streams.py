"""Token by token: streaming mixers give what they give at once."""

from __future__ import annotations

import torch

from rifflemix.testing.forms import DIM, Form, require, require_close, require_refusal, tokens


def steps_equal_the_parallel_form(form: Form) -> None:
    """`step` after `step` gives the outputs of the whole sequence, and leaves old states alone."""
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


def steps_check_their_input(form: Form) -> None:
    """Wrong channels and an empty batch are refused by name."""
    mixer = form.build()
    state = mixer.init_state(2, dtype=torch.float64)
    narrow = torch.randn(2, DIM - 1, dtype=torch.float64)
    require_refusal(lambda: mixer.step(narrow, state), "x_t: expected")
    require_refusal(lambda: mixer.init_state(0), "batch_size: expected")


def streaming_is_refused(form: Form) -> None:
    """A form that cannot stream says so, naming the mixer."""
    require_refusal(lambda: form.build().init_state(2), form.card.name)
