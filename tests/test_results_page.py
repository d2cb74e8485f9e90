"""docs/results.md matches the result files that it is generated from."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from document_scripts import REPOSITORY, load_script
from rifflemix.lab.recipes import get_recipe, list_recipes, registry
from rifflemix.lab.reproduction.agreement import changed_settings

RESULTS = REPOSITORY / "benchmarks" / "results"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """Import docs/write_results.py and the scripts next to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "docs"))
        return load_script("docs/write_results.py")


@pytest.fixture(scope="module")
def files(writer: ModuleType) -> dict[Path, str]:
    found: dict[Path, str] = writer.files()
    return found


@pytest.mark.slow
def test_the_page_its_pictures_and_tables_are_up_to_date(
    writer: ModuleType, files: dict[Path, str]
) -> None:
    there = [writer.PAGE, *writer.FILES.iterdir()]
    assert sorted(there) == sorted(files), "run: python docs/write_results.py"
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, "run: python docs/write_results.py"


def lines_of(writer: ModuleType, name: str) -> list[dict[str, str]]:
    with (writer.FILES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


SUITE = RESULTS / "suites" / "lra-small"
OURS = {"softmax", "csp", "sliceformer", "tssa", "butterfly", "token_parallel", "sinkhorn"}


def comparison(name: str) -> dict[str, Any]:
    suite, _, task = name.rpartition("/")
    (path,) = RESULTS.rglob(f"suites/{name}/results.json" if suite else f"{task}.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_tables_hold_the_means_of_the_runs_and_their_differences_from_softmax(
    writer: ModuleType,
) -> None:
    """Check the tables with separate code."""
    lines = lines_of(writer, "accuracy")
    demos = {
        json.loads(path.read_text(encoding="utf-8"))["environment"]["time"]: path
        for path in (RESULTS / "demo").glob("*.json")
    }
    kept = {p.stem for p in [*RESULTS.glob("compare-*.json"), demos[max(demos)]]}
    kept |= {f"lra-small/{path.parent.name}" for path in SUITE.glob("*/results.json")}
    assert {line["result"] for line in lines} == kept
    for line in lines:
        results = comparison(line["result"])
        runs: dict[str, dict[int, Any]] = defaultdict(dict)
        for run in results["runs"]:
            runs[run["mixer"]][run["seed"]] = run
        own, base = runs[line["mixer"]], runs["softmax"]
        for split in ("test", "validation"):
            mean = statistics.fmean(run[split][line["metric"]] for run in own.values())
            assert float(line[split]) == pytest.approx(mean, rel=1e-5)
        if line.get("difference"):
            ahead = [own[s]["test"]["accuracy"] - base[s]["test"]["accuracy"] for s in base]
            assert float(line["difference"]) == pytest.approx(100 * statistics.fmean(ahead), 1e-4)
            assert float(line["low"]) < float(line["difference"]) < float(line["high"])
    compared = sum(bool(line.get("difference")) for line in lines)
    many = [results for name in kept if len((results := comparison(name))["seeds"]) > 1]
    mixers = [{mixer["name"] for mixer in results["mixers"]} & OURS for results in many]
    assert compared == sum(len(names) - 1 for names in mixers)


def test_every_mixer_is_compared_with_a_model_without_mixing(writer: ModuleType) -> None:
    lines = lines_of(writer, "every-mixer")
    paths = [SUITE / "image" / "results.json", *RESULTS.glob("every-mixer/*/results.json")]
    scores: dict[str, dict[int, float]] = defaultdict(dict)
    for path in paths:
        for run in json.loads(path.read_text(encoding="utf-8"))["runs"]:
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


def test_the_suite_shows_the_means_of_the_chosen_runs(writer: ModuleType) -> None:
    folder = RESULTS / "suites" / "lra-small"
    tasks = {path.parent.name: path for path in folder.glob("*/results.json")}
    lines = {line["mixer"]: line for line in lines_of(writer, "suite")}
    for task, path in tasks.items():
        results = json.loads(path.read_text(encoding="utf-8"))
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
    results = json.loads((RESULTS / "suites/lra-small/results.json").read_text(encoding="utf-8"))
    mixers = {mixer["name"]: mixer for mixer in results["mixers"]}
    assert mixers["mega"]["ahead"] == ["listops", "image"]
    assert mixers["mega"]["speed"] < 1
    for name, others in (("s4", []), ("mlp_mixer", ["retrieval"])):
        assert mixers[name]["ahead"] == [*others, "image", "pathfinder"]
        assert mixers[name]["speed"] > 1


def test_small_tasks_are_those_of_the_suite(writer: ModuleType) -> None:
    folder = RESULTS / "suites" / "lra-small"
    lines = {line["task"]: line for line in lines_of(writer, "small-tasks")}
    assert lines.keys() == {path.parent.name for path in folder.glob("*/results.json")}
    for task, line in lines.items():
        results = json.loads((folder / task / "results.json").read_text(encoding="utf-8"))
        tested, trials = (
            [run for run in runs if run["mixer"] == "softmax"]
            for runs in (results["runs"], results["tuning"]["trials"])
        )
        mean = statistics.fmean(run["test"]["accuracy"] for run in tested)
        assert float(line["test"]) == pytest.approx(mean, rel=1e-5)
        assert float(line["test"]) > float(line["chance"]) + 0.05  # clearly above chance
        seconds = statistics.median(trial["wall_seconds"] for trial in trials)
        assert float(line["seconds"]) == pytest.approx(seconds, rel=1e-5)
        assert seconds < 600


def cells_of(page: str, question: str) -> dict[str, list[str]]:
    """Return {first cell: other cells} of the table below a question's picture."""
    (section,) = (part for part in page.split("\n## ") if part.startswith(f"{question}\n"))
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return {first.strip("`"): others for first, *others in lines[2:]}


def test_the_page_shows_the_accuracies_of_the_suite(
    writer: ModuleType, files: dict[Path, str]
) -> None:
    shown = cells_of(files[writer.PAGE], "Which mixer for me?")
    lines = {line["title"]: line for line in lines_of(writer, "suite")}
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


def test_rows_in_full_are_shown_with_the_mean_of_their_seeds(
    writer: ModuleType, files: dict[Path, str]
) -> None:
    shown = cells_of(files[writer.PAGE], "Do the papers' numbers come out?")
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    others: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in (RESULTS / "reproduce").glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["printed"] is not None and not result["is_reduced"]:
            name = result["recipe"]["name"]
            is_own = result["result"]["precision"] == get_recipe(name).train.precision
            if changed := changed_settings(result):
                name = f"{name}`, {changed}"
            (runs if is_own else others)[name].append(result)
    for name, elsewhere in others.items():  # add seeds that were run in another precision only
        seeds_of = {result["seed"] for result in runs[name]}
        runs[name] += [result for result in elsewhere if result["seed"] not in seeds_of]
    assert shown.keys() == runs.keys()
    for name, (printed, ours, difference, error, seeds, *why) in shown.items():
        mean = statistics.fmean(result["ours"] for result in runs[name])
        assert ours.split(" ")[0] == f"{mean:.2f}"
        assert float(seeds) == len(runs[name])
        if changed_settings(runs[name][0]):
            assert not any((printed, difference, error, *why))
            continue
        reported = runs[name][0]["printed"]
        both = math.hypot(standard_error(runs[name], mean), standard_error(runs[name], reported))
        assert printed == f"{reported:.2f}"
        assert difference == f"{mean - reported:+.2f}"
        assert error == f"{both:.2f}"
        if abs(mean - reported) > 2 * both:
            assert why != [""]
    nystromformer = shown["dimension_mixer/table5-listops-nystromformer"]
    assert re.search(r"\bseed 0\b.*\b17\.85 in bf16\b.*\bseed 0\b", nystromformer[-1])
    assert re.search(r"\]\(#[\w-]+\)", shown["dimension_mixer/table5-listops-reformer"][-1])
    performer = shown["dimension_mixer/table5-listops-performer"]
    assert "seeds 0 and 1 " in performer[-1]


def standard_error(runs: list[dict[str, Any]], percent: float) -> float:
    """Return the standard error of one run's test accuracy in percent."""
    task, share = runs[0]["task"], percent / 100
    size = task["sizes"]["test"] if "sizes" in task else task["options"]["num_test"]
    return 100 * math.sqrt(share * (1 - share) / size)


def test_rows_of_other_settings_do_not_count_as_reproduced(
    writer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check recipes with changed settings for sentences and reviews."""
    page = sys.modules["results_printed"]
    rows = [f"sinkhorn/table6-{data}" for data in ("sst", "imdb")]
    recipes = {}
    for name in list_recipes():
        recipe = get_recipe(name)
        if name.startswith(tuple(rows)):
            recipe = replace(recipe, train=replace(recipe.train, label_smoothing=0.3))
        recipes[name] = recipe
    monkeypatch.setattr(registry, "_RECIPES", {n: (lambda r=r: r) for n, r in recipes.items()})
    answer = page.printed()
    full = [line for line in answer.table if not line["is_reduced"]]
    changed = [line for line in full if line["recipe"].startswith(tuple(rows))]
    assert len(changed) >= 18
    for line in changed:
        assert line["changed"]
        assert (line["printed"], line["standard_error"]) == ("", "")
        assert f"`{line['recipe']}`, {line['changed']}" in answer.shown
    assert f"{len(full) - len(changed)} of {len(full)} rows remain" in answer.says


def test_bits_of_a_byte_are_the_means_of_the_runs(writer: ModuleType) -> None:
    lines = lines_of(writer, "text")
    assert {line["result"] for line in lines} == {path.stem for path in RESULTS.glob("text-*.json")}
    for line in lines:
        runs = [r for r in comparison(line["result"])["runs"] if r["mixer"] == line["mixer"]]
        bits = [run["test"]["loss"] / math.log(2) for run in runs]  # a token is a byte
        assert len(bits) == int(line["seeds"]) == 3
        assert float(line["bits_per_byte"]) == pytest.approx(statistics.fmean(bits), rel=1e-5)
        assert float(line["bits_per_byte_std"]) == pytest.approx(statistics.stdev(bits), rel=1e-4)


def test_groups_are_compared_at_equal_parameters(writer: ModuleType) -> None:
    lines = lines_of(writer, "grouped")
    for name in {line["result"] for line in lines}:
        results = comparison(name)
        of = {line["mixer"]: line for line in lines if line["result"] == name}
        assert of.keys() == {"tssa", "grouped"}
        assert of["tssa"]["parameters"] == of["grouped"]["parameters"]
        for mixer, line in of.items():
            found = [r["test"]["accuracy"] for r in results["runs"] if r["mixer"] == mixer]
            assert float(line["test"]) == pytest.approx(statistics.fmean(found), rel=1e-5)


def test_longer_texts_are_shown_as_they_were_measured() -> None:
    script = load_script("benchmarks/tssa_lengths.py")
    (path,) = RESULTS.glob("tssa-lengths-*.json")
    table = script.table(json.loads(path.read_text(encoding="utf-8")))
    assert table in script.PAGE.read_text(encoding="utf-8")


def test_the_commonest_answer_was_left_where_the_validation_says(writer: ModuleType) -> None:
    """Check the first accuracy above a quarter per length.

    Short and full runs count.
    """
    expected = []
    for path in RESULTS.glob("plateau-*.json"):
        result = comparison(path.stem)
        expected += [
            (row["form"].partition("/")[0], result["length"], row["seed"], row["validation"])
            for row in result["rows"]
        ]
    for path in (RESULTS / "reproduce").glob("dimension_mixer-table5-listops-*.json"):
        result = comparison(path.stem)
        settings = result["recipe"]["model_settings"]
        curve = result["result"]["validation"]
        if not result["is_reduced"]:
            expected.append((settings["mixer"], settings["max_length"], result["seed"], curve))
    found = [
        (line["mixer"], int(line["positions"]), int(line["seed"]), line["left"])
        for line in lines_of(writer, "plateau")
    ]
    assert sorted(found) == sorted(
        (*row, next((str(p["step"]) for p in curve if p["accuracy"] > 0.25), ""))
        for *row, curve in expected
    )


def test_baselines_are_beside_the_packages_that_do_the_same(writer: ModuleType) -> None:
    path = max(
        (RESULTS / "peers").glob("*.json"), key=lambda p: comparison(p.stem)["environment"]["time"]
    )
    timed = {
        (row["kind"], row["name"], row["shape"]["tokens"]): row["passes"]["forward_backward"]
        for row in comparison(path.stem)["rows"]
        if row["passes"]
    }
    lines = lines_of(writer, "packages")
    assert {line["mixer"] for line in lines} >= {
        "nystromformer", "performer", "linformer", "local", "reformer", "linear", "sinkhorn"
    }  # fmt: skip
    for line in lines:
        tokens = int(line["tokens"])
        ours, theirs = timed["layer", line["mixer"], tokens], timed["peer", line["package"], tokens]
        for key, mine, other in (
            ("time", "p50", "p50"),
            ("low", "p20", "p80"),
            ("high", "p80", "p20"),
        ):
            assert float(line[key]) == pytest.approx(ours[mine] / theirs[other], rel=1e-5)
        memory = ours["peak_memory_bytes"] / theirs["peak_memory_bytes"]
        assert float(line["memory"]) == pytest.approx(memory, rel=1e-5)


def test_memory_is_that_of_the_scaling(writer: ModuleType) -> None:
    """Check that softmax attention is the unit."""
    path, _ = writer.write_mixers.newest_scaling()
    rows = {
        (row["name"], row["shape"]["tokens"]): row["passes"]
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]
        if row["kind"] == "layer"
    }
    for line in lines_of(writer, "memory"):
        key = line["mixer"], int(line["tokens"])
        held = rows[key]["forward_backward"]["peak_memory_bytes"]
        assert int(line["training_memory_bytes"]) == held
        if line["x_softmax"]:
            base = rows["softmax", key[1]]["forward_backward"]["peak_memory_bytes"]
            assert float(line["x_softmax"]) == pytest.approx(held / base, rel=1e-5)


def test_every_question_has_a_picture_with_words_and_a_dark_form(files: dict[Path, str]) -> None:
    drawn = [text for path, text in files.items() if path.suffix == ".svg"]
    assert len(drawn) >= 6
    for text in drawn:
        assert len(ElementTree.fromstring(text).get("aria-label") or "") > 60
        assert "prefers-color-scheme: dark" in text
    (page,) = (text for path, text in files.items() if path.name == "results.md")
    assert page.count("\n## ") == page.count("![") == page.count("\nTable: ")


def test_points_of_a_panel_are_where_their_numbers_say() -> None:
    pictures = load_script("docs/results_pictures.py")
    panel = [pictures.Point("a", 2.0, 3.0, 0.1), pictures.Point("b", 4.0, 2.0, 0.0)]
    sheet = ElementTree.fromstring(pictures.scatter("t", {"one": panel, "two": panel}))
    (a, b, c, d) = (circle.attrib for circle in sheet.iter("{http://www.w3.org/2000/svg}circle"))
    assert float(b["cx"]) > float(a["cx"])
    assert float(b["cy"]) > float(a["cy"])  # y grows downwards
    assert a["cy"] == c["cy"]
    step = float(b["cx"]) - float(a["cx"])
    assert float(d["cx"]) - float(c["cx"]) == pytest.approx(step, abs=0.11)
    assert float(c["cx"]) > float(b["cx"])


def test_labels_of_curves_keep_apart() -> None:
    pictures = load_script("docs/results_pictures.py")
    wanted = {"a": 10.0, "b": 11.0, "c": 12.0, "d": 80.0}
    placed = pictures._apart(wanted)
    heights = sorted(placed.values())
    assert min(b - a for a, b in pairwise(heights)) > 14.9
    assert placed["d"] == pytest.approx(80.0)
    assert placed["a"] < placed["b"] < placed["c"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.7), (-11.6, 28.9), (38.0, 85.0), (0.87, 1.16)])
def test_ticks_are_few_and_enclose_the_values(low: float, high: float) -> None:
    ticks = load_script("docs/results_pictures.py")._ticks(low, high)
    assert ticks[0] <= low < high <= ticks[-1]
    assert 3 <= len(ticks) <= 10
