"""benchmarks/gpu.sh without a GPU: its commands, its time limit, and its signals."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from document_scripts import REPOSITORY
from rifflemix.lab.recipes import list_recipes
from test_doc_commands import parse

PLAN = REPOSITORY / "benchmarks" / "gpu.sh"


def environment(folder: Path, program: str = "", **settings: str) -> dict[str, str]:
    """Return an environment in which a shell script runs in place of Python."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{program}\n')
    python.chmod(0o755)
    return os.environ | {"PYTHON": str(python), "OUT": str(folder / "out")} | settings


def plan(folder: Path, *words: str, program: str = "", **settings: str) -> tuple[int, list[str]]:
    """Run the plan; return its exit code and the lines that it prints."""
    done = subprocess.run(
        [PLAN, *words],
        env=environment(folder, program, **settings),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_every_command_of_the_plan_is_valid(tmp_path: Path) -> None:
    code, lines = plan(tmp_path, "--list")
    assert code == 0
    names = [line.partition(": ")[0] for line in lines]
    assert len({*names}) == len(names)
    for line in lines:
        words = shlex.split(line.partition("python ")[2])
        if words[:2] == ["-m", "rifflemix"]:
            values = parse(words[2:])
            recipes = values.get("recipes", [])
            assert {*recipes} <= {*list_recipes()}  # type: ignore[misc]
        else:
            assert any((REPOSITORY / word).exists() for word in words)


def test_a_finished_step_is_skipped_and_a_failed_step_is_not(tmp_path: Path) -> None:
    code, lines = plan(tmp_path, "layer-times", program="exit 3")
    assert code == 1
    assert "exit code 3" in lines[0]
    assert (tmp_path / "out" / "logs" / "layer-times.log").exists()
    assert plan(tmp_path, "layer-times") == (0, ["layer-times: done"])
    assert plan(tmp_path, "layer-times") == (0, [])
    assert sum("layer_times.py" in call for call in calls(tmp_path)) == 2


def test_rows_resume_with_the_remaining_time(tmp_path: Path) -> None:
    for _ in range(2):
        assert plan(tmp_path, "cifar", MINUTES="5", ROWS="3") == (0, ["cifar10: done"])
    first, second = (call for call in calls(tmp_path) if "reproduce" in call)
    assert first == second
    assert "--workers 3" in first
    assert f"--out {tmp_path}/out/cifar10" in first
    assert "--budget 5" in first or "--budget 4" in first


def test_steps_wait_for_time(tmp_path: Path) -> None:
    code, (line,) = plan(tmp_path, "bench-lra", MINUTES="3")
    assert code == 0
    assert "next call" in line


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
def test_signal_ends_the_step_without_a_marker(name: str, tmp_path: Path) -> None:
    program = f'case "$*" in *layer_times*) echo $$ > {tmp_path}/pid; exec sleep 60;; esac'
    number = getattr(signal, name)
    process = subprocess.Popen(
        [PLAN, "layer-times"],
        env=environment(tmp_path, program),
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # bash cannot trap ignored ones
    )
    started = tmp_path / "pid"
    while not (started.exists() and started.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(20) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert not list((tmp_path / "out" / "done").iterdir())
