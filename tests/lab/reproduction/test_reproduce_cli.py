"""Tests of the commands reproduce, report and list recipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rifflemix.cli
from command_line import Cli, Outcome
from rifflemix.json_values import encode
from rifflemix.lab.recipes import Recipe, list_recipes, registry
from rifflemix.lab.reproduction import Reproduction
from rifflemix.lab.tasks.synthetic import listops
from small_recipes import QUICK, small

pytestmark = pytest.mark.usefixtures("no_matmul_timing")


def is_one_line_error(outcome: Outcome) -> bool:
    return (
        outcome.code == 2
        and outcome.out == ""
        and outcome.err.startswith("error: ")
        and outcome.err.count("\n") == 1
    )


@pytest.mark.parametrize(
    "command", [("reproduce",), ("report",), ("list", "recipes")], ids=" ".join
)
def test_help_with_an_example_and_json(command: tuple[str, ...], cli: Cli) -> None:
    outcome = cli(*command, "--help")
    assert outcome.code == 0
    examples = [line for line in outcome.out.splitlines() if "Usage" not in line]
    assert any(f"rifflemix {' '.join(command)}" in line for line in examples)
    assert "--json" in outcome.out


def test_reproduce_prints_the_reported_and_the_reproduced_value(
    tmp_path: Path, cli: Cli, listed: list[Recipe]
) -> None:
    shown = cli("reproduce", "test/digits", "--out", tmp_path / "run", "--max-steps", 4)
    assert shown.code == 0, shown.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert any(line.endswith(" 50.00 %") for line in lines)
    assert any(line.endswith(f" {results['ours']:.2f} %") for line in lines)
    assert any(line.endswith(f" {results['difference']:+.2f}") for line in lines)
    assert any(re.search(r"steps 4\b.*\b8$", line) for line in lines)
    assert any(line.startswith("reduced run") for line in lines)
    as_json = cli("reproduce", "test/digits", "--out", tmp_path / "run", "--max-steps", 4, "--json")
    assert json.loads(as_json.out) == results


def test_end_of_the_budget_is_not_an_error(tmp_path: Path, cli: Cli, listed: list[Recipe]) -> None:
    arguments = ("reproduce", "test/digits", "--out", tmp_path / "run")
    stopped = cli(*arguments, "--budget", 1e-9)
    assert stopped.code == 0
    assert "1/8" in stopped.err
    assert json.loads((tmp_path / "run" / "results.json").read_text())["status"] == "partial"
    assert cli(*arguments, "--json").code == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["status"] == "complete"


def test_the_budget_includes_the_preparation_of_data(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(listops, "_SHARD", 40)
    counts = {"num_train": 80, "num_validation": 40, "num_test": 40}
    options = {"min_length": 5, "max_length": 20, **counts}
    recipe = small(train=QUICK, task="listops", task_options=options)
    monkeypatch.setattr(registry, "_RECIPES", {recipe.name: lambda: recipe})
    arguments = ("reproduce", "test/digits", "--out", tmp_path / "run", "--batch-size", 8)
    stopped = cli(*arguments, "--budget", 1e-9, "--json")
    assert stopped.code == 0
    assert "stopped, generating ListOps, train: 40 of 80; run the same command" in stopped.err
    assert json.loads(stopped.out)["status"] == "partial"
    assert not (tmp_path / "run").exists()
    trained = cli(*arguments, "--budget", 1e-9, "--json")  # the remaining data, and one update
    assert json.loads(trained.out)["steps"] == 1, trained.err
    assert json.loads(cli(*arguments, "--json").out)["status"] == "complete"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("test/digit", "--out", "{}/run"), "'test/digit'.*test/digits"),
        (("test/digits",), "out"),
        (("test/digits", "--out", "{}/run", "--max-steps", "9"), "max_steps: .*8 .*got 9"),
        (("test/digits", "--out", "{}/run", "--max-steps", "x"), "max-steps"),
        (("test/digits", "--out", "{}/run", "--scale", "0"), "scale: expected a number over 0"),
        *(
            (("test/digits", "--out", "{}/run", "--budget", minutes), "budget: expected")
            for minutes in ("0", "-1", "nan")
        ),
        (("test/digits", "--out", "{}/run", "--batch-size", "0"), "batch_size"),
        (("test/digits", "--out", "{}/run", "--seed", "-1"), "seed"),
        (("test/digits", "--out", "{}/run", "--device", "tpu"), "device"),
        (("test/digits", "--out", "{}/run", "--precision", "fp8"), "precision: .*'fp8'"),
        (("test/digits", "--out", "{}/run", "--threads", "0"), "threads"),
        (("test/digits", "--out", "{}/run", "--data-dir", "{}/none"), "data_dir"),
        (("test/digits", "--out", "{}/foreign"), r"out: .*note\.txt"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_bad_input_of_reproduce_is_one_line(
    tmp_path: Path, cli: Cli, listed: list[Recipe], arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "note.txt").write_text("mine")
    outcome = cli("reproduce", *(argument.format(tmp_path) for argument in arguments))
    assert is_one_line_error(outcome), outcome
    assert re.search(words, outcome.err)
    assert not (tmp_path / "run").exists()


def test_report_command(tmp_path: Path, cli: Cli, found: list[tuple[Path, dict[str, Any]]]) -> None:
    places = [path for path, _ in found]
    shown = cli("report", *places, "--out", tmp_path / "report")
    assert shown.code == 0, shown.err
    assert re.match(rf"5 .*{tmp_path}/report", shown.out)
    assert sorted(os.listdir(tmp_path / "report")) == ["report.html", "report.md"]
    assert len(shown.out.splitlines()) == 1
    (tmp_path / "none").mkdir()
    empty = cli("report", tmp_path / "none", "--out", tmp_path / "report")
    assert re.match(rf"0 .*{tmp_path}/report(.|\n)*\breproduce\b", empty.out)
    entries = json.loads(cli("report", *places, "--out", tmp_path / "report", "--json").out)
    assert [entry["ours"] for entry in entries] == [[20.0], [60.0, 62.0, 64.0], [], []]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{}/none", "--out", "{}/report"), "/none"),
        (("{}/file.json", "--out", "{}/report"), r"file\.json: .*`rifflemix reproduce`"),
        (("{}", "--out", "{}/file.json"), "out: .*file.json"),
        ((), "paths"),
    ],
    ids=["absent", "foreign", "out is a file", "nothing"],
)
def test_bad_input_of_report_is_one_line(
    tmp_path: Path, cli: Cli, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "file.json").write_text("{}")
    outcome = cli("report", *(argument.format(tmp_path) for argument in arguments))
    assert is_one_line_error(outcome), outcome
    assert re.search(words, outcome.err)
    assert not (tmp_path / "report").exists()


def test_damaged_results_are_one_line(
    tmp_path: Path, cli: Cli, found: list[tuple[Path, Reproduction]]
) -> None:
    path = found[0][0]
    path.write_text(json.dumps({**encode(found[0][1]), "recipe": {}}))
    outcome = cli("report", *(place for place, _ in found), "--out", tmp_path / "report")
    assert is_one_line_error(outcome), outcome
    assert f"{path} " in outcome.err


def test_list_recipes(cli: Cli) -> None:
    shown = cli("list", "recipes")
    assert shown.code == 0
    assert all(name in shown.out for name in list_recipes())
    entries = json.loads(cli("list", "recipes", "--json").out)
    assert [entry["name"] for entry in entries] == list_recipes()
    assert {"printed", "unit", "task", "model", "train", "notes"} <= set(entries[0])


@pytest.mark.slow
def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    """Run the command in a separate process, as a user does."""
    out = tmp_path / "run"
    command = [
        sys.executable, "-m", "rifflemix", "reproduce", "sinkhorn/table1-sort-b8",
        "--scale", "0.02", "--batch-size", "1", "--out", str(out), "--threads", "1", "--json",
    ]  # fmt: skip
    source = Path(rifflemix.__file__).resolve().parents[1]
    environment = {
        **os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1",
        "RIFFLEMIX_CACHE": str(tmp_path / "cache"),
    }  # fmt: skip
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 240
        while not any(log.stat().st_size for log in out.rglob("log.jsonl")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=240)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, errors
    results = json.loads(printed)
    assert results["status"] == "partial"
    assert results["steps"] > 0
    assert results == json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_costs_of_recipes_are_listed_and_sorted(cli: Cli) -> None:
    chosen = ("list", "recipes", "--cost", "--match", "cifar10-p4-l4-", "--threads", "1")
    outcome = cli(*chosen, "--sort", "flops", "--json")
    assert outcome.code == 0, outcome.err
    entries = json.loads(outcome.out)
    assert len(entries) == 3
    assert {"tokens", "flops", "peak_bytes", "operators", "seconds"} <= entries[0].keys()
    flops = [entry["flops_in_all"] for entry in entries]
    assert flops == sorted(flops)
    table = " ".join(cli(*chosen).out.split())
    assert "dimension_mixer/table4-cifar10-p4-l4-butterfly" in table


def test_recipes_can_be_chosen_by_a_part_of_their_name(cli: Cli) -> None:
    outcome = cli("list", "recipes", "--match", "table4-retrieval-s", "--json")
    names = [entry["name"] for entry in json.loads(outcome.out)]
    assert names == [name for name in list_recipes() if "table4-retrieval-s" in name]


@pytest.mark.parametrize(
    "options",
    [
        ("--match", "nothing of this name"),
        ("--sort", "time"),
        ("--cost", "--sort", "tim", "--match", "figure7"),
        ("--cost", "--device", "tpu", "--match", "figure7"),
        ("--cost", "--threads", "0", "--match", "figure7"),
    ],
    ids=" ".join,
)
def test_invalid_options_of_list_recipes_are_refused(options: tuple[str, ...], cli: Cli) -> None:
    assert is_one_line_error(cli("list", "recipes", *options))
