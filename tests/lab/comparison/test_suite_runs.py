"""Tests of suites that run: files, stop and resume, missing data, refused arguments."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rifflemix as rm
from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.comparison import (
    SUITES,
    ComparePlan,
    Results,
    get_suite,
    plan_suite,
    run_comparison,
    run_suite,
)
from rifflemix.lab.comparison.choices import resolve
from rifflemix.lab.comparison.suites.catalog import Suite, SuiteTask
from rifflemix.lab.runs.status import RunStatus
from rifflemix.lab.tasks import task_card
from rifflemix.locks import locked

TINY = Suite(
    "tiny",
    "Two tiny tasks",
    {
        "coarse": SuiteTask("digits", {"patch_size": 4}, {"max_steps": 2, "batch_size": 8}),
        "fine": SuiteTask(
            "listops",
            {
                "min_length": 5,
                "max_length": 12,
                "num_train": 32,
                "num_validation": 8,
                "num_test": 8,
            },
            {"max_steps": 2, "batch_size": 8},
        ),
    },
    ("identity",),
    seeds=1,
    lr=(1e-3,),
)
SMALL = {"dim": 8, "num_layers": 1, "num_heads": 2, "threads": 1}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Suite:
    """Register a tiny suite without plots and memory measurements.

    Other tests check these two parts, which take most of the time.
    """
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(SUITES, "tiny", TINY)
    monkeypatch.setattr("rifflemix.lab.comparison.pages.plot.comparison_plot", lambda results: b"")
    monkeypatch.setattr("rifflemix.lab.comparison.run.training_memory", lambda *_: 1_000)
    return TINY


@pytest.mark.usefixtures("tiny")
def test_suite_from_python_writes_its_files(tmp_path: Path) -> None:
    out, seen = tmp_path / "out", list[RunStatus]()
    found = rm.compare_suite("tiny", out=out, on_status=seen.append, **SMALL)
    assert found.results["status"] == "complete"
    assert list(found.comparisons) == ["coarse", "fine"]
    assert json.loads((out / "results.json").read_text()) == found.results
    assert str(found) == (out / "table.md").read_text(encoding="utf-8")
    assert "fine/report.html" in (out / "report.html").read_text(encoding="utf-8")
    assert repr(found) == "SuiteComparison(tiny: coarse, fine)"
    for name, comparison_of in found.comparisons.items():
        assert comparison_of.results["config"]["train"]["lr"] == 1e-3
        assert comparison_of.results["task"]["name"] == TINY.tasks[name].task
        assert (out / name / "report.html").is_file()
    assert seen
    seen.clear()
    # A task of a suite is an ordinary comparison, so no run is left.
    settings = {**TINY.settings(TINY.tasks["coarse"]), **SMALL}
    same = rm.compare("digits", TINY.mixers, out=out / "coarse", on_status=seen.append, **settings)
    assert not seen
    assert same.results == found.comparisons["coarse"].results
    with pytest.raises(InputError, match=r"out: .*mixers"):
        rm.compare_suite("tiny", ["softmax"], out=out, **SMALL)
    with pytest.raises(InputError, match="out: "):
        rm.compare("digits", ["identity"], out=out, **SMALL)


def plan(tiny: Suite, out: Path) -> Any:
    configs = {
        name: resolve(
            task_card(task.task),
            {"identity": "identity"},
            (0,),
            **{**tiny.settings(task), "lr": 1e-3, **SMALL},
        )
        for name, task in tiny.tasks.items()
    }
    return plan_suite(tiny, configs, out)


def test_stopped_suite_writes_a_partial_page_and_resumes(tiny: Suite, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made: list[str] = []

    def stopped(one: ComparePlan) -> Results:
        made.append(one.out.name)
        return run_comparison(one, should_stop=lambda: len(made) == 2)

    partial, _ = run_suite(plan(tiny, out), stopped)
    assert partial.status == "partial"
    assert partial.tasks["coarse"].status == "complete"
    assert partial.tasks["fine"].runs_done == 0
    assert re.search(r"\bfine\b.*\b0 of 1\b", (out / "table.md").read_text(encoding="utf-8"))
    between, _ = run_suite(plan(tiny, out), run_comparison, should_stop=lambda: True)
    assert (between.status, list(between.tasks)) == ("partial", ["coarse"])
    whole, _ = run_suite(plan(tiny, out), run_comparison)
    assert whole.status == "complete"


@pytest.mark.usefixtures("tiny")
def test_suite_reports_that_all_runs_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunFailed, match="diverged"):
        rm.compare_suite(
            "tiny", ["softmax"], tasks=["coarse"], out=tmp_path / "out", lr=1e30, **SMALL
        )


NEEDS_DATA = replace(
    TINY,
    tasks={
        **TINY.tasks,
        "text": SuiteTask("text", {"max_length": 16}, {"max_steps": 2}),
        "image": SuiteTask("image", {"patch_size": 16}, {"max_steps": 2}),
    },
)


def test_missing_data_is_reported_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    drawn = SuiteTask("pathfinder32", {"num_train": 10**6}, {"max_steps": 2})  # takes an hour
    needy = replace(NEEDS_DATA, tasks={"drawn": drawn, **NEEDS_DATA.tasks})
    monkeypatch.setitem(SUITES, "tiny", needy)
    (tmp_path / "data").mkdir()
    out = tmp_path / "out"
    with pytest.raises(InputError) as raised:
        rm.compare_suite("tiny", out=out, data_dir=tmp_path / "data", **SMALL)
    assert not (tmp_path / "cache").exists()
    said = str(raised.value)
    assert re.search(r"tiny.*text \(.*image \(.*--tasks drawn,coarse,fine", said)
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"suite": "lra-smal"}, "'lra-smal'.*lra-small"),
        ({"tasks": ["fin"]}, "'fin'"),
        ({"tasks": []}, "tasks: .*got none"),
        ({"tasks": ["fine", "fine"]}, "tasks: .*got.*fine"),
        ({"model": "encoder"}, "model: .*encoder"),
        ({"task_options": {}}, "task_options: "),
        ({"max_step": 2}, "max_step.*max_steps"),
        ({"mixers": ["cps"]}, "'cps'.*csp"),
        ({"dim": 9, "mixers": ["softmax"]}, "softmax.*num_heads"),
        ({"seeds": 0}, r"seeds: .*got 0\b"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("tiny")
def test_invalid_suites_are_refused(tmp_path: Path, given: dict[str, Any], error: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match=error):
        rm.compare_suite(**{"suite": "tiny", "out": out, **SMALL, **given})
    assert not out.exists()


def test_folder_of_other_results_is_refused(tiny: Suite, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("")
    with pytest.raises(InputError, match=r"out: .*mine\.txt"):
        plan(tiny, tmp_path / "out")


@pytest.mark.slow
def test_every_mixer_of_the_small_suite_fits_a_padded_task(tmp_path: Path) -> None:
    suite = get_suite("lra-small")
    task = suite.tasks["listops"]
    few = {**task.options, "num_train": 64, "num_validation": 8, "num_test": 8}
    mixers = dict(zip(suite.mixers, suite.mixers, strict=True))
    settings = suite.settings(replace(task, options=few))
    config = resolve(task_card("listops"), mixers, (0,), **settings)
    planned = plan_suite(suite, {"listops": config}, tmp_path / "out")
    assert planned.plans["listops"].parameters.keys() == set(mixers)


def test_suite_waits_for_another_process_that_writes_the_page(tiny: Suite, tmp_path: Path) -> None:
    """Check the lock: several processes may run tasks of one suite, and all write the page."""
    out, taken, done = tmp_path / "out", threading.Event(), threading.Event()

    def other() -> None:
        with locked(out):
            taken.set()
            done.wait(10)

    def run(one: ComparePlan) -> Results:
        results = run_comparison(one)
        threading.Thread(target=other).start()
        assert taken.wait(10)
        threading.Timer(0.2, done.set).start()
        return results

    whole = plan(tiny, out)
    run_suite(replace(whole, plans={"coarse": whole.plans["coarse"]}), run)
    assert (out / "results.json").is_file()
