"""Tests of benchmarks/plateau.py: short rows train until they beat the majority class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from document_scripts import load_script
from rifflemix.files import read_json
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.lab.tasks import load_task

script = load_script("benchmarks/plateau.py")


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("softmax", {}),
        ("nystromformer", {"num_landmarks": 16}),
        ("nystromformer/4", {"num_landmarks": 4}),
        ("linformer", {"projected_length": 32}),
        ("csp", {}),
    ],
)
def test_all_but_the_length_is_the_rows(form: str, options: dict[str, int]) -> None:
    full = get_recipe(f"dimension_mixer/table5-listops-{form.partition('/')[0]}")
    short = script.row_of(form, 256)
    assert short.train.max_steps == full.train.max_steps
    assert short.train.lr == full.train.lr
    changed = {"max_length": 256}
    if options:
        changed["mixer_options"] = full.model_settings["mixer_options"] | options
    assert short.model_settings == full.model_settings | changed


def test_it_stops_when_a_form_has_left_and_goes_on_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = load_task(
        "listops", min_length=8, max_length=40, num_train=64, num_validation=32, num_test=1
    )
    real = script.row_of

    def short_row(form: str, length: int) -> Recipe:
        recipe: Recipe = real(form, length)
        return replace(recipe, train=replace(recipe.train, batch_size=4, eval_every=5))

    monkeypatch.setattr(script, "row_of", short_row)
    monkeypatch.setattr(script, "expressions", lambda length: small)
    monkeypatch.setattr(script, "LEFT_ABOVE", 0.0)
    made = ["plateau.py", "--length", "64", "--work", str(tmp_path / "work")]

    def run(forms: str, name: str) -> list[dict[str, object]]:
        out = tmp_path / name
        monkeypatch.setattr("sys.argv", [*made, "--forms", forms, "--out", str(out)])
        script.main()
        (path,) = out.glob("plateau-*.json")
        rows: list[dict[str, object]] = read_json(path)["rows"]
        return rows

    (alone,) = run("csp", "one")
    assert (alone["form"], alone["left"], alone["steps"]) == ("csp", 5, 5)
    both = run("csp,tssa", "two")
    assert both[0] == alone
    assert [row["form"] for row in both] == ["csp", "tssa"]
