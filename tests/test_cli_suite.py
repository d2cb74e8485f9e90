"""`rifflemix compare --suite` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from rifflemix.cli import suite as command
from rifflemix.lab.comparison import SUITES
from rifflemix.lab.comparison.suites.catalog import Suite, SuiteTask

PIECES = SuiteTask("digits", {"patch_size": 4}, {"max_steps": 2, "batch_size": 8})
TINY = Suite(
    "tiny", "Digits twice", {"one": PIECES, "two": PIECES}, ("identity",), seeds=1, lr=(1e-3,)
)


SMALL = ("--dim", "8", "--layers", "1", "--heads", "2", "--threads", "1")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "tiny", TINY)
    monkeypatch.setattr("rifflemix.lab.comparison.pages.plot.comparison_plot", lambda results: b"")
    monkeypatch.setattr("rifflemix.lab.comparison.run.training_memory", lambda *_: 1_000)


def test_suite_stops_between_tasks_and_resumes(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ("compare", "--suite", "tiny", *SMALL, "--max-steps", "1", "--out", str(out))
    shown = command.run_with_live_table

    def stopped_at_the_end(*given: Any, **more: Any) -> tuple[dict[str, Any], bool]:
        return shown(*given, **more)[0], True

    monkeypatch.setattr(command, "run_with_live_table", stopped_at_the_end)
    first = cli(*arguments)
    assert first.code == 130
    assert "2 tasks, runs and trials to make: 2, about " in first.err
    assert re.search(r"\bone\b.*\b1 of 2\b", first.err)
    assert "two" not in first.err
    assert re.search(r"\b1 of 2\b", first.err.splitlines()[-1])
    monkeypatch.setattr(command, "run_with_live_table", shown)
    second = cli(*arguments)
    assert second.code == 0, second.err
    assert "2 tasks, runs and trials to make: 1, about " in second.err
    assert re.search(r"identity seed 0\b.*\b1/1\b", second.err)
    assert "Identity (no mixing)" in second.out
    again = cli(*arguments, "--json")
    assert json.loads(again.out)["tasks_planned"] == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--suite tiny --task digits", "--task: .*--suite tiny, got digits"),
        ("--suite tiny --config a.toml", "--config: .*--suite tiny, got a.toml"),
        ("--suite tiny --model encoder", "--model: .*--suite tiny, got encoder"),
        ("--suite tiny --task-option a=1", "--task-option: .*--suite tiny, got .*a=1"),
        ("--suite tiny --data a.csv", "--data: .*--suite tiny, got a.csv"),
        ("--suite tiny --tasks one,three", "tiny 'three'"),
        ("--suite tiny --tasks one,", "--tasks: .*got 'one,'"),
        ("--suite lra", "'lra'.*lra-small"),
        ("--task digits --tasks one", "--tasks: .*--suite"),
        ("--suite lra-small --tasks text,image", r"lra-small .*text \(.*image \("),
    ],
)
def test_errors_are_one_line(
    cli: Cli, tmp_path: Path, arguments: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    out, empty = tmp_path / "out", tmp_path / "data"
    empty.mkdir()  # a given folder disables downloads
    outcome = cli("compare", *arguments.split(), "--data-dir", str(empty), "--out", str(out))
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert re.search(message, outcome.err)
    assert not out.exists()
