"""A command ends the process group that it started, and no other group.

Otherwise gloo's threads sometimes abort the process when the interpreter exits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from command_line import Cli
from rifflemix.cli import app
from rifflemix.errors import InputError


def connect() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


@pytest.fixture
def connected() -> Iterator[None]:
    connect()
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("code", [0, 2])
def test_process_group_ends_with_its_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def command(*_: object, **__: object) -> None:
        connect()
        if code:
            raise InputError("steps: expected more")

    monkeypatch.setattr(app, "app", command)
    assert cli("compare").code == code
    assert not torch.distributed.is_initialized()


@pytest.mark.usefixtures("connected")
def test_process_group_of_the_caller_is_kept(cli: Cli) -> None:
    assert cli("list", "mixers").code == 0
    assert torch.distributed.is_initialized()


COMPARE = ["compare", "--task", "digits", "--task-option", "patch_size=4", "--mixers", "tssa"]
COMPARE += ["--max-steps", "2", "--dim", "8", "--layers", "1", "--heads", "2", "--device", "cpu"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "words",
    [
        [*COMPARE, "--out", "runs"],
        [*COMPARE, "--context-parallel", "2", "--out", "runs"],
        ["bench", "parallel", "--tokens", "64", "--mixers", "tssa", "--repeats", "1"],
    ],
    ids=["compare", "context parallel", "bench parallel"],
)
def test_no_thread_of_the_process_group_is_left(words: list[str], tmp_path: Path) -> None:
    """Check for references to the group.

    Even a default argument would keep its threads alive.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", str(Path(__file__).with_name("threads_left.py")), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("left: ") == 2
    assert "gloo" not in done.stdout
