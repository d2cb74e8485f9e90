"""`--slurm`: workers as an array of jobs on a real Slurm cluster."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Cli
from rifflemix.errors import InputError
from rifflemix.lab.experiments import Cluster, read_cluster
from rifflemix.lab.runs.environment import check_device, gpus_elsewhere, resolve_device
from slurm_cluster import slurm_cluster
from test_work import LONG, same_bits, start, training, wait_for


def test_file_contains_options_of_sbatch(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('workers = 8\npartition = "gpu"\ngpus_per_node = 1\nsetup = ["module load x"]')
    cluster = read_cluster(path)
    expected = {"partition": "gpu", "gpus_per_node": 1, "setup": ["module load x"]}
    assert cluster == Cluster(8, parameters=expected)
    assert cluster.has_gpus
    path.write_text('partition = "cpu"')
    assert not read_cluster(path).has_gpus


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers = 0", "workers"),
        ("workers = true", "workers"),
        ('partiton = "gpu"', "partition"),
        ('time = "1h"', "time"),
        ("time = true", "time"),
        ("partition =", "TOML"),
    ],
)
def test_invalid_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_cluster(path)
    with pytest.raises(InputError, match="slurm: "):
        read_cluster(tmp_path / "none.toml")


def test_runs_on_other_machines_may_use_gpus() -> None:
    with gpus_elsewhere(True):
        assert resolve_device("auto") == "cuda"
        check_device("cuda")


@pytest.mark.parametrize("others", [("--workers", "2"), ("--devices", "0")])
def test_workers_run_on_one_machine_or_on_the_cluster(
    others: tuple[str, str], cli: Cli, tmp_path: Path
) -> None:
    outcome = cli(*LONG, *others, "--slurm", tmp_path / "a.toml", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "--slurm" in outcome.err


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")):
        yield


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the long comparison with one process."""
    out = tmp_path_factory.mktemp("serial")
    command = start(*LONG, "--out", out)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors
    return out


def jobs() -> list[str]:
    """Return the running jobs, such as "1_0"."""
    command = ("squeue", "--noheader", "--states=RUNNING", "--format=%i")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
@pytest.mark.usefixtures("_cluster")
@pytest.mark.parametrize("signal", ["canceled", "preempted"])
def test_array_of_jobs_gives_identical_results(signal: str, tmp_path: Path, serial: Path) -> None:
    file, out = tmp_path / "cluster.toml", tmp_path / "out"
    file.write_text('workers = 2\npartition = "main"\ntime = 30\n')
    command = start(*LONG, "--slurm", file, "--out", out)
    wait_for(lambda: len(training(out)) == 2)
    job = jobs()[0]
    assert re.fullmatch(r"\d+_[01]", job)
    options = [] if signal == "canceled" else ["--signal=USR2"]
    subprocess.run(["scancel", *options, job], check=True)
    wait_for(lambda: job not in jobs())
    if signal == "preempted":
        command_line = ("scontrol", "show", "job", job)
        shown = subprocess.run(command_line, capture_output=True, text=True, check=True).stdout
        assert re.search(r"Restarts=1\b", shown)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors
    assert same_bits(out, serial)
    assert not jobs()
    assert not (out / ".slurm").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_cluster")
def test_errors_of_slurm_are_reported(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('partition = "nowhere"\n')
    outcome = cli(*LONG, "--slurm", file, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "partition" in outcome.err
