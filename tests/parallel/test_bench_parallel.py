"""`rifflemix bench parallel`: measurements and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cases
import pytest
from torch.distributed.device_mesh import DeviceMesh

import rifflemix as rm
from command_line import Cli
from processes import Processes
from rifflemix.lab.bench import parallel
from rifflemix.lab.bench.gate import Check
from rifflemix.lab.bench.runner import Hooks, Settings
from rifflemix.lab.bench.tables import bench_notes, bench_tables

QUICK = Settings(repeats=2, max_seconds=20.0)
SIZES: dict[str, Any] = {"dim": 8, "heads": 2, "batch": 2, "settings": QUICK}


def test_a_mesh_of_one_process(mesh: DeviceMesh) -> None:
    told, saved = [], []
    hooks = Hooks(progress=lambda *status: told.append(status), save=saved.append)
    result = parallel.run((16, 8), mixers=["tssa"], mesh=mesh, hooks=hooks, **SIZES)
    json.dumps(result, allow_nan=False)
    assert result["status"] == "complete"
    assert [len(part["rows"]) for part in saved] == [1, 2]
    assert told[-1] == (2, 2, "timing at (2, 16, 8)")
    names = [(row["shape"]["tokens"], row["name"]) for row in result["rows"]]
    assert names == [(8, "tssa"), (16, "tssa")]
    for row in result["rows"]:
        assert row["status"] == "measured", row["note"]
        assert len(row["gate"]) == 1
        assert row["passes"].keys() == {"forward_backward", "alone"}
        assert row["passes"]["forward_backward"]["ratios"].keys() == {"alone"}
        assert len(row["passes"]["alone"]["seconds"]) == 2
        assert row["extra"]["sent_bytes"] == row["extra"]["expected_bytes"] == 0
    times, memory, sent = bench_tables(result)
    assert re.match(r"forward and backward, ms: 1\b", times.title)
    assert [row[0] for row in times.rows] == ["tssa"]
    assert memory.headers == ["Name", "N=8", "N=16"]
    assert sent.rows[0] == ["tssa", "0 / 0", "0 / 0"]


def test_stop_keeps_the_measured_rows(mesh: DeviceMesh) -> None:
    asked = iter([False, True])
    hooks = Hooks(should_stop=lambda: next(asked, True))
    result = parallel.run((8,), mixers=["tssa", "linear"], mesh=mesh, hooks=hooks, **SIZES)
    assert result["status"] == "partial"
    assert [row["status"] for row in result["rows"]] == ["stopped", "stopped"]


def test_a_wrong_layer_is_not_timed(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check("one process, float64", "(1, 8, 8)", 0.5, 1e-9, False)
    monkeypatch.setattr(parallel, "check", lambda *_: wrong)
    (row,) = parallel.run((8,), mixers=["tssa"], mesh=mesh, **SIZES)["rows"]
    assert (row["status"], row["passes"]) == ("failed", {})
    assert re.search(r"float64\b.*\b0\.5\b", row["note"])


def test_measurements_over_the_time_limit_are_skipped(mesh: DeviceMesh) -> None:
    short = {**SIZES, "settings": Settings(repeats=1, max_seconds=1e-9)}
    result = parallel.run((8, 16), mixers=["tssa"], mesh=mesh, **short)
    cut, longer = (row["note"] for row in result["rows"])
    assert re.search(r"\b5e-10 s\b.*\b1e-09 s\b", cut)
    assert longer.startswith("8 tokens ")
    assert bench_tables(result)[0].rows == [["tssa", "left out", "left out"]]
    assert len(bench_notes(result)) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": [4, 4]}, r"tokens: .*got \[4, 4\]"),
        ({"tokens": [4], "mixers": ["fnet"]}, r"mixers: .*\(average, butterfly, csp, "),
        ({"tokens": [4], "mixers": ["butterfly"], "causal": True}, "mixers: .*got butterfly"),
        ({"tokens": [4]}, "torchrun --nproc-per-node 4 -m rifflemix bench"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(rm.InputError, match=words):
        parallel.run(**options)


def test_tokens_that_do_not_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(rm.InputError, match=r"tokens: .*\b3\b.*torchrun, got 1024"):
        parallel.run()


def test_one_process_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    done = cli("bench", "parallel", "--out", str(tmp_path / "out.json"))
    assert done.code == 2
    assert "torchrun --nproc-per-node 4 -m rifflemix" in " ".join(done.err.split())
    assert not list(tmp_path.iterdir())


def _measured_everywhere(mixers: list[str], causal: bool) -> None:
    mesh = cases.meshes()[4]
    result = parallel.run((16,), mesh=mesh, mixers=mixers, causal=causal, **SIZES)
    assert [row["name"] for row in result["rows"]] == mixers
    for row in result["rows"]:
        assert row["status"] == "measured", (row["name"], row["note"], row["gate"])
        sent, expected = row["extra"]["sent_bytes"], row["extra"]["expected_bytes"]
        if row["name"] in ("butterfly", "grouped"):
            assert 0 < sent <= expected, (row["name"], sent, expected)
        elif row["name"] != "sinkhorn":  # inexact for two heads on four processes
            assert sent == expected, (row["name"], sent, expected)


@pytest.mark.slow
def test_four_processes(four: Processes) -> None:
    four.run(_measured_everywhere, ["butterfly", "csp", "sinkhorn", "tssa"], False)
    four.run(_measured_everywhere, ["csp", "tssa"], True)


@pytest.mark.slow
def test_under_torchrun_one_process_writes_and_prints(four: Processes, tmp_path: Path) -> None:
    sizes = ["--tokens", "8,16", "--dim", "8", "--heads", "4", "--mixers", "tssa,csp"]
    words = ["bench", "parallel", *sizes, "--repeats", "1", "--threads", "1"]
    answers = four.run(cases.command, [*words, "--out", str(tmp_path / "out")])
    assert [code for code, _ in answers] == [0] * 4
    assert [str(tmp_path / "out") in text for _, text in answers] == [True, False, False, False]
    (file,) = (tmp_path / "out").iterdir()
    result = json.loads(file.read_text())
    assert result["command"].startswith("torchrun --nproc-per-node 4 -m rifflemix bench")
    assert result["settings"]["processes"] == 4
    assert {row["status"] for row in result["rows"]} == {"measured"}
