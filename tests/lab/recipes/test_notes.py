"""Tests of the notes of recipes about settings that are inferred or differ from the paper."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

import rifflemix.lab.recipes
from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes

RECIPES = [get_recipe(name) for name in list_recipes()]


def notes_with(recipe: Recipe, words: str) -> bool:
    return any(words in note for note in recipe.notes)


def names_with(start: str, words: str) -> set[str]:
    return {r.name for r in RECIPES if r.name.startswith(start) and notes_with(r, words)}


def test_every_note_of_the_file_is_shown_once_in_some_recipe() -> None:
    file = Path(rifflemix.lab.recipes.__file__).with_name("notes.toml")
    shown = Counter(note for recipe in RECIPES for note in set(recipe.notes))
    for pattern, notes in tomllib.loads(file.read_text(encoding="utf-8")).items():
        for note in notes:
            assert "\\1" in note or shown[note], pattern
    assert not [r.name for r in RECIPES if len(set(r.notes)) < len(r.notes)]


def test_adamw_is_noted_if_the_csp_paper_prints_adam_with_decay() -> None:
    """Check the notes, because Tables 6 and 7 report Adam for the paper's new rows."""
    own = [r for r in RECIPES if r.paper.startswith("Yuan and Xu, Channel") and "CSP" in r.row]
    expected = {
        r.name
        for r in own
        if r.table == "Table 4" and r.train.optimizer == "adamw" and r.train.weight_decay
    }
    assert len(expected) == 3 + 6
    assert names_with("csp/", "prints Adam with weight decay") == expected


def test_one_cycle_is_noted_if_a_paper_prints_a_linear_schedule() -> None:
    for start in ("tost/table3-", "dimension_mixer/table5-"):
        printed = {
            r.name
            for r in RECIPES
            if r.name.startswith(start) and r.train.schedule == "one_cycle" and r.printed
        }
        assert printed
        assert names_with(start, "one cycle from a 25th of the rate") >= printed


@pytest.mark.parametrize(
    ("start", "count", "words"),
    [
        ("sliceformer/table5-imdb", 3, "words in lower case"),
        ("dimension_mixer/table3", 6, "prints no batch for Table 3"),
        ("dimension_mixer/table9", 12, "prints no training for Table 9"),
        ("dimension_mixer/figure7", 10, "SGD with a rate of 0.1"),
        ("sinkhorn/table4", 4, "a stride of 64 with 8 summary positions"),
    ],
)
def test_settings_that_are_not_printed_are_noted(start: str, count: int, words: str) -> None:
    assert len(names_with(start, words)) == count


def test_noted_settings_are_used() -> None:
    batches = {r.train.batch_size for r in RECIPES if notes_with(r, "batches of 64 as in Table 4")}
    assert batches == {64}
    for recipe in RECIPES:
        if notes_with(recipe, "SGD with a rate of 0.1"):
            train = recipe.train
            assert (train.optimizer, train.lr, train.weight_decay) == ("sgd", 0.1, 5e-4)
            assert (train.batch_size, train.max_steps) == (64, 200 * (50_000 // 64))
        if notes_with(recipe, "a stride of 64 with 8 summary positions"):
            options = recipe.model_settings["mixer_options"]
            assert (options["stride"], options["num_summary"]) == (64, 8)
        if notes_with(recipe, "one cycle from a 25th of the rate"):
            assert (recipe.train.schedule, recipe.train.cycle_beta1) == ("one_cycle", (0.95, 0.85))
