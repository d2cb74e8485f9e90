"""Tests of merging folders of comparisons into one table, and of refused folders."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import table_of
from test_compare import measured, settings, start

import rifflemix as rm
import rifflemix.cli
from rifflemix.errors import InputError
from rifflemix.json_values import sealed
from rifflemix.lab.comparison.merging import merge_comparisons
from rifflemix.lab.comparison.pages.notes import comparison_notes

RATES = {"tuned": {"lr": (1e-3, 1e-2)}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run each mixer alone."""
    root = tmp_path_factory.mktemp("merge")
    for mixer in ("softmax", "tssa"):
        start(root / f"{mixer}0", mixers=(mixer,), seeds=(0,))
    return root


@pytest.fixture(scope="module")
def all_folders(folders: Path) -> Path:
    """Also run each mixer with another seed, and both mixers together."""
    for mixer in ("softmax", "tssa"):
        start(folders / f"{mixer}1", mixers=(mixer,), seeds=(1,))
    start(folders / "both", seeds=(0, 1))
    return folders


def without_clock(mixers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in mixer.items() if k != "steps_per_second"} for mixer in mixers]


def by_run(results: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(measured(results), key=lambda run: (run["seed"], run["mixer"]))


@pytest.mark.slow
def test_merged_mixers_and_seeds_equal_one_comparison(all_folders: Path, tmp_path: Path) -> None:
    whole = rm.Comparison.load(all_folders / "both").results
    parts = [all_folders / name for name in ("softmax0", "tssa0", "softmax1", "tssa1")]
    merged = merge_comparisons(parts, tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert merged.results == results
    assert by_run(results) == by_run(whole)
    assert without_clock(results["mixers"]) == without_clock(whole["mixers"])
    assert (results["seeds"], results["config"]["seeds"]) == ([0, 1], [0, 1])
    assert results["config"]["mixers"] == ["softmax", "tssa"]
    assert results["runs_done"] == results["runs_planned"] == 4
    assert results["wall_seconds"] == pytest.approx(sum(r["wall_seconds"] for r in results["runs"]))
    for run in results["runs"]:
        assert (tmp_path / "out" / run["folder"] / "best.safetensors").is_file()
    files = {"config.json", "results.json", "table.md", "plot.png", "report.html"}
    assert {p.name for p in (tmp_path / "out").iterdir() if p.name != ".lock"} == files
    table = (tmp_path / "out" / "table.md").read_text()
    assert re.search(r"^\| Mixer \|.*\| p \|", table, re.MULTILINE)
    assert any(re.search(r"\b2 seeds", note) for note in comparison_notes(table_of(results)))
    assert rm.Comparison.load(tmp_path / "out").results == results


@pytest.mark.slow
def test_merge_is_identified_by_its_sources(
    all_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Identify a merge by its contents, because folders in two places may have equal names."""
    for place, parts in (("a", ("softmax0", "tssa0")), ("b", ("softmax1", "tssa1"))):
        for name, part in zip(("one", "two"), parts, strict=True):
            shutil.copytree(all_folders / part, tmp_path / place / name)
    out = tmp_path / "out"
    monkeypatch.chdir(tmp_path / "a")
    first = merge_comparisons(["one", "two"], out).results
    content = (out / "results.json").read_bytes()
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(InputError, match="out"):
        merge_comparisons(["one", "two"], out)
    assert (out / "results.json").read_bytes() == content
    (tmp_path / "a").rename(tmp_path / "moved")
    again = merge_comparisons([tmp_path / "moved" / name for name in ("one", "two")], out).results
    assert measured(dict(again)) == measured(dict(first))


@pytest.mark.slow
def test_a_run_in_two_folders_counts_once(all_folders: Path, tmp_path: Path) -> None:
    whole = all_folders / "both"
    merged = merge_comparisons([whole, all_folders / "softmax1"], tmp_path / "out")
    assert by_run(dict(merged.results)) == by_run(rm.Comparison.load(whole).results)


@pytest.mark.slow
def test_on_the_command_line(
    all_folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    words = ["merge", all_folders / "softmax0", all_folders / "tssa0", "--out", out]
    monkeypatch.setattr(sys, "argv", ["rifflemix", *map(str, words)])
    for _ in range(2):  # the second pass writes into the folder of the first
        assert rifflemix.cli.main() == 0
        printed = capsys.readouterr().out
        assert "Softmax attention" in printed
        assert str(out) in printed
    monkeypatch.setattr(
        sys, "argv", ["rifflemix", "merge", str(all_folders / "both"), "--out", "x"]
    )
    assert rifflemix.cli.main() == 2
    assert "error: merge: " in capsys.readouterr().err


def changed(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy the results of a folder with a change."""
    results = json.loads((folder / "results.json").read_text())
    change(results)
    target.mkdir()
    # Update the checksums, so that the change does not count as damage.
    results["runs"] = [sealed(run) for run in results["runs"]]
    if results.get("tuning"):
        results["tuning"]["trials"] = [sealed(trial) for trial in results["tuning"]["trials"]]
    (target / "results.json").write_text(json.dumps(sealed(results)))
    return target


def _other_budget(results: dict[str, Any]) -> None:
    results["config"]["train"]["max_steps"] = 7


def _other_data(results: dict[str, Any]) -> None:
    results["config"]["data"] = "0"


def _other_width(results: dict[str, Any]) -> None:
    results["config"]["dim"] = 8


def _other_task(results: dict[str, Any]) -> None:
    results["config"]["task"] = "listops"


def _unfinished(results: dict[str, Any]) -> None:
    results |= {"status": "partial", "runs_planned": 2}


def _other_options(results: dict[str, Any]) -> None:
    results["config"]["mixer_options"] = {"softmax": {"bias": False}}


def _other_mixer(results: dict[str, Any]) -> None:
    results["config"]["variants"] = {"softmax": "linear"}


def _other_plugin(results: dict[str, Any]) -> None:
    results["config"]["plugins"] = {"mine.py": "12"}


def _other_numbers(results: dict[str, Any]) -> None:
    results["runs"][0]["test"]["accuracy"] = 0.5


def _diverged(results: dict[str, Any]) -> None:
    run = results["runs"].pop()
    results["failed_runs"] = [{k: run[k] for k in ("mixer", "seed", "folder")} | {"error": "x"}]


def _other_seed(results: dict[str, Any]) -> None:
    results["config"]["mixers"] = [results["mixers"][0]["name"]]
    results["mixers"][0]["name"] = results["runs"][0]["mixer"] = "csp"
    results["config"]["mixers"] = ["csp"]
    results["runs"][0]["seed"] = 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_budget, r"train.max_steps.*\b6\b.*\b7\b"),
        (_other_data, "merge: .*'0'"),
        (_other_width, r"merge: .*\b16\b.*\b8\b"),
        (_other_task, "'digits'.*'listops'"),
        (_unfinished, r"merge: .*\b1\b.*\b2\b"),
        (_other_options, "softmax.*mixer_options None.*{'bias': False}"),
        (_other_mixer, "softmax.*None.*'linear'"),
        (_other_numbers, r"softmax.*\b0\b"),
        (_diverged, r"softmax.*\b0\b"),
        (_other_seed, r"got softmax.*\b0\b.*csp.*\b5\b"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_incompatible_comparisons_are_refused(
    change: Callable[[dict[str, Any]], None], words: str, folders: Path, tmp_path: Path
) -> None:
    other = changed(folders / "softmax0", tmp_path / "other", change)
    with pytest.raises(rm.InputError, match=words):
        merge_comparisons([folders / "softmax0", other], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_diverged_run_in_several_folders_counts_once(tmp_path: Path) -> None:
    wild = {"lr": 1e30, "warmup_steps": 0, "clip_norm": None, "checkpoint_every": 1}
    train = replace(settings().train, **wild)
    start(tmp_path / "one", mixers=("softmax",), train=train)
    start(tmp_path / "two", train=train)
    merged = merge_comparisons([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    assert [run["mixer"] for run in merged.results["failed_runs"]] == ["softmax", "tssa"]


def test_settings_without_effect_on_results_may_differ(folders: Path, tmp_path: Path) -> None:
    def loaded_by_others(results: dict[str, Any]) -> None:
        results["config"]["train"] |= {"num_workers": 8, "checkpoint_every": 9}

    other = changed(folders / "softmax0", tmp_path / "other", loaded_by_others)
    merged = merge_comparisons([folders / "tssa0", other], tmp_path / "out")
    assert merged.results["config"]["mixers"] == ["tssa", "softmax"]


def test_plugins_of_merged_runs_must_be_equal(folders: Path, tmp_path: Path) -> None:
    one = changed(folders / "softmax0", tmp_path / "one", _other_plugin)
    merged = merge_comparisons([one, folders / "tssa0"], tmp_path / "out")
    assert merged.results["config"]["plugins"] == {"mine.py": "12"}

    def another(results: dict[str, Any]) -> None:
        results["config"]["plugins"] = {"mine.py": "13"}

    two = changed(folders / "tssa0", tmp_path / "two", another)
    with pytest.raises(rm.InputError, match=r"mine\.py"):
        merge_comparisons([one, two], tmp_path / "again")


def test_mixer_code_does_not_depend_on_its_file(folders: Path, tmp_path: Path) -> None:
    def of_a_file(name: str, digest: str) -> Callable[[dict[str, Any]], None]:
        plugins = {name: digest, "mixer softmax": name}
        return lambda results: results["config"].update(plugins=plugins)

    one = changed(folders / "softmax0", tmp_path / "one", of_a_file("one.py", "12"))
    same = changed(folders / "softmax0", tmp_path / "same", of_a_file("same.py", "12"))
    other = changed(folders / "softmax0", tmp_path / "two", of_a_file("two.py", "13"))
    merged = merge_comparisons([one, same], tmp_path / "out")
    assert set(merged.results["config"]["plugins"]) == {"one.py", "same.py", "mixer softmax"}
    with pytest.raises(rm.InputError, match=r"merge: .*softmax"):
        merge_comparisons([one, other], tmp_path / "again")


def test_missing_settings_of_older_files_count_as_off(folders: Path, tmp_path: Path) -> None:
    """Check that a missing setting counts as off in an older file."""

    def older(results: dict[str, Any]) -> None:
        for name in ("mixup", "label_smoothing", "num_workers"):
            del results["config"]["train"][name]

    def loading(results: dict[str, Any]) -> None:
        results["config"]["train"]["num_workers"] = 3

    def mixed(results: dict[str, Any]) -> None:
        results["config"]["train"]["mixup"] = 0.5

    one = changed(folders / "softmax0", tmp_path / "one", older)
    two = changed(folders / "tssa0", tmp_path / "two", loading)
    merged = merge_comparisons([one, two], tmp_path / "out")
    assert merged.results["config"]["mixers"] == ["softmax", "tssa"]
    other = changed(folders / "tssa0", tmp_path / "other", mixed)
    with pytest.raises(rm.InputError, match=r"train\.mixup.*\b0\.0\b.*\b0\.5\b"):
        merge_comparisons([one, other], tmp_path / "again")


def test_folders_that_cannot_be_merged(folders: Path, tmp_path: Path) -> None:
    one = folders / "softmax0"
    for paths in ([one], [one, one], [one, one / ".." / "softmax0"], []):
        with pytest.raises(rm.InputError, match="merge:"):
            merge_comparisons(paths, tmp_path / "out")
    with pytest.raises(rm.InputError, match=r"folder: .*results\.json"):
        merge_comparisons([one, tmp_path], tmp_path / "out")
    with pytest.raises(rm.InputError, match="merge:"):
        merge_comparisons([one, "x" * 256], tmp_path / "out")
    with pytest.raises(rm.InputError, match="out:"):
        merge_comparisons([one, folders / "tssa0"], shutil.copytree(one, tmp_path / "held"))


@pytest.mark.slow
def test_tuned_comparisons_keep_their_trials(tmp_path: Path) -> None:
    for mixer in ("softmax", "tssa"):
        start(tmp_path / mixer, mixers=(mixer,), **RATES)
    merged = merge_comparisons([tmp_path / "softmax", tmp_path / "tssa"], tmp_path / "out").results
    assert [mixer["tuning"]["chosen"] for mixer in merged["mixers"]] == [{"lr": 1e-2}] * 2
    assert len(merged["tuning"]["trials"]) == merged["tuning"]["trials_planned"] == 4
    spent = [rm.Comparison.load(tmp_path / name).results for name in ("softmax", "tssa")]
    assert merged["wall_seconds"] == pytest.approx(sum(part["wall_seconds"] for part in spent))
    assert re.search(r"\b4 trials", "\n".join(comparison_notes(table_of(merged))))

    def other_seed(results: dict[str, Any]) -> None:
        for run in (*results["runs"], *results["tuning"]["trials"]):
            run["seed"] = 1

    def other_choice(results: dict[str, Any]) -> None:
        other_seed(results)
        results["mixers"][0]["tuning"]["chosen"] = {"lr": 1e-3}

    more = changed(tmp_path / "tssa", tmp_path / "more", other_seed)
    both = merge_comparisons([tmp_path / "tssa", more], tmp_path / "both").results
    (mixer,) = both["mixers"]
    assert [tried["validation"]["n"] for tried in mixer["tuning"]["tried"]] == [2, 2]
    assert mixer["tuning"]["wall_seconds"] == pytest.approx(2 * spent[1]["wall_seconds"])
    bad = changed(tmp_path / "tssa", tmp_path / "bad", other_choice)
    with pytest.raises(rm.InputError, match=r"tssa.*{'lr': 0.01}.*{'lr': 0.001}"):
        merge_comparisons([tmp_path / "tssa", bad], tmp_path / "no")
