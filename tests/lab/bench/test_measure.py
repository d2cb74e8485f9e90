"""Tests of the measurements of time, memory and versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rifflemix.lab.bench import median, median_seconds, peak_memory
from rifflemix.lab.runs import environment as environment_module
from rifflemix.lab.runs.environment import describe_hardware, environment

CPU = torch.device("cpu")
MEBI = 2**20

MEMORY_CASES = {
    "one result": (lambda x: x + 1, 4),
    "two held at once": (lambda x: (x + 1) * (x + 2), 12),
    "chain frees as it goes": (lambda x: ((x + 1) + 1) + 1, 8),
    "in place": (lambda x: x.add_(1), 0),
}


@pytest.mark.parametrize(("call", "mebibytes"), MEMORY_CASES.values(), ids=MEMORY_CASES)
def test_peak_memory_counts_live_tensors(call, mebibytes: int) -> None:
    x = torch.zeros(1024, 1024)
    peak = peak_memory(lambda: call(x), CPU)
    assert abs(peak - mebibytes * MEBI) < 4096


def test_peak_memory_repeats_exactly() -> None:
    x = torch.randn(256, 256, requires_grad=True)

    def step() -> None:
        (x @ x).relu().sum().backward()

    step()
    assert peak_memory(step, CPU) == peak_memory(step, CPU)


def test_times_are_per_call() -> None:
    seconds = median_seconds(
        {"short": lambda: time.sleep(0.001), "long": lambda: time.sleep(0.01)}, CPU, repeats=3
    )
    assert len(seconds["short"]) == 3
    assert 0.001 <= median(seconds["short"]) < 0.01 <= median(seconds["long"]) < 0.1


def test_environment_has_hardware_and_versions() -> None:
    found = environment()
    assert {"command", "time", "git_commit", "libraries", "hardware", "python"} <= set(found)
    assert found["libraries"]["torch"] == torch.__version__
    assert found["libraries"].keys() >= {"rifflemix", "torch", "numpy", "safetensors"}
    described = describe_hardware(found | {"hardware": found["hardware"] | {"gpu": None}})
    assert f", {os.cpu_count()} cores, {torch.get_num_threads()} thread" in described
    on_cpu = {"cpu": "a", "cores": 8, "threads": 1, "memory_bytes": None, "gpu": None}
    assert describe_hardware({"hardware": on_cpu | {"gpu": "a GPU"}}) == "a GPU"
    assert describe_hardware({"hardware": on_cpu}) == "a, 8 cores, 1 thread"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_does_not_depend_on_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkout"
    module = root / "src" / "rifflemix" / "lab" / "runs" / "environment.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    (root / "notes.md").write_text("")
    monkeypatch.setattr("rifflemix.lab.runs.environment.__file__", str(module))
    monkeypatch.chdir(tmp_path)

    def git(*words: str) -> str:
        name = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        command = ["git", *name, *words]
        return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout

    def found() -> tuple[str | None, bool | None]:
        environment_module._checkout.cache_clear()  # the answer of another process
        now = environment()
        return now["git_commit"], now["git_dirty"]

    assert found() == (None, None)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    commit = git("rev-parse", "HEAD").strip()
    assert found() == (commit, False)
    (root / "notes.md").write_text("no source")
    assert found() == (commit, False)
    module.write_text("1")
    assert found() == (commit, True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_CONFIG_COUNT"])
def test_variables_of_git_do_not_change_the_commit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> tuple[str | None, bool | None]:
        environment_module._checkout.cache_clear()
        now = environment()
        return now["git_commit"], now["git_dirty"]

    before = found()
    monkeypatch.setenv(name, str(tmp_path))
    assert found() == before


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({}, "rifflemix"),
        (
            {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
            "torchrun --nproc-per-node 4 -m rifflemix",
        ),
        ({"WORLD_SIZE": "8"}, "rifflemix"),  # of a launcher other than torchrun
    ],
    ids=["alone", "torchrun", "another launcher"],
)
def test_command_is_stored_as_typed(
    given: dict[str, str], start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/any/__main__.py", "bench", "parallel"])
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert environment()["command"] == f"{start} bench parallel"


CALLS = """
import gc
import os
import torch
from torch import nn
import rifflemix as rm
from rifflemix.lab.runs.measure import kernel_share

size = {"max_steps": 1, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 2}
rm.compare("digits", ["identity"], task_options={"patch_size": 4}, **size)
layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
rm.measure_swap(model, ["tssa"], lambda n: torch.zeros(1, n, 8), [4], repeats=1)
kernel_share(lambda: torch.ones(8) + 1, torch.device("cpu"))
print(os.environ.get("KINETO_LOG_LEVEL"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", [None, "7"])
def test_measurements_write_nothing_to_stderr(level: str | None) -> None:
    """Check stderr, because libkineto logs each profiler start; its level stays as set."""
    environment = {k: v for k, v in os.environ.items() if k != "KINETO_LOG_LEVEL"}
    if level is not None:
        environment["KINETO_LOG_LEVEL"] = level
    done = subprocess.run(
        [sys.executable, "-c", CALLS], env=environment, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{level}\n", "")
