"""Third-party recipes: decorator, file, entry point and errors."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rifflemix as rm
from rifflemix.errors import InputWarning
from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes, registry, usable_recipes
from rifflemix.plugins import load_plugin
from small_recipes import QUICK, small

pytestmark = pytest.mark.usefixtures("registries")

PLUGIN = """
import rifflemix as rm
from rifflemix.errors import InputWarning

@rm.register_recipe
def digits():
    return rm.recipes.Recipe(
        name="mine/table1-digits", paper="Author 2026, A paper", table="Table 1", row="TSSA",
        column="Digits", printed=98.5, task="digits", task_options={"patch_size": 4},
        model="encoder", model_settings={"mixer": "tssa", "dim": 8, "num_heads": 2},
        train=rm.train.TrainConfig(max_steps=2, batch_size=8),
    )
"""


def test_a_decorated_function_becomes_a_recipe() -> None:
    @rm.register_recipe
    def mine() -> Recipe:
        return small(train=QUICK, name="mine/table1", printed=98.5)

    assert list_recipes()[-1] == "mine/table1"
    assert get_recipe("mine/table1") == mine()


def test_partial_functions_register_a_whole_table() -> None:
    def row(mixer: str) -> Recipe:
        return small(train=QUICK, name=f"mine/table1-{mixer}", row=mixer)

    for mixer in ("csp", "tssa"):
        rm.register_recipe(partial(row, mixer))
    assert list_recipes()[-2:] == ["mine/table1-csp", "mine/table1-tssa"]
    with pytest.raises(rm.InputError, match=r"'mine/table1-csp'.*row"):
        rm.register_recipe(lambda: row("csp"))


def test_a_new_definition_replaces_the_old_one() -> None:
    for printed in (1.0, 2.0):

        @rm.register_recipe
        def again(printed: float = printed) -> Recipe:
            return small(train=QUICK, name="mine/again", printed=printed)

    assert get_recipe("mine/again").printed == 2.0


WRONG: dict[str, tuple[Any, str]] = {
    "recipe": (small(train=QUICK), r"recipe: .*Recipe\b"),
    "other result": (lambda: 3, r"recipe: .*Recipe\b"),
    "argument": (lambda row: small(train=QUICK), r"recipe: .*without arguments.*'row'"),
    "name": (lambda: small(train=QUICK, name="mine"), r"recipe: .*PAPER/ENTRY.*'mine'"),
    "path": (lambda: small(train=QUICK, name="mine/../x"), r"recipe: .*PAPER/ENTRY"),
    "taken": (lambda: small(train=QUICK, name="csp/table4-image"), "'csp/table4-image'.*csp"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_wrong_recipes_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.register_recipe(wrong)


def test_a_plugin_file_adds_a_recipe_to_the_commands(cli: Any, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN, encoding="utf-8")
    found = cli("list", "recipes", "--match", "mine/", "--json", "--plugin", plugin)
    (entry,) = json.loads(found[1])
    assert (entry["name"], entry["printed"]) == ("mine/table1-digits", 98.5)
    run = tmp_path / "run"
    code, _, err = cli(
        "reproduce", "mine/table1-digits", "--plugin", plugin, "--threads", "1", "--out", run
    )
    assert code == 0, err
    assert json.loads((run / "results.json").read_text(encoding="utf-8"))["printed"] == 98.5


def test_a_file_without_a_registration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text(PLUGIN.replace("@rm.register_recipe", ""))
    with pytest.raises(rm.InputError, match=r"empty\.py: .*recipe"):
        load_plugin(tmp_path / "empty.py")


def test_entry_points_are_listed_without_an_import(install: Any) -> None:
    install("tables", PLUGIN, {"recipes": "mine/table1-digits = tables:digits"})
    assert list_recipes()[-1] == "mine/table1-digits"
    assert "tables" not in sys.modules
    assert get_recipe("mine/table1-digits").task == "digits"
    install("broken", "import nothing_of_this_name", {"recipes": "gone/table1 = broken:gone"})
    registry._ENTRY_POINTS.forget()
    with pytest.warns(InputWarning, match=r"recipe 'gone/table1'.*\bbroken\b"):
        assert "gone/table1" not in usable_recipes()
