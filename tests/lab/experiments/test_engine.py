"""Tests of the engine of all trainings: claims, attempts, records, several workers."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_experiment import Toy, ToyTrainer, engine
from toy_training import SETTINGS, ToyTask, make_config, make_model

from rifflemix import files
from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.lab.experiments import Caller, OneRun, PlannedRun, RunStore, attempts, carry_out
from rifflemix.lab.experiments.plan import read_record, write_record
from rifflemix.lab.train import train
from rifflemix.locks import FolderInUse

NAMES = ["x/a", "x/b", "x/c", "x/chosen"]


def weights(out: Path) -> dict[str, bytes]:
    """Return the bytes of the chosen weights of every run."""
    return {
        name: tensor.numpy().tobytes()
        for run in NAMES
        for name, tensor in {
            f"{run} {key}": value
            for key, value in read_tensors(out / run / "best.safetensors")[0].items()
        }.items()
    }


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the experiment with one worker."""
    out = tmp_path_factory.mktemp("serial") / "out"
    carry_out(Toy(out), ToyTrainer(), engine())
    return out


@pytest.fixture
def short_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SECONDS_TO_LIVE", 1.0)


def worker(out: Path, at_step: Any = None) -> Any:
    """Start a worker in a forked process."""

    def work() -> None:
        torch.set_num_threads(1)
        carry_out(Toy(out), ToyTrainer(at_step), engine())

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_runs_that_depend_on_others_are_last(serial: Path) -> None:
    records = carry_out(Toy(serial), ToyTrainer(), engine()).records
    assert list(records) == NAMES
    assert [records[name].trained.test is None for name in NAMES] == [True, True, True, False]
    assert records["x/chosen"].started_from == "x/a"
    assert records["x/chosen"].trained.validation == records["x/a"].trained.validation
    assert not (serial / ".attempts").exists()


def test_finished_runs_are_not_trained_again(serial: Path) -> None:
    trainer = ToyTrainer()
    carry_out(Toy(serial), trainer, engine())
    assert trainer.trained == []


def test_stopped_experiment_resumes(tmp_path: Path, serial: Path) -> None:
    first = ToyTrainer()
    stop = Caller(should_stop=lambda: len(first.trained) >= 30)
    outcome = carry_out(Toy(tmp_path / "out"), first, engine(), stop)
    assert outcome.stopped is not None
    assert outcome.stopped.trained.step == 7
    second = ToyTrainer()
    carry_out(Toy(tmp_path / "out"), second, engine())
    assert len(first.trained) + len(second.trained) == 3 * 23
    assert weights(tmp_path / "out") == weights(serial)


def test_diverged_run_is_recorded_and_other_runs_continue(tmp_path: Path) -> None:
    trainer = ToyTrainer(diverges="b")
    records = carry_out(Toy(tmp_path), trainer, engine()).records
    assert records["x/b"].error == "the loss is nan"
    assert records["x/b"].result is None
    assert set(trainer.trained) == {"x/a", "x/c"}
    assert carry_out(Toy(tmp_path), ToyTrainer(), engine()).records == records


def test_another_worker_continues_the_run_of_a_killed_one(tmp_path: Path, serial: Path) -> None:
    out = tmp_path / "out"

    def kill(run: PlannedRun, step: int) -> None:
        if run.name == "x/b" and step == 9:
            os.kill(os.getpid(), signal.SIGKILL)

    killed = worker(out, kill)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    trainer = ToyTrainer()
    carry_out(Toy(out), trainer, engine())
    assert trainer.trained.count("x/b") == 23 - 8  # the last checkpoint is at step 8
    assert "x/a" not in trainer.trained
    assert weights(out) == weights(serial)


def test_workers_share_the_runs(tmp_path: Path, serial: Path) -> None:
    out = tmp_path / "out"
    workers = [worker(out) for _ in range(3)]
    for process in workers:
        process.join()
        assert process.exitcode == 0
    assert weights(out) == weights(serial)
    assert sorted(p.name for p in out.iterdir()) == [".lock", "config.json", "x"]


@pytest.mark.usefixtures("short_life")
def test_suspended_process_changes_no_result_after_it_resumes(tmp_path: Path, serial: Path) -> None:
    out, marker = tmp_path / "out", tmp_path / "in b"

    def mark(run: PlannedRun, step: int) -> None:
        if run.name == "x/b" and step == 9 and not marker.exists():
            marker.touch()
            time.sleep(0.3)

    paused = worker(out, mark)
    wait_for(marker.exists)
    os.kill(paused.pid, signal.SIGSTOP)
    carry_out(Toy(out), ToyTrainer(), engine())
    finished = weights(out)
    os.kill(paused.pid, signal.SIGCONT)
    paused.join()
    assert paused.exitcode == 0
    assert weights(out) == finished == weights(serial)
    assert not (out / ".attempts").exists()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a network file system without flock for attempts."""

    def locked(folder: Path, name: str) -> None:
        raise InputError("no locks")

    monkeypatch.setattr(attempts, "locked", locked)
    return iter(())


@pytest.mark.usefixtures("short_life", "no_locks")
def test_heartbeats_replace_locks_if_locks_are_unsupported(tmp_path: Path, serial: Path) -> None:
    out = tmp_path / "out"
    store = RunStore(Toy(out))
    store.open()
    run = PlannedRun("x/a", "a", 0, tests=False)
    owned = store.claim(run)
    assert owned is not None
    assert attempts.is_alive(owned.path)
    time.sleep(1.3)  # the heartbeat continues
    assert store.claim(run) is None
    owned._ended.set()  # as if the machine died
    wait_for(lambda: not attempts.is_alive(owned.path))
    carry_out(Toy(out), ToyTrainer(), engine())
    assert weights(out) == weights(serial)


def test_first_published_result_is_kept(tmp_path: Path, serial: Path) -> None:
    out = tmp_path / "out"
    store = RunStore(Toy(out))
    store.open()
    run = PlannedRun("x/a", "a", 0, tests=False)
    attempt = store.claim(run)
    assert attempt is not None
    shutil.copytree(serial / "x" / "a", out / "x" / "a")
    record = read_record(serial / "x" / "a")
    assert record is not None
    (attempt.path / "mine").touch()
    store.publish(run, attempt, record)
    assert not (out / "x" / "a" / "mine").exists()
    assert not (out / ".attempts").exists()
    assert store.records()["x/a"] == record


def test_run_is_claimed_by_one_process(tmp_path: Path) -> None:
    experiment = OneRun(tmp_path, "a", 0, {"format": "toy/1"})
    store = RunStore(experiment)
    store.open()
    attempt = store.claim(experiment.planned({})[0])
    assert attempt is not None
    with pytest.raises(FolderInUse):
        carry_out(experiment, ToyTrainer(), engine())
    attempt.release()
    assert carry_out(experiment, ToyTrainer(), engine()).single.trained.finished


def test_run_without_a_record_resumes(tmp_path: Path, serial: Path) -> None:
    out = tmp_path / "out"
    told: list[int] = []
    train(
        make_model(),
        ToyTask(),
        make_config(checkpoint_every=2),
        out / "x" / "a",
        device="cpu",
        model_settings=SETTINGS,
        should_stop=lambda: told.append(1) or len(told) > 9,
        tests=False,
    )
    files.write_json(out / "config.json", {"format": "toy/1"})
    trainer = ToyTrainer()
    carry_out(Toy(out), trainer, engine())
    assert 0 < trainer.trained.count("x/a") < 23
    assert weights(out) == weights(serial)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "0"},
        {"format": "rifflemix.run/9"},
        {"error": "both a result and an error"},
        {"result": None},
        {"train_curve": {}},
        {"environment": {}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_incomplete_record_is_refused(change: dict[str, Any], serial: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(serial / "x" / "a", tmp_path / "a")
    path = folder / "record.json"
    stored = json.loads(path.read_text())
    del stored["sha256"]
    path.write_text(json.dumps(stored | change))
    with pytest.raises(InputError, match=r"record\.json"):
        read_record(folder)
    path.write_text(json.dumps(stored))
    assert read_record(folder) == read_record(serial / "x" / "a")


def test_a_changed_record_is_detected(serial: Path, tmp_path: Path) -> None:
    record = read_record(serial / "x" / "a")
    assert record is not None
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    path = tmp_path / "record.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(InputError, match="checksum"):
        read_record(tmp_path)


def test_a_worker_waits_for_the_runs_of_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    store = RunStore(Toy(out))
    store.open()
    attempt = store.claim(PlannedRun("x/b", "b", 0, tests=False))
    assert attempt is not None
    waited: list[list[str]] = []

    def on_wait(runs: Any) -> None:
        waited.append([run.name for run in runs])
        attempt.release()

    carry_out(Toy(out), ToyTrainer(), engine(), Caller(on_wait=on_wait))
    assert waited == [["x/b"]]
    assert (out / "x" / "chosen" / "record.json").is_file()
