"""Tests of `rifflemix data prepare`: stored once, used by every load, clear refusals."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import rifflemix.cli
from rifflemix.errors import InputError
from rifflemix.lab.tasks import (
    list_tasks,
    load_task,
    prepare_task,
    registry,
    task_card,
    task_status,
)
from rifflemix.lab.tasks.data_io import files


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def prepare(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["rifflemix", "data", "prepare", *arguments])
        code = rifflemix.cli.main()
        return Outcome(code, *capfd.readouterr())

    return run


def npy_files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")}


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("pathfinder32", {"preset": "curv_baseline"}),
        ("listops", {"min_length": 5, "max_length": 40}),
    ],
)
def test_prepared_data_is_used_by_load_task(
    prepare: Callable[..., Outcome], cache: Path, task: str, options: dict[str, object]
) -> None:
    settings = [f"--task-option={name}={value}" for name, value in options.items()]
    outcome = prepare(task, "--max-samples", "4", "--json", *settings)
    assert (outcome.code, outcome.err) == (0, "")
    folder = Path(json.loads(outcome.out)["folder"])
    assert folder.is_relative_to(cache)
    written = npy_files(folder)
    assert written
    loaded = load_task(task, max_samples=4, **options)
    assert npy_files(cache) == written
    assert {len(split) for split in loaded.splits.values()} == {4}
    pixels = next(iter(np.load(path, mmap_mode="r") for path in written))
    assert isinstance(pixels, np.memmap)


def test_max_samples_is_an_option_of_every_task() -> None:
    assert all(task_card(name).options["max_samples"] is None for name in list_tasks())
    few = load_task("digits", max_samples=7)
    every = load_task("digits")
    assert [len(split) for split in few.splits.values()] == [7, 7, 7]
    assert few.split("test")[6][1] == every.split("test")[6][1]
    assert few.options == {**every.options, "max_samples": 7}
    assert few.fingerprint() != every.fingerprint()
    assert len(load_task("digits", max_samples=10**6).split("test")) == len(every.split("test"))
    with pytest.raises(IndexError):
        few.split("test")[7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pathfinder23"], "'pathfinder23'.*pathfinder32"),
        (["digits", "--max-samples", "0"], r"max_samples: .*\b1, got 0"),
        (["digits", "--data-dir", "~nosuch/x"], "'--data-dir': .*got ~nosuch/x"),
        (["image"], "task image: .*CIFAR-10.*--data-dir"),
        (["pathx", "--task-option", "gap=wide"], "gap: .*got 'wide'"),
    ],
    ids=["task", "count", "home", "nothing there", "option"],
)
def test_invalid_arguments_are_refused(
    prepare: Callable[..., Outcome],
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    outcome = prepare(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert re.search(message, outcome.err)
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("task", ["pathfinder32", "listops"])
def test_cache_that_cannot_be_made(
    prepare: Callable[..., Outcome], task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "file"))
    outcome = prepare(task, "--max-samples", "2")
    assert outcome.code == 2
    assert re.match(rf"error: .*{tmp_path}/file\b", outcome.err)
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("task", ["pathfinder32", "listops", "point_clouds"])
def test_disk_that_fills_up(
    prepare: Callable[..., Outcome], cache: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    few = ["--task-option=num_train=2"] if task == "point_clouds" else []
    outcome = prepare(task, "--max-samples", "2", *few)
    assert outcome.code == 2
    assert re.search(f"{cache}.*: No space left on device.*RIFFLEMIX_CACHE", outcome.err)
    assert outcome.err.count("\n") == 1
    assert not list(cache.rglob("*.npy"))


def test_disk_that_fills_up_while_files_are_decoded(
    data: Path, write_npz_xz: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.zeros((20, 28, 28), np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 10
    write_npz_xz(
        data / "mnist.npz.xz", train_x=images, train_y=labels, test_x=images, test_y=labels
    )

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    assert len(load_task("mnist", data_dir=data).split("test")) == 20
    with pytest.raises(InputError, match="RIFFLEMIX"):
        prepare_task("mnist", data_dir=data)


@pytest.mark.slow
def test_two_processes_prepare_at_once(cache: Path) -> None:
    """Run two processes and check that both succeed with one set of files."""
    command = [
        sys.executable, "-m", "rifflemix", "data", "prepare", "pathfinder32",
        "--task-option", "preset=curv_baseline", "--max-samples", "40",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], answers
    assert len(list(cache.rglob("images.npy"))) == 3
    assert not list(cache.rglob(".rifflemix-*"))


@pytest.mark.parametrize("task", ["image", "listops", "sst", "esol"])
def test_unreadable_folder_is_reported(
    task: str,
    tmp_path: Path,
    prepare: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.is_relative_to(tmp_path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    code, _, err = prepare(task, "--data-dir", str(tmp_path))
    assert code == 2
    assert re.fullmatch(rf"error: .*{tmp_path}.*\n", err)
    assert not task_status(task, tmp_path).available


def test_prepared_data_in_a_read_only_folder_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare_task("listops", max_samples=4)

    def refuse(path: Path) -> None:
        raise InputError(f"cannot write to folder {path}: permission denied")

    monkeypatch.setattr(registry, "make_folder", refuse)
    assert prepare_task("listops", max_samples=4) == folder
