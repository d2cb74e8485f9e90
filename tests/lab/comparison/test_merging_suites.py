"""Tests of merging parts of a suite: tasks, mixers and seeds, and refused parts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_compare import measured
from test_suite_runs import SMALL, TINY

import rifflemix as rm
from command_line import Cli
from rifflemix.errors import InputError
from rifflemix.json_values import sealed
from rifflemix.lab.comparison import SUITES
from rifflemix.lab.comparison.suites.merging import is_suite, merge_suites

MIXERS = ["identity", "csp"]


@pytest.fixture(scope="module", autouse=True)
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIFFLEMIX_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(SUITES, "tiny", TINY)
        patch.setattr("rifflemix.lab.comparison.pages.plot.comparison_plot", lambda results: b"")
        patch.setattr("rifflemix.lab.comparison.run.training_memory", lambda *_: 1_000)
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run parts of a suite: task coarse, and task fine by mixer. Also run a comparison."""
    root = tmp_path_factory.mktemp("suites")
    rm.compare_suite("tiny", MIXERS, out=root / "coarse", tasks=["coarse"], **SMALL)
    for mixer in MIXERS:
        rm.compare_suite("tiny", [mixer], out=root / mixer, tasks=["fine"], **SMALL)
    rm.compare("digits", ["identity"], max_steps=1, batch_size=8, out=root / "other", **SMALL)
    return root


def by_run(comparison: rm.Comparison) -> list[dict[str, Any]]:
    return sorted(measured(dict(comparison.results)), key=lambda run: run["mixer"])


@pytest.mark.slow
def test_merged_parts_equal_the_suite(folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # Reverse the mixers of the second task: the page has one row for each mixer.
    found = merge_suites([folders / "coarse", folders / "csp", folders / "identity"], out)
    assert found.results == json.loads((out / "results.json").read_text())
    rm.compare_suite("tiny", MIXERS, out=tmp_path / "whole", **SMALL)
    whole = json.loads((tmp_path / "whole" / "results.json").read_text())
    for name in ("suite", "title", "status", "tasks_planned", "answers"):
        assert found.results[name] == whole[name]
    ranks = [{k: v for k, v in m.items() if k != "speed"} for m in found.results["mixers"]]
    assert ranks == [{k: v for k, v in m.items() if k != "speed"} for m in whole["mixers"]]
    assert list(found.comparisons) == ["coarse", "fine"]
    for task, comparison in found.comparisons.items():
        assert rm.Comparison.load(out / task).results == comparison.results
        assert by_run(comparison) == by_run(rm.Comparison.load(tmp_path / "whole" / task))
        for run in comparison.results["runs"]:
            assert (out / task / run["folder"] / "best.safetensors").is_file()
        assert (out / task / "report.html").is_file()
    assert str(found) == (out / "table.md").read_text(encoding="utf-8")
    assert "fine/report.html" in (out / "report.html").read_text(encoding="utf-8")


def test_merged_suite_can_be_merged_again(folders: Path, tmp_path: Path) -> None:
    fine = [folders / "identity", folders / "csp"]
    first = merge_suites(fine, tmp_path / "fine")
    assert first.results["tasks_planned"] == ["fine"]
    again = merge_suites(fine, tmp_path / "fine")
    assert by_run(again.comparisons["fine"]) == by_run(first.comparisons["fine"])
    both = merge_suites([tmp_path / "fine", folders / "coarse"], tmp_path / "both")
    assert list(both.comparisons) == ["coarse", "fine"]
    # `compare --suite` cannot continue this suite, because its runs are in other folders.
    with pytest.raises(InputError, match="out: "):
        rm.compare_suite("tiny", MIXERS, out=tmp_path / "both", **SMALL)


def test_on_the_command_line(folders: Path, tmp_path: Path, cli: Cli) -> None:
    out = str(tmp_path / "out")
    parts = [str(folders / name) for name in ("coarse", "identity", "csp")]
    outcome = cli("merge", *parts, "--out", out)
    assert outcome.code == 0, outcome.err
    assert out in outcome.out
    printed = json.loads(cli("merge", *parts, "--out", out, "--json").out)
    assert printed["tasks_planned"] == ["coarse", "fine"]


def changed(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a suite folder and change its results.json."""
    shutil.copytree(folder, target)
    path = target / "results.json"
    results = json.loads(path.read_text())
    change(results)
    path.write_text(json.dumps(results))
    return target


def test_folders_that_are_not_a_suite_are_refused(folders: Path, tmp_path: Path) -> None:
    def refused(match: str, *parts: Path) -> None:
        with pytest.raises(InputError, match=match) as raised:
            merge_suites(parts, tmp_path / "out")
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "out").exists()

    coarse, csp = folders / "coarse", folders / "csp"
    assert not is_suite(folders / "other")
    refused("expected two or more different folders", coarse)
    refused("expected two or more different folders", coarse, coarse)
    refused(
        "expected results of a suite in every folder, or in none, got none in",
        coarse,
        folders / "other",
    )
    refused("coarse and fine do not make one suite: mixers is", coarse, csp)
    other = changed(csp, tmp_path / "other", lambda results: results.update(suite="lra-small"))
    refused("merge: expected one suite, got tiny in .* and lra-small in", coarse, other)
    damaged = changed(csp, tmp_path / "damaged", lambda results: results.pop("tasks"))
    refused("results.json is damaged: .*`tasks`", coarse, damaged)
    strange = changed(
        csp,
        tmp_path / "strange",
        lambda results: results["tasks"].update(new=results["tasks"]["fine"]),
    )
    refused("has a task new, which suite tiny of this version has not", coarse, strange)
    gone = changed(csp, tmp_path / "gone", lambda results: None)
    shutil.rmtree(gone / "fine")
    refused("folder: expected one with results.json of a comparison", coarse, gone)


def test_tasks_that_the_last_page_does_not_have(folders: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    for task in ("fine", "coarse"):
        rm.compare_suite("tiny", MIXERS, out=part, tasks=[task], **SMALL)
    parts = [part, folders / "coarse"]
    with pytest.raises(InputError, match="--tasks"):
        merge_suites(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    rm.compare_suite("tiny", MIXERS, out=part, tasks=["coarse", "fine"], **SMALL)
    assert list(merge_suites(parts, tmp_path / "out").comparisons) == ["coarse", "fine"]


def test_another_size_of_the_model_is_refused(folders: Path, tmp_path: Path) -> None:
    wide = {**SMALL, "dim": 16}
    rm.compare_suite("tiny", MIXERS, out=tmp_path / "wide", tasks=["fine"], **wide)
    with pytest.raises(InputError, match=r"coarse and fine\b.*\b8\b"):
        merge_suites([folders / "coarse", tmp_path / "wide"], tmp_path / "out")
    with pytest.raises(InputError, match=r"\bdim .*\b8\b.*\b16\b"):
        merge_suites([folders / "csp", tmp_path / "wide"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unfinished_and_tampered_parts_are_refused(folders: Path, tmp_path: Path) -> None:
    def change(target: Path, entry: str, value: Any, *, seal: bool) -> Path:
        shutil.copytree(folders / "coarse", target)
        path = target / "coarse" / "results.json"
        results = json.loads(path.read_text()) | {entry: value}
        path.write_text(json.dumps(sealed(results) if seal else results))
        return target

    partial = change(tmp_path / "partial", "status", "partial", seal=True)
    with pytest.raises(InputError, match="merge:"):
        merge_suites([partial, folders / "csp"], tmp_path / "out")
    tampered = change(tmp_path / "tampered", "wall_seconds", 1.0, seal=False)
    with pytest.raises(InputError, match=r"results\.json"):
        merge_suites([tampered, folders / "csp"], tmp_path / "out")


def test_a_suite_that_was_stopped_between_tasks_is_refused(folders: Path, tmp_path: Path) -> None:
    """Check the refusal, because the page of the suite lacks the task that did not begin."""

    def stop(results: dict[str, Any]) -> None:
        results |= {"status": "partial", "tasks_planned": ["coarse", "fine"]}

    stopped = changed(folders / "coarse", tmp_path / "stopped", stop)
    with pytest.raises(InputError, match=r"got .*\bfine\b"):
        merge_suites([stopped, folders / "coarse"], tmp_path / "out")
