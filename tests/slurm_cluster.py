"""A Slurm cluster of one node on this machine, for tests.

The packages slurm-wlm and munge come from Debian. Everything listens on 127.0.0.1 only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={controller}
SlurmdPort={daemon}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
MpiDefault=none
ReturnToService=2
KillWait=20
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
CommunicationParameters=NoInAddrAny
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[None]:
    """Start a cluster, and stop it at the end; skip the test if this machine cannot run Slurm."""
    _install()
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().split(".")[0]
    controller, daemon = _free_ports()
    config = folder / "slurm.conf"
    config.write_text(
        _CONFIG.format(
            host=host, folder=folder, controller=controller, daemon=daemon, cores=os.cpu_count()
        )
    )
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(config)
    try:
        _start_munge(folder)
        _run("slurmctld", "-f", str(config))
        _run("slurmd", "-f", str(config))
        end = time.monotonic() + 60
        while "idle" not in _run("sinfo", "--noheader", "--format=%T", check=False):
            assert time.monotonic() < end, (folder / "slurmctld.log").read_text()
            time.sleep(0.5)
        yield
    finally:
        for name in ("slurmctld", "slurmd", "munged"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGTERM)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before


def _install() -> None:
    """Install Slurm if it is missing, this user is root and Debian's packages are at hand."""
    if all(map(shutil.which, ("slurmctld", "slurmd", "munged"))) and os.geteuid() == 0:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        for command in (("update",), ("install", "-y", "slurm-wlm", "munge")):
            done = subprocess.run(["apt-get", *command], env=environment, capture_output=True)
        if done.returncode == 0:
            return
    pytest.skip("Slurm cannot be installed on this machine")


def _start_munge(folder: Path) -> None:
    """Start a munged for this test. The socket of the system may have no daemon any more."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {
        "key": key,
        "pid": folder / "munged.pid",
        "log": folder / "munged.log",
        "seed": folder / "munged.seed",
    }
    options = [f"--{name}-file={path}" for name, path in files.items()]
    # Temporary folders are private. munged refuses them without --force.
    _run("munged", "--force", f"--socket={folder}/munge.socket", *options)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout
