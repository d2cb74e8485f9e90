"""docs/results.md matches the result files that it is generated from."""

from __future__ import annotations

import csv
import importlib
import math
import statistics
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from document_scripts import load_script
from rifflemix.lab.recipes import get_recipe, list_recipes, registry
from rifflemix.lab.reproduction.agreement import changed_settings
from rifflemix.lab.reproduction.records import decode_reproduction

store = load_script("benchmarks/store.py")
writer = load_script("docs/build/sections/page.py")
page_of_reproductions = importlib.import_module("sections.reproduced")
charts = load_script("docs/build/charts.py")


@pytest.fixture(scope="module")
def files() -> dict[Path, str]:
    return writer.files()


def lines_of(name: str) -> list[dict[str, str]]:
    with (writer.DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


SUITE = "suites/lra-small"
TASKS = [name.rpartition("/")[2] for name in store.names(f"{SUITE}/*")]
OURS = {"softmax", "csp", "sliceformer", "tssa", "butterfly", "token_parallel", "sinkhorn"}


def content(name: str) -> dict[str, Any]:
    return store.load(name).content


def comparison(result: str) -> dict[str, Any]:
    """Return the comparison that a table names without its group."""
    (name,) = {result, f"suites/{result}", f"demo/{result}"} & set(store.names())
    return content(name)


def test_every_mixer_is_compared_with_a_model_without_mixing() -> None:
    lines = lines_of("every-mixer")
    found = [f"{SUITE}/image", *store.names("every-mixer/*")]
    scores: dict[str, dict[int, float]] = defaultdict(dict)
    for name in found:
        for run in content(name)["runs"]:
            scores[run["mixer"]][run["seed"]] = run["test"]["accuracy"]
    without = scores["identity"]
    assert [line["mixer"] for line in lines][-1] == "identity"
    assert {line["mixer"] for line in lines} == scores.keys()
    for line in lines[:-1]:
        above = statistics.fmean(scores[line["mixer"]][seed] - without[seed] for seed in without)
        assert float(line["above"]) == pytest.approx(100 * above, rel=1e-4)
        assert float(line["above_low"]) < float(line["above"]) < float(line["above_high"])
    accuracies = [float(line["test"]) for line in lines[:-1]]
    assert accuracies == sorted(accuracies, reverse=True)


def test_the_suite_shows_the_means_of_the_chosen_runs() -> None:
    lines = {line["mixer"]: line for line in lines_of("suite")}
    for task in TASKS:
        results = content(f"{SUITE}/{task}")
        assert {mixer["name"] for mixer in results["mixers"]} == lines.keys()
        for name, line in lines.items():
            found = [r["test"]["accuracy"] for r in results["runs"] if r["mixer"] == name]
            assert len(found) == 3
            assert float(line[f"{task}_test"]) == pytest.approx(statistics.fmean(found), rel=1e-5)
            assert float(line[f"{task}_std"]) == pytest.approx(statistics.stdev(found), rel=1e-4)
    for line in lines.values():
        assert 1 <= float(line["rank_low"]) <= float(line["rank"]) <= float(line["rank_high"]) <= 15
    assert {float(lines["softmax"][f"x_softmax_{of}"]) for of in ("speed", "memory")} == {1.0}


def test_what_choose_says_of_the_suite_holds() -> None:
    """Check the fifth question of docs/choose.md.

    It names mixers that are more accurate than softmax, with their speed.
    """
    results = content(SUITE)
    mixers = {mixer["name"]: mixer for mixer in results["mixers"]}
    assert mixers["mega"]["ahead"] == ["listops", "image"]
    assert mixers["mega"]["speed"] < 1
    for name, others in (("s4", []), ("mlp_mixer", ["retrieval"])):
        assert mixers[name]["ahead"] == [*others, "image", "pathfinder"]
        assert mixers[name]["speed"] > 1


def cells_of(page: str, question: str) -> dict[str, list[str]]:
    """Return {first cell: other cells} of the table below a question's picture."""
    (section,) = (part for part in page.split("\n### ") if part.startswith(f"{question}\n"))
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return {first.strip("`"): others for first, *others in lines[2:]}


def test_the_page_shows_the_accuracies_of_the_suite(files: dict[Path, str]) -> None:
    shown = cells_of(files[writer.PAGE], "Small suite")
    lines = {line["title"]: line for line in lines_of("suite")}
    assert shown.keys() == lines.keys()
    for title, cells in shown.items():
        line = lines[title]
        means = [float(line[key]) for key in line if key.endswith("_test")]
        assert [cell.strip("*").split(" ")[0] for cell in cells[: len(means)]] == [
            f"{100 * mean:.2f}" for mean in means
        ]
        assert cells[len(means) :] == [
            f"{float(line[f'x_softmax_{of}']):.2f}x" for of in ("speed", "memory")
        ]
    ranks = [float(lines[title]["rank"]) for title in shown]
    assert ranks == sorted(ranks)


def test_rows_in_full_are_shown_with_the_mean_of_their_seeds(files: dict[Path, str]) -> None:
    shown = cells_of(files[writer.PAGE], "Reproduced values")
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    others: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for stored in store.names("reproduce/*"):
        result = content(stored)
        if result["printed"] is not None and not result["is_reduced"]:
            name = result["recipe"]["name"]
            is_own = result["result"]["precision"] == get_recipe(name).train.precision
            if changed := changed_settings(decode_reproduction(result)):
                name = f"{name}`, {changed}"
            (runs if is_own else others)[name].append(result)
    for name, elsewhere in others.items():  # add seeds that were run in another precision only
        seeds_of = {result["seed"] for result in runs[name]}
        runs[name] += [result for result in elsewhere if result["seed"] not in seeds_of]
    comparable = {
        name for name, of in runs.items() if not changed_settings(decode_reproduction(of[0]))
    }
    assert shown.keys() == comparable
    for name, (printed, ours, difference, error, seeds, *_) in shown.items():
        mean = statistics.fmean(result["ours"] for result in runs[name])
        assert ours.split(" ")[0] == f"{mean:.2f}"
        assert float(seeds) == len(runs[name])
        reported = runs[name][0]["printed"]
        both = math.hypot(standard_error(runs[name], mean), standard_error(runs[name], reported))
        assert printed == f"{reported:.2f}"
        assert difference == f"{mean - reported:+.2f}"
        assert error == f"{both:.2f}"
    assert shown["dimension_mixer/table5-listops-nystromformer"][-1] == "0"
    assert shown["dimension_mixer/table5-listops-performer"][-1] == "0 and 1"


def standard_error(runs: list[dict[str, Any]], percent: float) -> float:
    """Return the standard error of one run's test accuracy in percent."""
    task, share = runs[0]["task"], percent / 100
    size = task["sizes"]["test"] if "sizes" in task else task["options"]["num_test"]
    return 100 * math.sqrt(share * (1 - share) / size)


def test_rows_of_other_settings_do_not_count_as_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check recipes with changed settings for sentences and reviews."""
    rows = [f"sinkhorn/table6-{data}" for data in ("sst", "imdb")]
    recipes = {}
    for name in list_recipes():
        recipe = get_recipe(name)
        if name.startswith(tuple(rows)):
            recipe = replace(recipe, train=replace(recipe.train, label_smoothing=0.3))
        recipes[name] = recipe
    monkeypatch.setattr(registry, "_RECIPES", {n: (lambda r=r: r) for n, r in recipes.items()})
    answer = page_of_reproductions.printed()
    full = [line for line in answer.table if not line["is_reduced"]]
    changed = [line for line in full if line["recipe"].startswith(tuple(rows))]
    assert len(changed) >= 18
    for line in changed:
        assert line["changed"]
        assert (line["printed"], line["standard_error"]) == (None, None)
        assert line["recipe"] not in answer.below
    assert answer.text.startswith(f"Of {len(full) - len(changed)} ")


def test_memory_is_that_of_the_scaling() -> None:
    """Check that softmax attention is the unit."""
    rows = {
        (row["name"], row["shape"]["tokens"]): row["passes"]
        for row in store.newest("scaling-*-cores-*").content["rows"]
        if row["kind"] == "layer"
    }
    for line in lines_of("memory"):
        key = line["mixer"], int(line["tokens"])
        held = rows[key]["forward_backward"]["peak_memory_bytes"]
        assert int(line["training_memory_bytes"]) == held
        if line["x_softmax"]:
            base = rows["softmax", key[1]]["forward_backward"]["peak_memory_bytes"]
            assert float(line["x_softmax"]) == pytest.approx(held / base, rel=1e-5)


def test_pictures_have_words_and_a_dark_form(files: dict[Path, str]) -> None:
    drawn = [text for path, text in files.items() if path.suffix == ".svg"]
    assert len(drawn) >= 4
    for text in drawn:
        assert len(ElementTree.fromstring(text).get("aria-label") or "") > 60
        assert "prefers-color-scheme: dark" in text
    page = files[writer.PAGE]
    assert page.count("\n### ") == page.count("\nTable: ")


def test_names_and_words_of_rows_are_text() -> None:
    rows = [charts.Row("group"), charts.Row("a & b", (charts.Mark(2.0, "main", 1.0, 3.0),), "2.0")]
    for text in (
        charts.dots("title", rows, rule=0.0),
        charts.curves("title", [charts.Curve("a & b", ((1.0, 2.0), (2.0, 4.0)))]),
        charts.scatter("title", [("a & b", 1.0, 2.0)], "x", "y"),
    ):
        root = ElementTree.fromstring(text)
        words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"a & b", "title"} <= words
        assert "a & b" in (root.get("aria-label") or "")


def test_a_chart_is_the_same_again() -> None:
    rows = [charts.Row("a", (charts.Mark(2.0),), "2.0")]
    assert charts.dots("title", rows) == charts.dots("title", rows)


def test_labels_keep_apart() -> None:
    placed = charts.apart({"a": 10.0, "b": 11.0, "c": 12.0, "d": 80.0})
    heights = sorted(placed.values())
    assert min(b - a for a, b in pairwise(heights)) > 10.9
    assert placed["d"] == pytest.approx(80.0)
    assert placed["a"] < placed["b"] < placed["c"]
