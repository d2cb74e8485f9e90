"""Tests of failing runs, and of trainings next to each other on one machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_experiment import Toy, ToyTrainer, engine

from rifflemix.errors import InputError
from rifflemix.lab.experiments import Caller, PlannedRun, Role, carry_out
from rifflemix.lab.experiments.plan import TRIES, History, Neighbors

WORKER = Caller(role=Role(is_worker=True))


def breaks(name: str, at: int) -> ToyTrainer:
    """Return a trainer with an exception at a step of a run."""

    def at_step(run: PlannedRun, step: int) -> None:
        if run.name == name and step == at:
            raise MemoryError("no room")

    return ToyTrainer(at_step)


def test_run_that_fails_three_times_is_reported_and_others_continue(tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(MemoryError):
            carry_out(Toy(tmp_path), breaks("x/b", 1), engine(), WORKER)
    records = carry_out(Toy(tmp_path), breaks("x/b", 1), engine(), WORKER).records
    assert list(records) == ["x/a", "x/b", "x/c", "x/chosen"]
    assert records["x/b"].error == "failed 3 times, the last time: MemoryError: no room"
    assert records["x/c"].error is None
    assert not list(tmp_path.rglob(".history.json"))


def test_progress_resets_the_number_of_failures(tmp_path: Path) -> None:
    for step in (1, 3, 5, 7):  # a checkpoint is written every two steps
        with pytest.raises(MemoryError):
            carry_out(Toy(tmp_path), breaks("x/b", step), engine(), WORKER)
    records = carry_out(Toy(tmp_path), ToyTrainer(), engine(), WORKER).records
    assert records["x/b"].trained.finished


def test_without_workers_the_first_exception_is_raised(tmp_path: Path) -> None:
    for _ in range(TRIES + 1):
        with pytest.raises(MemoryError):
            carry_out(Toy(tmp_path), breaks("x/b", 1), engine())


def test_bad_input_is_not_counted_as_a_failure(tmp_path: Path) -> None:
    def at_step(run: PlannedRun, step: int) -> None:
        raise InputError("data: no space left")

    for _ in range(TRIES + 1):
        with pytest.raises(InputError, match="space"):
            carry_out(Toy(tmp_path), ToyTrainer(at_step), engine(), WORKER)


def test_a_run_whose_worker_is_killed_three_times_is_reported(tmp_path: Path) -> None:
    def work() -> None:
        def kill(run: PlannedRun, step: int) -> None:
            if run.name == "x/a":
                os.kill(os.getpid(), signal.SIGKILL)

        torch.set_num_threads(1)
        carry_out(Toy(tmp_path), ToyTrainer(kill), engine(), WORKER)

    codes = []
    for _ in range(4):
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        codes.append(process.exitcode)
    assert codes == [-signal.SIGKILL] * 3 + [0]
    records = carry_out(Toy(tmp_path), ToyTrainer(), engine(), WORKER).records
    assert "killed" in str(records["x/a"].error)
    assert records["x/b"].error is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"failures": 3}'])
def test_a_damaged_history_is_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / ".history.json").write_text(text)
    assert History.read(tmp_path) == History()


def beside(device: str) -> Any:
    """Start a process that trains on a device until the returned event is set."""
    context = multiprocessing.get_context("fork")
    started, end = context.Event(), context.Event()

    def work() -> None:
        with Neighbors(device).watched():
            started.set()
            end.wait()

    process = context.Process(target=work)
    process.start()
    started.wait()
    return process, end


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [("cpu", "cpu", 1), ("cuda", "cuda:0", 1), ("cuda:1", "cuda:0", 0), ("cpu", "cuda", 0)],
)
def test_trainings_on_the_same_device_are_counted(ours: str, theirs: str, expected: int) -> None:
    process, end = beside(theirs)
    neighbors = Neighbors(ours)
    with neighbors.watched():
        assert neighbors.most == expected
        end.set()
        process.join()
    assert neighbors.most == expected
    alone = Neighbors(ours)
    with alone.watched():
        pass
    assert alone.most == 0


def test_a_killed_training_is_not_counted() -> None:
    process, _ = beside("cpu")
    process.kill()
    process.join()
    neighbors = Neighbors("cpu")
    with neighbors.watched():
        assert neighbors.most == 0


def test_visible_devices_are_numbered_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-ab")
    process, end = beside("cuda:1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ab")
    neighbors = Neighbors("cuda")
    with neighbors.watched():
        end.set()
    process.join()
    assert neighbors.most == 1


def test_records_count_concurrent_trainings(tmp_path: Path) -> None:
    process, end = beside("cpu")

    def at_step(run: PlannedRun, step: int) -> None:
        if run.name == "x/b":
            end.set()
            process.join()

    records = carry_out(Toy(tmp_path), ToyTrainer(at_step), engine()).records
    assert [record.beside for record in records.values()] == [1, 1, 0, 1]
