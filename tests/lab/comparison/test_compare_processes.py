"""Tests of `torchrun -m rifflemix compare`: two processes share each run, one process writes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_compare import measured

import rifflemix as rm
import rifflemix.cli

WORDS = shlex.split(
    "compare --task digits --task-option patch_size=4 --mixers softmax,csp --lr 1e-3,1e-2 "
    "--max-steps 4 --batch-size 64 --dim 8 --layers 1 --heads 2 --threads 1 --device cpu"
)


def launch(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "rifflemix", *WORDS, *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = launch("--out", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(tmp_path / "two")) == 1
    assert done.stderr.count("softmax seed 0 lr=0.001: done") == 1
    two = json.loads((tmp_path / "two" / "results.json").read_text())
    assert two["status"] == "complete"
    assert {run["processes"] for run in two["runs"]} == {2}
    assert "2 processes" in (tmp_path / "two" / "table.md").read_text()

    argv = ["rifflemix", *WORDS, "--out", str(tmp_path / "one")]
    monkeypatch.setattr(sys, "argv", argv)
    assert rifflemix.cli.main() == 0
    one = json.loads((tmp_path / "one" / "results.json").read_text())
    choices = [[mixer["tuning"]["chosen"] for mixer in of["mixers"]] for of in (one, two)]
    assert choices[0] == choices[1]
    for ours, theirs in zip(measured(one), measured(two), strict=True):
        assert theirs["test"]["loss"] == pytest.approx(ours["test"]["loss"], rel=1e-4)
        for entry, other in zip(ours["train_curve"], theirs["train_curve"], strict=True):
            assert other == pytest.approx(entry, rel=1e-4)

    # Both processes restore a lost results.json from the runs.
    (tmp_path / "two" / "results.json").unlink()
    again = launch("--out", tmp_path / "two")
    assert again.returncode == 0, again.stderr
    found = json.loads((tmp_path / "two" / "results.json").read_text())
    assert measured(found) == measured(two)
    assert found["tuning"]["trials"][0]["validation"] == two["tuning"]["trials"][0]["validation"]


@pytest.mark.slow
def test_error_ends_both_processes_and_writes_no_files(tmp_path: Path) -> None:
    done = launch("--batch-size", "63", "--out", tmp_path / "out")
    assert done.returncode != 0
    assert re.search("batch_size: .*1 x 2, got 63", done.stderr)
    assert not (tmp_path / "out").exists()


def test_comparison_in_memory_is_refused_with_several_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(rm.InputError, match=r"out: .*got None"):
        rm.compare("digits", ["identity"])
