"""CSP and Sliceformer with causal=True: definition, padding, streams, options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.lab.analysis.maps import permutation_of
from rifflemix.lab.analysis.trace import Call
from rifflemix.mixers import create_mixer
from rifflemix.mixers.permutation_mixer import PermutationMixer
from rifflemix.ops import causal_shift, rank_filter, shift_steps

FORMS: dict[str, dict[str, Any]] = {
    "csp": {"name": "csp"},
    "csp, shift alone": {"name": "csp", "group_size": 1, "shift": "linear", "reach": 5},
    "csp, list": {"name": "csp", "shift": [0, 3, 1, 9, 2, 0, 4, 7], "group_size": 3},
    "csp, no shift": {"name": "csp", "shift": "none", "group_size": 4},
    "csp, biased": {"name": "csp", "bias": True, "inner_dim": 12},
    "csp, values are tokens": {"name": "csp", "value_proj": False, "out_proj": False},
    "sliceformer": {"name": "sliceformer"},
    "sliceformer, one token": {"name": "sliceformer", "window_size": 1},
    "sliceformer, long": {"name": "sliceformer", "window_size": 11, "inner_dim": 5},
}
forms = pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)


def build(name: str, **options: Any) -> PermutationMixer:
    torch.manual_seed(5)
    mixer = create_mixer(name, 8, causal=True, layer_index=1, num_layers=3, **options)
    assert isinstance(mixer, PermutationMixer)
    return mixer.double().eval()


def plain(name: str, **options: Any) -> PermutationMixer:
    """Build windows alone: both projections are identities."""
    mixer = build(name, out_proj=False, **options)
    assert isinstance(mixer.value, nn.Linear)
    nn.init.eye_(mixer.value.weight)
    return mixer


def tokens(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, 8, dtype=torch.float64)


def test_equals_the_public_operators() -> None:
    x = tokens(2, 40)
    steps = shift_steps("power", 32, 8, layer_index=1, num_layers=3)
    pairs = [0, 1] * 4
    assert torch.equal(plain("csp")(x), rank_filter(causal_shift(x, steps), pairs, 2))
    short = shift_steps("power", 9, 8, layer_index=1, num_layers=3)
    expected = rank_filter(causal_shift(x[:, :9], short), pairs, 2)
    assert torch.equal(plain("csp", max_length=9)(x[:, :9]), expected)
    assert torch.equal(plain("sliceformer")(x), rank_filter(x, pairs, 2))
    threes = [0, 1, 2, 0, 1, 2, 0, 1]
    assert torch.equal(plain("sliceformer", window_size=3)(x), rank_filter(x, threes, 3))


@forms
def test_no_output_depends_on_later_tokens(options: dict[str, Any]) -> None:
    """Check every position; the last position depends on some input."""
    mixer, x = build(**options), tokens(1, 23)
    y = mixer(x)
    later = torch.arange(23) >= torch.arange(1, 24).unsqueeze(1)
    moved = (mixer(torch.where(later.unsqueeze(-1), 9 * tokens(23, 23), x)) - y).abs() > 1e-12
    assert not moved[~later].any()
    assert moved[0, -1].any()


@forms
def test_padding_of_any_pattern_does_not_change_outputs(options: dict[str, Any]) -> None:
    mixer, x = build(**options), tokens(4, 19)
    mask = torch.rand(4, 19) < 0.4
    mask[0], mask[1] = torch.arange(19) < 6, torch.arange(19) >= 6
    y = mixer(x, key_padding_mask=mask)
    for row, padded in enumerate(mask):
        alone = mixer(x[row : row + 1, ~padded])
        torch.testing.assert_close(y[row : row + 1, ~padded], alone, atol=1e-12, rtol=1e-12)


@forms
def test_steps_after_any_prompt(options: dict[str, Any]) -> None:
    """Check prompts shorter and longer than a window, with and without padding."""
    mixer, x = build(**options), tokens(2, 50)
    whole = mixer(x)
    for length in (1, 4, 45):
        y, state = mixer.prefill(x[:, :length])
        torch.testing.assert_close(y, whole[:, :length], atol=1e-12, rtol=1e-12)
        for n in range(length, length + 3):
            y_t, state = mixer.step(x[:, n], state)
            torch.testing.assert_close(y_t, whole[:, n], atol=1e-12, rtol=1e-12)
    padded = torch.cat((tokens(2, 3), x[:, :30]), 1)
    mask = (torch.arange(33) < 3).expand(2, -1)
    _, state = mixer.prefill(padded, key_padding_mask=mask)
    y_t, _ = mixer.step(x[:, 30], state)
    torch.testing.assert_close(y_t, whole[:, 30], atol=1e-12, rtol=1e-12)


def test_state_size_is_the_longest_reach() -> None:
    mixer = build("csp", shift=[0, 3, 1, 9, 2, 0, 4, 7], group_size=3)
    for length in (1, 100):
        _, state = mixer.prefill(tokens(2, length))
        assert {name: tuple(part.shape) for name, part in state.items()} == {
            "past": (2, 9 + 3 - 1, 8),
            "position": (2,),
        }


def test_causal_windows_are_not_a_permutation() -> None:
    x = tokens(1, 6)
    for name in ("csp", "sliceformer"):
        mixer = build(name)
        assert permutation_of(Call("layer", mixer, x, mixer(x), None)) is None


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "groups": ("csp", {"num_groups": 2}, "num_groups: .*None.*causal=True.*got 2"),
    "order": ("csp", {"order": "reference"}, "order: .*None.*causal=True.*got 'reference'"),
    "pad": ("csp", {"pad": True}, "pad: .*None.*causal=True.*got True"),
    "reach": ("csp", {"reach": 0}, "reach: .*got 0"),
    "reach of a list": (
        "csp",
        {"shift": [1] * 8, "reach": 4},
        "reach: .*None.*got 4",
    ),
    "later": ("csp", {"shift": [-1] * 8}, r"shift: .*\b0\b.*got -1\b"),
    "variant": (
        "sliceformer",
        {"variant": "descending"},
        "variant: .*'ascending'",
    ),
    "window of a group over max_length": (
        "csp",
        {"group_size": 17, "max_length": 16},
        r"group_size: .*max_length = 16.*causal=True.*got 17\b",
    ),
    "reach over max_length": ("csp", {"reach": 17, "max_length": 16}, "reach: .*got 17"),
    "window over max_length": (
        "sliceformer",
        {"window_size": 17, "max_length": 16},
        r"window_size: .*max_length = 16.*causal=True.*got 17\b",
    ),
    "no window": ("sliceformer", {"window_size": 0}, "window_size: expected"),
}


@pytest.mark.parametrize(("name", "options", "says"), BAD.values(), ids=BAD)
def test_options_of_the_other_direction_are_named(
    name: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        create_mixer(name, 8, causal=True, **options)


@pytest.mark.parametrize("name", ["csp", "sliceformer"])
def test_defaults_work_for_one_token(name: str) -> None:
    mixer = create_mixer(name, 8, causal=True, max_length=1)
    assert mixer(torch.randn(2, 1, 8)).shape == (2, 1, 8)


@pytest.mark.parametrize(("name", "option"), [("csp", "reach"), ("sliceformer", "window_size")])
def test_causal_options_in_both_directions(name: str, option: str) -> None:
    with pytest.raises(InputError, match=rf"{option}: .*None.*causal=True.*got 4\b"):
        create_mixer(name, 8, **{option: 4})
