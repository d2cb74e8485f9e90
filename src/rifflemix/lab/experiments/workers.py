"""Worker processes on this machine, which share the runs of a folder.

A worker executes `rifflemix.cli.worker`. Its standard input starts with the objects that it cannot
read from files. The end of its standard input asks it to stop, so workers also stop if the command
that started them is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from rifflemix.errors import InputError, RunFailed
from rifflemix.files import make_folder, read_json, write_json
from rifflemix.json_values import decode
from rifflemix.lab.experiments.overview import STATUSES, status_path
from rifflemix.lab.experiments.plan import ALL_RUNS, Shard
from rifflemix.plugins import plugin_paths

_FILE = ".launch.json"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How an experiment was started: what a worker needs and config.json does not contain.

    Attributes:
        argv: words of the command line.
        directory: current directory, which relative paths refer to.
        plugins: --plugin files.
        data_dir: folder of the data files.
        options: further options of the command.
        folders: folders of the experiments below this folder, if it contains several.
    """

    argv: list[str] = field(default_factory=lambda: list(sys.argv))
    directory: str = field(default_factory=os.getcwd)
    plugins: list[str] = field(default_factory=list)
    data_dir: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


def write_launch(
    out: Path,
    data_dir: Path | None,
    options: Mapping[str, Any] | None = None,
    folders: list[str] | None = None,
) -> None:
    """Write how this process starts an experiment into its folder.

    Raises:
        InputError: the folder cannot be written.
    """
    launch = Launch(
        plugins=plugin_paths(),
        data_dir=None if data_dir is None else str(data_dir),
        options={
            name: str(value) if isinstance(value, Path) else value
            for name, value in (options or {}).items()
        },
        folders=folders or [],
    )
    make_folder(out)
    write_json(out / _FILE, asdict(launch))


def read_launch(out: Path) -> Launch | None:
    """Read how an experiment was started, or return None for a folder without this file.

    Raises:
        InputError: the file cannot be read.
    """
    path = out / _FILE
    if not path.exists():
        return None
    try:
        return decode(Launch, read_json(path))
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}. Run the command again.") from error


EXIT_STOPPED = 130
_EXIT_BAD_INPUT = 2
_STRIKES = 3
_POLL = 0.1  # seconds


@dataclass(frozen=True)
class Workers:
    """Worker processes on this machine.

    Attributes:
        count: number of workers.
        threads: CPU threads of each worker.
        devices: GPUs, which the workers take in turn; empty for the CPU or the only GPU.
    """

    count: int
    threads: int = 1
    devices: Sequence[str] = ()


@dataclass(frozen=True)
class Payload:
    """Objects that a worker cannot read from files.

    Attributes:
        task: task that is not in the registry, or None.
        mixers: third-party classes of mixers.
        shard: the part of the runs to make.
    """

    task: Any = None
    mixers: Sequence[type] = ()
    shard: Shard = ALL_RUNS


def _pickled(payload: Payload) -> bytes:
    try:
        text = pickle.dumps(payload)
    except Exception as error:
        raise InputError(f"workers: expected a task that pickle can copy, got {error}") from error
    for mixer in payload.mixers:
        if mixer.__module__ == "__main__":
            raise InputError(
                f"workers: expected mixers from an importable module, got {mixer.__name__} of the "
                "main program. Move the class to a file of its own and import it."
            )
    return text


@dataclass
class _Slot:
    """A worker and its successors."""

    number: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    strikes: int = 0


class Pool:
    """Worker processes of one command.

    A killed worker is restarted, unless it was killed repeatedly before it started a run.

    Args:
        out: folder of the experiment.
        workers: the workers.
        payload: objects that the workers need.
        on_note: called with a line of text when a worker is restarted.

    Attributes:
        error: why a worker could not work; None if all could.

    Raises:
        InputError: the payload cannot be copied to another process.
    """

    def __init__(
        self, out: Path, workers: Workers, payload: Payload, on_note: Callable[[str], object]
    ) -> None:
        self.out = out
        self.workers = workers
        self.payload = _pickled(payload)
        self.on_note = on_note
        self.slots: list[_Slot] = []
        self.error: InputError | None = None
        self.is_stopped = False

    def run(self) -> None:
        """Start all workers and wait until they have ended.

        Raises:
            InputError: a worker cannot use the folder, the data or the device.
            RunFailed: a worker was killed repeatedly before it started a run.
        """
        try:
            self.start()
            self.wait()
        finally:
            self.kill()
        if self.error is not None:
            raise self.error
        self.delete_logs()

    def wait(self) -> None:
        """Wait until all workers have ended."""
        while self.is_running():
            time.sleep(_POLL)

    def start(self) -> None:
        """Start all workers."""
        make_folder(self.out / STATUSES)
        for number in range(self.workers.count):
            name = f"{socket.gethostname()}-{os.getpid()}-worker{number + 1}.log"
            self.slots.append(_Slot(number, self.out / STATUSES / name))
            self._start(self.slots[-1])

    def _start(self, slot: _Slot) -> None:
        command = [sys.executable, "-m", "rifflemix.cli.worker", str(self.out)]
        with slot.log.open("ab") as log:
            slot.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(slot),
                start_new_session=True,  # Ctrl-C reaches only the command
            )
        # A worker reads when it has imported torch; until then a pipe takes only 64 KiB.
        Thread(target=_send, args=(slot.process, self.payload), daemon=True).start()

    def _environment(self, slot: _Slot) -> dict[str, str]:
        found = dict(os.environ, OMP_NUM_THREADS=str(self.workers.threads))
        found.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads slow down the others
        if devices := self.workers.devices:
            found["CUDA_VISIBLE_DEVICES"] = devices[slot.number % len(devices)]
        return found

    def is_running(self) -> bool:
        """Restart the killed workers; return whether a worker is left."""
        for slot in self.slots:
            process = slot.process
            if process is not None and process.poll() is not None:
                slot.process = None
                _close(process)
                self._ended(slot, process)
        return any(slot.process is not None for slot in self.slots)

    def _ended(self, slot: _Slot, process: subprocess.Popen[bytes]) -> None:
        code = process.returncode
        status = status_path(self.out, socket.gethostname(), process.pid)
        has_started = status.exists()
        status.unlink(missing_ok=True)
        if code in (0, EXIT_STOPPED) or self.is_stopped:
            return
        reason = _last_line(slot.log)
        if code == _EXIT_BAD_INPUT:
            self.error = self.error or InputError(reason.removeprefix("error: "))
            return
        # A worker that started a run has counted the failure of the run.
        slot.strikes = 0 if has_started else slot.strikes + 1
        if slot.strikes == _STRIKES:
            self.error = self.error or RunFailed(
                f"worker {slot.number + 1} ended {_STRIKES} times with exit code {code}: {reason}"
            )
            return
        self.on_note(f"worker {slot.number + 1} ended with exit code {code} and starts again")
        self._start(slot)

    def stop(self) -> None:
        """Ask all workers to write a checkpoint and end."""
        self.is_stopped = True
        for slot in self.slots:
            if slot.process is not None:
                _close(slot.process)

    def kill(self) -> None:
        """End the workers that are left at once."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.kill()
                slot.process.wait()
                _close(slot.process)

    def delete_logs(self) -> None:
        """Delete the output of the workers, and the folder if no other worker uses it."""
        with contextlib.suppress(OSError):
            for slot in self.slots:
                slot.log.unlink(missing_ok=True)
            (self.out / STATUSES).rmdir()


def _send(process: subprocess.Popen[bytes], payload: bytes) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):  # the worker has ended
            process.stdin.write(payload)
            process.stdin.flush()


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing")
