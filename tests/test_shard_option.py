"""Tests of --shard, --seed and --dry-run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import Cli
from rifflemix.cli.options import one_or_many, parse_seeds, parse_shard
from rifflemix.cli.workers import share_seconds
from rifflemix.errors import InputError
from rifflemix.lab.experiments import PlannedRun, Shard

TINY = (
    *("--task", "digits", "--task-option", "patch_size=4", "--max-steps", "2", "--threads", "1"),
    *("--batch-size", "16", "--dim", "8", "--layers", "1", "--heads", "2"),
)
COMPARE = ("compare", *TINY, "--mixers", "identity,softmax")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rifflemix.lab.comparison.pages.plot.comparison_plot", lambda results: b"")
    monkeypatch.setattr("rifflemix.lab.comparison.run.training_memory", lambda *_: 1_000)
    monkeypatch.setattr("rifflemix.lab.comparison.training_memory", lambda *_: 1_000)


@pytest.mark.parametrize(("text", "seeds"), [("3", (0, 1, 2)), ("7,", (7,)), ("7,11", (7, 11))])
def test_seeds_are_a_number_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


def test_seed_and_list_of_seeds_exclude_each_other() -> None:
    assert parse_seeds(one_or_many(None, 7) or "") == (7,)
    assert one_or_many("3", None) == "3"
    with pytest.raises(InputError, match="--seed"):
        one_or_many("3", 7)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1/"])
def test_shard_is_k_of_n(text: str) -> None:
    assert parse_shard("2/4") == (2, 4)
    with pytest.raises(InputError, match="--shard"):
        parse_shard(text)


def toy(runs: list[PlannedRun]) -> Any:
    return SimpleNamespace(planned=lambda records: runs)


@pytest.mark.parametrize("tests", [True, False], ids=["runs", "trials"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shards_are_disjoint_and_complete(count: int, tests: bool) -> None:
    runs = [PlannedRun(f"{m}/{s}", m, s, tests=tests) for s in range(2) for m in "abc"]
    shards = [Shard(number + 1, count) for number in range(count)]
    for run in runs:
        assert sum(shard.contains(toy(runs), run) for shard in shards) == 1
    if not tests:  # a choice is in the shard of its trials
        for trial in runs:
            choice = PlannedRun(f"{trial.subject}/chosen", trial.subject, 0, start=trial.name)
            for shard in shards:
                assert shard.contains(toy(runs), choice) == shard.contains(toy(runs), trial)


def test_the_only_run_is_in_every_shard() -> None:
    run = PlannedRun("run", "a", 0)
    assert Shard(2, 3).contains(toy([run]), run)


def test_shards_in_one_folder_give_the_whole_table(cli: Cli, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert cli(*COMPARE, "--out", whole).code == 0
    first = cli(*COMPARE, "--shard", "2/2", "--out", parts)
    assert first.code == 0, first.err
    assert "2/2" in first.err
    results = json.loads((parts / "results.json").read_text())
    assert (results["status"], [run["mixer"] for run in results["runs"]]) == (
        "partial",
        ["softmax"],
    )
    assert cli(*COMPARE, "--shard", "1/2", "--out", parts).code == 0
    tests = [
        [run["test"] for run in json.loads((out / "results.json").read_text())["runs"]]
        for out in (whole, parts)
    ]
    assert tests[0] == tests[1]


def test_dry_run_lists_the_remaining_runs(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = (*COMPARE, "--seed", "5", "--workers", "2", "--out", out, "--dry-run")
    shown = cli(*command)
    assert shown.code == 0, shown.err
    assert re.search(r"identity/seed5\b.*\d s", shown.out)
    assert "2 workers" in shown.out
    assert not out.exists()
    assert cli(*COMPARE, "--seed", "5", "--shard", "1/2", "--out", out).code == 0
    left = json.loads(cli(*command, "--json").out)
    assert [Path(run["run"]).parts[-2:] for run in left["runs"]] == [("softmax", "seed5")]
    assert left["wall_seconds"] == left["seconds"] > 0


@pytest.mark.slow
def test_a_dry_run_of_recipes_counts_their_work(cli: Cli, tmp_path: Path) -> None:
    row = "sinkhorn/table1-sort-b32"
    options = ("--max-steps", "100", "--threads", "1", "--out", tmp_path / "out", "--dry-run")
    reproduced = json.loads(cli("reproduce", row, *options, "--json").out)
    swept = cli("sweep", row, "--set", "lr=1e-3,1e-2", "--seeds", "2", *options, "--json")
    runs = json.loads(swept.out)["runs"]
    assert len(runs) == 4
    assert {run["memory_bytes"] for run in runs} == {reproduced["runs"][0]["memory_bytes"]}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("workers", "expected"), [(1, 10.0), (2, 5.0), (3, 4.0), (9, 4.0)], ids=str
)
def test_each_worker_takes_the_next_run(workers: int, expected: float) -> None:
    assert share_seconds([2, 4, 3, 1], workers) == expected
    assert share_seconds([], workers) == 0
