"""Arguments that a model passes to its mixers, and names not allowed in `mixer_options`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rifflemix as rm

HOSTS: dict[str, dict[str, Any]] = {
    "encoder": {"vocab_size": 11},
    "lra_listops": {"num_layers": 1},
    "mega_lra_listops": {"num_layers": 1},
    "vit_cifar10": {"num_layers": 1},
    "tost_tiny_16": {"num_layers": 1},
    "dimmixer_vit_cifar10_p4_l4": {"num_layers": 1},
    "gpt": {},
    "seq2seq": {},
}
REFUSED: dict[str, tuple[Any, str]] = {
    "what the model sets": ({"max_length": 3}, "'max_length'"),
    "the width": ({"dim": 3}, "'dim'"),
    "the name": ({"name": "csp"}, "'name'"),
    "no name": ({1: 2}, "got 1"),
    "a text": ("bias", "got 'bias'"),
    "a number": (2, "got 2"),
}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_options_are_one_sentence(name: str, options: Any, message: str) -> None:
    expected = f"^mixer_options: .*{message}"
    with torch.device("meta"), pytest.raises(rm.InputError, match=expected) as caught:
        rm.create_model(name, mixer_options=options, **HOSTS[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in HOSTS if not name.startswith("mega")])
def test_heads_are_set_by_the_model(name: str) -> None:
    expected = r"^mixer_options: .* got 'num_heads'"
    with torch.device("meta"), pytest.raises(rm.InputError, match=expected):
        rm.create_model(name, mixer_options={"num_heads": 3}, **HOSTS[name])


def test_wrong_options_of_the_decoder_are_named() -> None:
    with pytest.raises(rm.InputError, match=r"^decoder_mixer_options: .* got 'causal'"):
        rm.create_model("seq2seq", decoder_mixer_options={"causal": False})


def test_explicit_options_override_the_options_of_the_model() -> None:
    with torch.device("meta"):
        plain = rm.create_model("vit_cifar10", num_layers=1, bias=True)
        without = rm.create_model(
            "vit_cifar10", num_layers=1, bias=True, mixer_options={"bias": False}
        )
        mega = rm.create_model("mega_lra_listops", mixer_options={"z_dim": 6})
    assert plain.num_parameters() - without.num_parameters() == 3 * 512
    assert mega.blocks[0].mixer.z_dim == 6
