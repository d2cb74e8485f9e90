"""Tests of models with different mixers in their layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.mixers.csp import CSP

SIZES: dict[str, Any] = {"dim": 16, "num_heads": 2, "max_length": 24}
TINY: dict[str, Any] = {
    "max_steps": 2, "batch_size": 8, "dim": 16, "num_layers": 3, "num_heads": 2, "threads": 1,
    "device": "cpu",
}  # fmt: skip


def mixers(model: torch.nn.Module) -> list[rm.TokenMixer]:
    return [module for module in model.modules() if isinstance(module, rm.TokenMixer)]


def names(model: torch.nn.Module) -> list[str]:
    return [mixer.card.name for mixer in mixers(model)]


@pytest.mark.parametrize("model", ["encoder", "gpt"])
def test_the_mixers_of_a_stack_repeat_over_the_layers(model: str) -> None:
    built = rm.create_model(model, mixer="tssa+tssa+softmax", vocab_size=9, num_layers=5, **SIZES)
    assert names(built) == ["tssa", "tssa", "softmax", "tssa", "tssa"]


def test_list_sets_the_options_of_each_layer() -> None:
    stack = [("csp", {"shift": "power"}), "softmax", ["csp", {"shift": "none"}]]
    built = rm.create_model("encoder", mixer=stack, vocab_size=9, num_layers=3, **SIZES)
    assert names(built) == ["csp", "softmax", "csp"]
    assert [m.shift for m in mixers(built) if isinstance(m, CSP)] == ["power", "none"]


def test_options_of_a_stack_name_their_mixer() -> None:
    options: dict[str, Any] = {"csp.shift": "power"}
    mixer = rm.create_mixer("softmax+csp", 16, layer_index=1, num_layers=2, **options)
    assert isinstance(mixer, CSP)
    assert mixer.shift == "power"
    built = rm.create_model(
        "encoder", mixer="csp+softmax", mixer_options=options, vocab_size=9, num_layers=2, **SIZES
    )
    assert [m.shift for m in mixers(built) if isinstance(m, CSP)] == ["power"]


def test_a_stack_computes_what_its_mixers_compute() -> None:
    """A stack of one mixer equals the mixer, with equal weights."""
    torch.manual_seed(0)
    plain = rm.create_model("gpt", mixer="tssa", vocab_size=9, num_layers=2, **SIZES).eval()
    torch.manual_seed(0)
    stack = rm.create_model("gpt", mixer="tssa+tssa", vocab_size=9, num_layers=2, **SIZES).eval()
    tokens = torch.randint(9, (2, 11))
    assert torch.equal(plain(tokens), stack(tokens))


def test_stacks_stream_if_all_mixers_do() -> None:
    torch.manual_seed(0)
    model = rm.create_model(
        "gpt", mixer="csp+softmax+tssa", vocab_size=9, num_layers=3, **SIZES
    ).eval()
    assert model.streams
    prompts = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    for prompt, tokens in zip(
        prompts, rm.models.continue_prompts(model, prompts, 9, temperature=0), strict=True
    ):
        logits = model(tokens[None, :-1])[0, len(prompt) - 1 :]
        assert torch.equal(logits.argmax(-1), tokens[len(prompt) :])
    assert not rm.create_model("gpt", mixer="tssa+sinkhorn", vocab_size=9, **SIZES).streams


def test_the_card_of_a_stack_has_the_limits_of_its_mixers() -> None:
    card = rm.mixer_card("csp+csp+softmax")
    one, other = rm.mixer_card("csp"), rm.mixer_card("softmax")
    assert card.name == "csp+csp+softmax"
    assert card.title == f"2 x {one.title} + {other.title}"
    assert card.cost_exponent == 2.0
    assert card.causal is (one.causal and other.causal)
    assert card.by_position == one.by_position
    assert not rm.mixer_card("tssa+mlp_mixer").causal


def test_saved_models_keep_their_stack(tmp_path: Path) -> None:
    stack: Any = [("csp", {"num_groups": 2}), "softmax"]
    model = rm.create_model("encoder", mixer=stack, vocab_size=9, num_layers=2, **SIZES).eval()
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model").eval()
    tokens = torch.randint(9, (2, 24))
    assert names(again) == names(model)
    assert torch.equal(again(tokens), model(tokens))


def test_comparisons_accept_stacks(tmp_path: Path) -> None:
    chosen = {"hybrid": ("csp+softmax", {"csp.num_groups": 2}), "tssa+softmax": "tssa+softmax"}
    options = {"patch_size": 4}
    out = tmp_path / "run"
    found = rm.compare("digits", chosen, task_options=options, out=out, **TINY)
    frame = found.to_frame()
    assert list(frame["mixer"]) == ["hybrid", "tssa+softmax"]
    assert frame["title"][1] == rm.mixer_card("tssa+softmax").title
    run = rm.load_run(out, mixer="hybrid")
    assert names(run.model) == ["csp", "softmax", "csp"]
    with pytest.raises(InputError, match="causal"):
        rm.compare("copying", ["tssa+mlp_mixer"], **TINY)


BAD: list[tuple[Any, dict[str, Any] | None, str]] = [
    ("csp+sofmax", None, "'sofmax'"),
    ("csp+", None, "mixer"),
    ([], None, "mixer"),
    ([3], None, "mixer"),
    ([("csp", 3)], None, "mixer"),
    ("csp+softmax", {"num_groups": 2}, "mixer_options"),
    ("csp+softmax", {"tssa.num_groups": 2}, "mixer_options"),
    ("csp+softmax", {"csp.num_group": 2}, "num_group"),
]


@pytest.mark.parametrize(("mixer", "options", "name"), BAD)
def test_bad_stacks_are_refused(mixer: Any, options: dict[str, Any] | None, name: str) -> None:
    with pytest.raises(InputError, match=name):
        rm.create_model(
            "encoder", mixer=mixer, mixer_options=options, vocab_size=9, num_layers=2, **SIZES
        )
