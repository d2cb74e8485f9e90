"""Curves of runs in TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rifflemix as rm
import rifflemix.cli
from rifflemix.lab.runs import status
from rifflemix.lab.runs.status import Tracker, check_tracker, tracked
from rifflemix.lab.train import TrainEvent

TINY = shlex.split(
    "--task digits --task-option patch_size=4 --max-steps 4 --batch-size 64 --dim 8 --layers 1 "
    "--heads 2 --threads 1"
)


class Recorder:
    """Replaces a tracker of accelerate."""

    made: list[Recorder] = []  # noqa: RUF012 (emptied by each test)

    def __init__(self, run_name: str, *where: Path, **options: Any) -> None:
        self.run_name, self.where, self.options = run_name, where, options
        self.told: list[tuple[int, dict[str, float]]] = []
        self.is_started = self.is_finished = False
        Recorder.made.append(self)

    def start(self) -> None:
        self.is_started = True

    def log(self, values: dict[str, float], step: int) -> None:
        assert self.is_started
        self.told.append((step, values))

    def finish(self) -> None:
        self.is_finished = True


@pytest.fixture(autouse=True)
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    from accelerate import tracking

    monkeypatch.setattr(tracking, "TensorBoardTracker", Recorder)
    monkeypatch.setattr(tracking, "WandBTracker", Recorder)
    monkeypatch.setattr(status, "find_spec", lambda name: object())
    Recorder.made = []
    return Recorder.made


def steps(first: int, last: int) -> list[TrainEvent]:
    return [
        TrainEvent(kind="step", step=step, max_steps=last, loss=1 / step, lr=0.1)
        for step in range(first, last + 1)
    ]


def test_losses_and_evaluations_are_tracked(recorders: list[Recorder]) -> None:
    events = steps(1, 5)
    validation = TrainEvent("eval", 5, 5, split="validation", metrics={"accuracy": 0.5})
    done = TrainEvent("done", 5, 5, split="test", metrics={"accuracy": 0.4})
    with tracked(Tracker("tensorboard", Path("out"), "csp/seed0"), {}, log_every=2) as on_event:
        for event in (*events, TrainEvent("checkpoint", 5, 5), validation, done):
            on_event(event)
    (recorder,) = recorders
    assert recorder.run_name == "csp/seed0"
    assert recorder.where == (Path("out/tensorboard"),)
    assert recorder.told == [
        (2, {"train/loss": 0.5, "train/lr": 0.1}),
        (4, {"train/loss": 0.25, "train/lr": 0.1}),
        (5, {"train/loss": 0.2, "train/lr": 0.1}),
        (5, {"validation/accuracy": 0.5}),
        (5, {"test/accuracy": 0.4}),
    ]
    assert recorder.is_finished


@pytest.mark.parametrize(
    ("event", "purged"),
    [
        (steps(8, 10)[0], 8),
        (TrainEvent("eval", 8, 10, split="validation", metrics={"accuracy": 0.5}), 9),
    ],
    ids=["step", "eval"],
)
def test_entries_after_the_last_checkpoint_are_hidden(
    event: TrainEvent, purged: int, recorders: list[Recorder]
) -> None:
    with tracked(Tracker("tensorboard", Path("out"), "a"), {}, log_every=1) as on_event:
        on_event(event)
    assert recorders[0].options == {"purge_step": purged}


def test_resumed_run_is_the_same_run_of_wandb(tmp_path: Path, recorders: list[Recorder]) -> None:
    for name in ("csp/seed0", "csp/seed0", "csp/seed1"):
        with tracked(Tracker("wandb", tmp_path, name), {"dim": 8}, log_every=1) as on_event:
            on_event(steps(1, 1)[0])
    first, again, other = (recorder.options for recorder in recorders)
    assert first["id"] == again["id"] != other["id"]
    assert (first["resume"], first["name"], first["config"]) == ("allow", "csp/seed0", {"dim": 8})
    assert recorders[0].run_name == "rifflemix"


def test_without_events_or_tracker_nothing_starts(recorders: list[Recorder]) -> None:
    with tracked(Tracker("wandb", Path("out"), "a"), {}, log_every=1):
        pass
    with tracked(None, {}, log_every=1) as on_event:
        on_event(steps(1, 1)[0])
    assert not recorders


@pytest.mark.parametrize("name", ["start", "log", "finish"])
def test_full_disk_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Recorder, name, full)
    with (
        pytest.raises(rm.InputError, match=r"\bwandb\b.* out/wandb: No space"),
        tracked(Tracker("wandb", Path("out"), "csp"), {}, log_every=1) as on_event,
    ):
        on_event(steps(1, 1)[0])


def test_an_error_closes_the_tracker(recorders: list[Recorder]) -> None:
    def fail() -> None:
        with tracked(Tracker("wandb", Path("out"), "a"), {}, log_every=1) as on_event:
            on_event(steps(1, 1)[0])
            raise rm.InputError("diverged")

    with pytest.raises(rm.InputError):
        fail()
    assert recorders[0].is_finished


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["rifflemix", *map(str, words)])
    return rifflemix.cli.main()


@pytest.mark.slow
def test_every_run_of_a_comparison_has_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorders: list[Recorder]
) -> None:
    words = [
        "compare",
        *TINY,
        "--mixers",
        "identity",
        "--lr",
        "1e-3,1e-2",
        "--out",
        tmp_path / "out",
    ]
    for _ in range(2):  # a finished folder reports nothing
        assert run(monkeypatch, *words, "--tracker", "tensorboard") == 0
    names = [recorder.run_name for recorder in recorders]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    trials = [trial["folder"] for trial in results["tuning"]["trials"]]
    chosen = results["runs"][0]["folder"]
    assert names == [*trials, chosen]
    assert all(recorder.where == (tmp_path / "out" / "tensorboard",) for recorder in recorders)
    told = {key for recorder in recorders[:2] for _, values in recorder.told for key in values}
    assert {"train/loss", "train/lr", "validation/accuracy"} <= told
    assert not any(key.startswith("test") for key in told)
    ((step, tested),) = recorders[2].told
    assert step == 4
    assert tested["test/accuracy"] == results["runs"][0]["test"]["accuracy"]


def test_train_has_curves_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorders: list[Recorder]
) -> None:
    words = ["train", *TINY, "--mixer", "identity", "--out", tmp_path / "out"]
    assert run(monkeypatch, *words, "--tracker", "wandb") == 0
    (recorder,) = recorders
    assert recorder.options["name"] == "identity"
    assert recorder.options["dir"] == str(tmp_path / "out")
    assert recorder.options["config"]["mixer"] == "identity"


@pytest.mark.slow
def test_wandb_itself_without_a_network(tmp_path: Path) -> None:
    """Check that the package writes a run's curves to its file."""
    if find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    words = ["train", *TINY, "--mixer", "identity", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "rifflemix", *words, "--tracker", "wandb"]
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    for name in (b"train/loss", b"train/lr", b"validation/accuracy", b"test/accuracy"):
        assert name in content


@pytest.mark.parametrize("command", ["compare --mixers identity", "train --mixer identity"])
@pytest.mark.parametrize(
    ("tracker", "words"),
    [
        ("tensorbord", "tracker: .*tensorboard, wandb, got 'tensorbord'"),
        ("wandb", "tracker wandb .*pip install wandb"),
    ],
)
def test_invalid_trackers_are_refused(
    command: str,
    tracker: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(status, "find_spec", lambda name: None if name == "wandb" else 1)
    out = tmp_path / "out"
    assert run(monkeypatch, *command.split(), *TINY, "--out", out, "--tracker", tracker) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not out.exists()


def test_a_comparison_in_memory_has_no_place_for_curves() -> None:
    with pytest.raises(rm.InputError, match=r"out: .*'wandb'"):
        rm.compare("digits", ["identity"], tracker="wandb")
    check_tracker(None)
