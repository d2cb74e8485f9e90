"""State size: numbers that a stream keeps per sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.errors import InputError

NAMES = rm.list_mixers()
STREAMING = [name for name in NAMES if rm.mixer_card(name).streaming]
SIZES: dict[str, Any] = {"dim": 32, "num_heads": 4, "max_length": 64}


def numbers_in(state: dict[str, Tensor]) -> int:
    return sum(part[0].numel() for name, part in state.items() if name != "position")


@pytest.mark.parametrize("name", STREAMING)
def test_state_size_equals_the_size_of_the_state(name: str) -> None:
    torch.manual_seed(0)
    mixer = rm.create_mixer(name, causal=True, **SIZES).eval()
    for length in (0, 1, 7, 40):
        state = mixer.init_state(2)
        if length:
            _, state = mixer.prefill(torch.randn(2, length, 32))
        assert mixer.state_size(length) == numbers_in(state), length


def test_options_change_it() -> None:
    for options in ({"radius": 3}, {"radius": 30}, {"radius": 8, "ssm_every": 2, "layer_index": 1}):
        mixer = rm.create_mixer("spade", causal=True, num_layers=2, **{**SIZES, **options})
        _, state = mixer.prefill(torch.randn(1, 20, 32))
        assert mixer.state_size(20) == numbers_in(state)
    small = rm.create_mixer("softmax", causal=True, **{**SIZES, "inner_dim": 16})
    assert small.state_size(10) == 2 * 16 * 10


@pytest.mark.parametrize("name", NAMES)
def test_bidirectional_mixers_need_every_token(name: str) -> None:
    assert rm.create_mixer(name, **SIZES).state_size(50) == 50 * 32


def test_negative_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="length"):
        rm.create_mixer("tssa", 8, causal=True).state_size(-1)


def test_models_add_the_states_of_their_layers() -> None:
    sizes = {"dim": 32, "num_heads": 4, "num_layers": 3, "max_length": 64, "vocab_size": 5}
    model = rm.create_model("gpt", mixer="linear+linear+softmax", short_conv=3, **sizes)
    _, state = model.prefill(torch.zeros(1, 20, dtype=torch.int64))
    total = sum(numbers_in(layer) for layer in state.layers)
    assert model.state_size(20) == total == 2 * (4 * 8 * 8 + 32) + 2 * 32 * 20 + 3 * 2 * 32
    encoder = rm.create_model("encoder", short_conv=3, **sizes)
    assert encoder.state_size(20) == 3 * 32 * 20
    tied = rm.create_model("encoder", tie_layers=True, **sizes)
    assert tied.state_size(20) == 3 * 32 * 20
