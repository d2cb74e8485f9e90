"""`rifflemix work` and `--workers`: folders that other processes join."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rifflemix as rm
from command_line import Cli
from rifflemix.errors import InputError
from rifflemix.lab.comparison import SUITES
from rifflemix.lab.comparison.suites.catalog import Suite, SuiteTask
from small_recipes import QUICK, small

TINY = (
    *("--task", "digits", "--task-option", "patch_size=4", "--max-steps", "2"),
    *("--batch-size", "16", "--dim", "8", "--layers", "1", "--heads", "2", "--threads", "1"),
)
COMPARE = ("compare", *TINY, "--mixers", "identity,softmax")
SUITE = Suite(
    "tiny",
    "Digits twice",
    {name: SuiteTask("digits", {"patch_size": 4}, {"batch_size": 8}) for name in ("one", "two")},
    ("identity",),
    seeds=1,
    lr=(1e-3,),
)
SMALL = ("--dim", "8", "--layers", "1", "--heads", "2", "--threads", "1", "--max-steps", "2")
COMMANDS = {
    "compare": ((*COMPARE, "--lr", "1e-3,1e-2"), ["softmax/seed0", "identity/lr=0.001/seed0"]),
    "stop early": (
        (*COMPARE, "--lr", "1e-3,1e-2", "--stop-early", "--train-option", "eval_every=1"),
        ["softmax/seed0", "identity/lr=0.001/step1/seed0"],
    ),
    "train": (("train", *TINY, "--mixer", "identity"), ["run"]),
    "suite": (("compare", "--suite", "tiny", *SMALL), ["two/identity/seed0"]),
    "sweep": (("sweep", "test/a", "--set", "lr=1e-3,1e-2", "--threads", "1"), ["lr=0.01/seed0"]),
    "reproduce": (("reproduce", "test/a", "--threads", "1"), ["run"]),
    "reproductions": (("reproduce", "test/a", "test/b", "--threads", "1"), ["test/b/run"]),
}
_CLOCK = (
    *("seconds", "per_second", "time", "command", "environment", "sha256", "utilisation", "beside"),
    "measured_apart",
    "peak_memory",  # in the record of the mixer's first run
)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    from rifflemix.lab.recipes import registry

    for name in "ab":
        recipe = replace(small(train=QUICK), name=f"test/{name}")
        monkeypatch.setitem(registry._RECIPES, recipe.name, lambda recipe=recipe: recipe)
    monkeypatch.setitem(SUITES, "tiny", SUITE)
    monkeypatch.setattr("rifflemix.lab.comparison.pages.plot.comparison_plot", lambda results: b"")
    monkeypatch.setattr("rifflemix.lab.comparison.run.training_memory", lambda *_: 1_000)


def without_clock(value: Any) -> Any:
    """Return JSON values without times and everything that depends on the machine."""
    if isinstance(value, Mapping):
        return {
            name: without_clock(inner)
            for name, inner in value.items()
            if not any(word in name for word in _CLOCK)
        }
    return [without_clock(inner) for inner in value] if isinstance(value, list) else value


def results_below(out: Path) -> dict[str, Any]:
    """Return the results and the records of a folder without times."""
    return {
        path.relative_to(out).as_posix(): without_clock(json.loads(path.read_text()))
        for name in ("results.json", "record.json")
        for path in out.rglob(name)
    }


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("kind", COMMANDS)
def test_work_makes_the_remaining_runs(
    kind: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, missing = COMMANDS[kind]
    monkeypatch.chdir(tmp_path)
    done = cli(*command, "--out", "out")
    assert done.code == 0, done.err
    out = tmp_path / "out"
    before = results_below(out)
    for run in missing:
        shutil.rmtree(out / run)
    config = (out / "config.json").read_bytes()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    joined = cli("work", out)
    assert joined.code == 0, joined.err
    assert results_below(out) == before
    assert (out / "config.json").read_bytes() == config
    assert not (out / ".workers").exists()


@pytest.mark.parametrize("content", [None, {}, {"format": "rifflemix.merge/1"}, []])
def test_work_refuses_other_folders(content: Any, cli: Cli, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(json.dumps(content))
    outcome = cli("work", tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: folder: ")


@pytest.mark.usefixtures("_small")
def test_work_refuses_data_that_it_cannot_find(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{['good', 'bad'][i % 2]} {i},{i % 2}" for i in range(40)]
    Path("mine.csv").write_text("\n".join(["text,label", *rows]))
    data = ("--data", "mine.csv", "--input", "text", "--label", "label")
    tiny = ("--max-steps", "1", "--batch-size", "8", "--mixers", "identity", *SMALL[:8])
    assert cli("compare", "--task", "csv", *data, *tiny, "--out", "out").code == 0
    shutil.rmtree("out/identity/seed0")
    os.rename("mine.csv", "moved.csv")
    outcome = cli("work", tmp_path / "out")
    assert outcome.code == 2
    assert "mine.csv" in outcome.err
    os.rename("moved.csv", "mine.csv")
    assert cli("work", tmp_path / "out").code == 0
    os.rename("mine.csv", "moved.csv")
    os.rename("out", "finished")
    assert cli("work", tmp_path / "finished").code == 0


def test_task_defined_in_a_program_needs_that_program(cli: Cli, tmp_path: Path) -> None:
    task = rm.Task.from_arrays(np.random.default_rng(0).normal(size=(60, 4, 2)), np.arange(60) % 2)
    tiny = {"max_steps": 1, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 2}
    rm.compare(task, ["identity"], out=tmp_path, threads=1, **tiny)
    assert cli("work", tmp_path).code == 0
    shutil.rmtree(tmp_path / "identity" / "seed0")
    outcome = cli("work", tmp_path)
    assert outcome.code == 2
    assert "Task of a Python program" in outcome.err


LONG = (
    *("compare", "--task", "digits", "--task-option", "patch_size=4", "--max-steps", "60"),
    *("--batch-size", "16", "--threads", "1", "--mixers", "identity,tssa", "--seeds", "2"),
    *("--train-option", "checkpoint_every=10"),
)


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a command."""
    command = [sys.executable, "-m", "rifflemix", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe)


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 200
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def training(out: Path) -> list[int]:
    """Return the processes of the workers that have passed step 10 of a run."""
    found = []
    for path in (out / ".workers").glob("*.json"):
        status = json.loads(path.read_text())
        if status["run"]["step"] > 10 and status["run"]["state"] == "training":
            found.append(status["pid"])
    return found


def best_weights(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.glob("*/*/best.safetensors")
    }


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the long comparison with one process."""
    out = tmp_path_factory.mktemp("serial")
    command = start(*LONG, "--out", out)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors
    return out


def same_bits(out: Path, other: Path) -> bool:
    theirs = best_weights(other)
    assert len(theirs) == 4
    return best_weights(out) == theirs and results_below(out) == results_below(other)


@pytest.mark.slow
def test_killed_worker_is_replaced_without_changing_results(tmp_path: Path, serial: Path) -> None:
    command = start(*LONG, "--workers", 2, "--out", tmp_path)
    victim = wait_for(lambda: training(tmp_path))[0]
    os.kill(victim, signal.SIGKILL)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors
    assert "starts again" in errors
    assert same_bits(tmp_path, serial)
    assert not (tmp_path / ".workers").exists()


@pytest.mark.slow
def test_early_stops_are_equal_with_workers_and_kills(tmp_path: Path) -> None:
    command = (*LONG, "--lr", "1e-3,1e-2", "--stop-early")
    for name, workers in (("serial", ()), ("shared", ("--workers", 2))):
        process = start(*command, *workers, "--out", tmp_path / name)
        if workers:
            os.kill(wait_for(lambda: training(tmp_path / "shared"))[0], signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert results_below(tmp_path / "shared") == results_below(tmp_path / "serial")
    assert best_weights(tmp_path / "shared") == best_weights(tmp_path / "serial")


@pytest.mark.slow
def test_ctrl_c_stops_all_workers_and_everything_continues(tmp_path: Path, serial: Path) -> None:
    command = start(*LONG, "--workers", 2, "--out", tmp_path)
    pids = wait_for(lambda: training(tmp_path))
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 130, errors
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert json.loads((tmp_path / "results.json").read_text())["status"] == "partial"
    again = start(*LONG, "--workers", 3, "--out", tmp_path)
    _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert same_bits(tmp_path, serial)


@pytest.mark.slow
def test_workers_end_with_the_command_that_started_them(tmp_path: Path, serial: Path) -> None:
    command = start(*LONG, "--workers", 2, "--out", tmp_path)
    wait_for(lambda: training(tmp_path))
    command.kill()
    command.communicate()
    wait_for(lambda: not list((tmp_path / ".workers").glob("*.json")))
    first, second = start("work", tmp_path), start(*LONG, "--workers", 1, "--out", tmp_path)
    for process in (first, second):  # two schedulers on one folder
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert same_bits(tmp_path, serial)


@pytest.mark.slow
def test_suspended_worker_resumes_without_changing_results(tmp_path: Path, serial: Path) -> None:
    command = start(*LONG, "--workers", 2, "--out", tmp_path)
    victim = wait_for(lambda: training(tmp_path))[0]
    os.kill(victim, signal.SIGSTOP)
    done = start("work", tmp_path)
    _, errors = done.communicate(timeout=300)  # a minute until the heartbeat is too old
    assert done.returncode == 0, errors
    os.kill(victim, signal.SIGCONT)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors
    assert same_bits(tmp_path, serial)


@pytest.mark.slow
def test_workers_of_python_share_a_task_of_the_program(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8, 3))
    task = rm.Task.from_arrays(x, x.mean(axis=(1, 2)) > 0)
    tiny = {"max_steps": 20, "batch_size": 16, "dim": 8, "num_layers": 1, "num_heads": 2}
    mixers = ["identity", "softmax"]
    alone = rm.compare(task, mixers, seeds=2, threads=1, **tiny)
    shared = rm.compare(task, mixers, seeds=2, workers=2, out=tmp_path, **tiny)
    assert without_clock(shared.results["runs"]) == without_clock(alone.results["runs"])


def test_mixers_of_the_main_program_cannot_be_shared(registries: None) -> None:
    class Mine(rm.TokenMixer):
        card = rm.MixerCard(
            name="mine", title="Mine", paper="folklore", equations="y = x", complexity="O(1)",
            cost_exponent=1.0,
        )  # fmt: skip

        def mix(self, x: Any, key_padding_mask: Any) -> Any:
            return x

    Mine.__module__ = "__main__"
    with pytest.raises(InputError, match="workers: "):
        rm.compare("digits", [Mine], workers=2, max_steps=1, task_options={"patch_size": 4})


@pytest.mark.usefixtures("_small")
def test_work_warns_of_another_processor(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("train", *TINY, "--mixer", "identity", "--out", tmp_path).code == 0
    assert "warning" not in cli("work", tmp_path).err
    monkeypatch.setattr("rifflemix.lab.runs.environment._cpu_name", lambda: "Z80")
    again = cli("work", tmp_path)
    assert again.code == 0
    assert "Z80" in again.err
