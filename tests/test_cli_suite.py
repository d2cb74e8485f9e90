"""`rifflemix compare --suite` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from rifflemix.cli import suite as command
from rifflemix.lab.comparison import SUITES
from rifflemix.lab.comparison.suites import Suite, SuiteTask

PIECES = SuiteTask("digits", {"patch_size": 4}, {"max_steps": 2, "batch_size": 8})
TINY = Suite(
    "tiny", "Digits twice", {"one": PIECES, "two": PIECES}, ("identity",), seeds=1, lr=(1e-3,)
)


SMALL = ("--dim", "8", "--layers", "1", "--heads", "2", "--threads", "1")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "tiny", TINY)
    monkeypatch.setattr("rifflemix.lab.comparison.plot.comparison_plot", lambda results: b"")
    monkeypatch.setattr("rifflemix.lab.comparison.run.training_memory", lambda *_: 1_000)


def test_a_suite_stops_between_tasks_and_goes_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ("compare", "--suite", "tiny", *SMALL, "--max-steps", "1", "--out", str(out))
    shown = command.run_shown

    def stopped_at_the_end(*given: Any) -> tuple[dict[str, Any], bool]:
        return shown(*given)[0], True

    monkeypatch.setattr(command, "run_shown", stopped_at_the_end)
    first = cli(*arguments)
    assert first.code == 130
    assert "2 tasks, runs and trials to make: 2, about " in first.err
    assert "one, task 1 of 2" in first.err
    assert "two" not in first.err
    assert "1 of 2 tasks are done; run the same command to continue" in first.err
    monkeypatch.setattr(command, "run_shown", shown)
    second = cli(*arguments)
    assert second.code == 0, second.err
    assert "2 tasks, runs and trials to make: 1, about " in second.err
    assert "identity seed 0: done, step 1/1" in second.err
    assert "One seed decides no difference" in second.out
    assert "Identity (no mixing)" in second.out
    again = cli(*arguments, "--json")
    assert json.loads(again.out)["tasks_planned"] == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--suite tiny --task digits", "--task: expected none beside --suite tiny, got digits"),
        ("--suite tiny --config a.toml", "--config: expected none beside --suite tiny"),
        ("--suite tiny --model encoder", "--model: expected none beside --suite tiny"),
        ("--suite tiny --task-option a=1", "--task-option: expected none beside --suite tiny"),
        ("--suite tiny --data a.csv", "--data: expected none beside --suite tiny"),
        ("--suite tiny --tasks one,three", "unknown task of suite tiny 'three'"),
        ("--suite tiny --tasks one,", "--tasks: expected names with commas between them"),
        ("--suite lra", "unknown suite 'lra'; did you mean lra-small"),
        ("--task digits --tasks one", "--tasks: expected a --suite that they are of, got none"),
        ("--suite lra-small --tasks text,image", "suite lra-small finds no data for text ("),
    ],
)
def test_what_is_wrong_is_one_line(
    cli: Cli, tmp_path: Path, arguments: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    out, empty = tmp_path / "out", tmp_path / "data"
    empty.mkdir()  # with a folder given, nothing is looked for in a network
    outcome = cli("compare", *arguments.split(), "--data-dir", str(empty), "--out", str(out))
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert message in outcome.err
    assert not out.exists()
