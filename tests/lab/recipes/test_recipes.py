"""Check that every recipe can be built, names its source, and shrinks as requested."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.tasks import list_tasks, task_card
from rifflemix.lab.train import TrainConfig
from rifflemix.lab.train.optim import learning_rate
from rifflemix.models import create_model, list_models
from small_recipes import small

PAPERS = ("csp", "sliceformer", "tost", "dimension_mixer", "sinkhorn")
NAMES = list_recipes()


def test_every_paper_has_recipes() -> None:
    assert len(NAMES) >= 60
    assert {name.split("/")[0] for name in NAMES} == set(PAPERS)


def test_recipes_are_complete() -> None:
    models, tasks = list_models(), list_tasks()
    for name in NAMES:
        recipe = get_recipe(name)
        assert recipe.name == name
        assert recipe.model in models, name
        assert recipe.task in tasks, name
        assert set(recipe.task_options) <= set(task_card(recipe.task).options), name
        assert recipe.printed is None or recipe.printed > 0, name
        written = recipe.to_dict()
        assert Recipe.from_dict(json.loads(json.dumps(written))).to_dict() == written, name


def models() -> list[Any]:
    """Return every distinct model of the rows with its settings.

    All but the first case of each model and each mixer are slow tests.
    """
    found: dict[str, Any] = {}
    seen: set[str | None] = set()
    for recipe in map(get_recipe, NAMES):
        settings = json.dumps(recipe.to_dict()["model_settings"])
        parts = {recipe.model, recipe.model_settings.get("mixer")}
        if recipe.model + settings not in found:
            marks = [pytest.mark.slow] if parts <= seen else []
            found[recipe.model + settings] = pytest.param(
                recipe.model, settings, id=recipe.name, marks=marks
            )
        seen |= parts
    return list(found.values())


@pytest.mark.parametrize(("model", "settings"), models())
def test_model_of_a_recipe_can_be_built(model: str, settings: str) -> None:
    with torch.device("meta"):
        create_model(model, **json.loads(settings))


def test_no_two_recipes_have_the_same_table_entry() -> None:
    places = [(r.paper, r.table, r.row, r.column, r.metric) for r in map(get_recipe, NAMES)]
    assert len(places) == len(set(places))


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(InputError, match="csp/table4-image"):
        get_recipe("csp/table4-imag")


def test_unknown_name_without_similar_names_names_the_command() -> None:
    with pytest.raises(InputError) as caught:
        get_recipe("nope")
    words = r"\b\d+ .*csp/\S+ .*tost/\S+: `rifflemix list recipes`"
    assert re.fullmatch(f".*recipe 'nope'.*{words}", str(caught.value))


def test_fewer_steps_shrink_the_schedule() -> None:
    train = TrainConfig(
        max_steps=1000, warmup_steps=100, schedule_steps=1000, eval_every=200, lr=1.0
    )
    full = small(train=train)
    short = full.shortened(100)
    assert short.steps_of_the_paper == 1000
    assert (short.train.max_steps, short.train.warmup_steps, short.train.eval_every) == (
        100,
        10,
        20,
    )
    for step in range(0, 100, 7):
        expected = learning_rate(train, 10 * step)
        assert learning_rate(short.train, step) == pytest.approx(expected, abs=1e-9)
    assert short.shortened(50).steps_of_the_paper == 1000
    assert full.shortened(1000) is full


@pytest.mark.parametrize("schedule", ["rsqrt", "rsqrt_decay"])
def test_schedule_without_a_peak_is_kept(schedule: str) -> None:
    """Otherwise a thousandth of the steps would have thirty times the rate."""
    train = TrainConfig(max_steps=100_000, warmup_steps=8_000, schedule=schedule, lr=0.05)
    short = small(train=train).shortened(1_000).train
    assert short.warmup_steps == 80
    for step in (0, 40, 80, 333, 999):
        expected = learning_rate(train, 100 * step)
        assert learning_rate(short, step) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("steps", "every"), [(5, 1), (50, 5), (1000, 100), (10_000, 100), (100_000, 100)]
)
def test_short_run_is_evaluated_rarely(steps: int, every: int) -> None:
    recipe = small(train=TrainConfig(max_steps=100_000, eval_every=100))
    assert recipe.shortened(steps).train.eval_every == every


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (0, r"max_steps: .*\b1\b"),
        (1001, r"max_steps: .*\b1,000\b"),
        (True, "max_steps: .*got True"),
    ],
)
def test_steps_out_of_range(steps: Any, words: str) -> None:
    recipe = small(train=TrainConfig(max_steps=1000))
    with pytest.raises(InputError, match=words):
        recipe.shortened(steps)


def test_every_width_shrinks_in_whole_heads() -> None:
    recipe = small(
        model_settings={
            "mixer": "csp", "dim": 96, "num_heads": 8, "mixer_options": {"inner_dim": 48}
        }
    )  # fmt: skip
    half = recipe.scaled(0.5)
    assert half.model_settings["dim"] == 48
    assert half.model_settings["mixer_options"]["inner_dim"] == 24
    assert half.scaled(0.5).width == 0.25
    assert recipe.scaled(0.001).model_settings["dim"] == 8
    assert recipe.scaled(1) is recipe


@pytest.mark.parametrize("width", [0, 1.5, -1, float("nan"), "half"])
def test_widths_out_of_range(width: Any) -> None:
    with pytest.raises(InputError, match=r"scale: .*\b0\b.*\b1\b"):
        small().scaled(width)


def test_a_model_without_widths_is_not_scaled() -> None:
    recipe = get_recipe("dimension_mixer/table7-cifar10-patch_only-l7")
    with pytest.raises(InputError, match=r"patch_only_cifar10_l7\b"):
        recipe.scaled(0.5)


def test_values_are_shown_in_the_printed_unit() -> None:
    assert small().shown(0.25) == 25.0
    assert replace(small(), unit="perplexity").shown(30.5) == 30.5
