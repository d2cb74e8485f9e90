"""Commands in processes of their own that need not import anything, to be killed at any moment.

Run as a script, it imports the package once and forks a child for each command that it is told of;
imported, it is the client of such a server.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"
TRACEBACK = 99  # the exit code where an exception came through
HUNG = -1000  # that of a command that had to be ended
_PATIENCE = 120.0


@dataclass(frozen=True)
class Command:
    """A command line, and what happens to it.

    Attributes:
        arguments: as typed after `rifflemix`.
        signals: (seconds after the start, number) of the signals that it gets.
        environment: variables, for it alone.
        most_bytes: of any file that it may write; None: no bound.
        user: number of the user that it runs as; None: the one who runs the tests.
        is_clock_mad: time.time() runs backwards, in leaps.
    """

    arguments: Sequence[str]
    signals: Sequence[tuple[float, int]] = ()
    environment: dict[str, str] = field(default_factory=dict)
    most_bytes: int | None = None
    user: int | None = None
    is_clock_mad: bool = False


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, or minus the signal that ended it."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def is_one_sentence(self) -> bool:
        """Exit code 2, and nothing but one line that says why."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return self.code == 2 and len(lines) == 1 and not self.has_traceback

    @property
    def has_traceback(self) -> bool:
        return self.code == TRACEBACK or "Traceback" in self.err


class Server:
    """Starts the forking process; use as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        )
        assert self._answer() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(_PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def run(self, *commands: Command) -> list[Ended]:
        """Run commands side by side until all have ended."""
        assert self.process.stdin is not None
        request = {"folder": str(self.folder), "commands": [asdict(c) for c in commands]}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answers = self._answer()
        return [
            Ended(code, *(self._said(number, name) for name in ("out", "err")), seconds)
            for number, (code, seconds) in enumerate(answers)
        ]

    def _said(self, number: int, name: str) -> str:
        return (self.folder / f"{number}.{name}").read_text(encoding="utf-8", errors="replace")

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


# The server.


def serve() -> None:
    _prepare()
    answers = os.fdopen(os.dup(1), "w")
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        started, children = time.monotonic(), []
        for number, command in enumerate(request["commands"]):
            pid = os.fork()
            if pid == 0:
                os._exit(_child(folder, number, command))
            children.append((pid, command))
        print(json.dumps(_watch(started, children)), file=answers, flush=True)


# What the commands import on their way, too.
_IMPORTED = (
    "accelerate", "matplotlib.backends.backend_agg", "torch._dynamo", "torch.profiler",
    "torch.distributed.checkpoint.state_dict", "rifflemix.cli.app", "rifflemix.comparison.files",
    "rifflemix.comparison.page", "rifflemix.models.registry", "rifflemix.tasks.registry",
)  # fmt: skip


def _prepare() -> None:
    import torch

    import rifflemix.cli
    import rifflemix.reproduction.utilisation
    from rifflemix.recipes import registry
    from rifflemix.tasks.data_io import shards
    from small_recipes import QUICK, small

    for name in _IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    # Several pieces in little time, and no reading of the processor's speed, which takes longer.
    shards._SHARD, shards._cores = 6, lambda: 1
    rifflemix.reproduction.utilisation.matmul_flops_per_second = lambda *_: 1e12
    registry._RECIPES["test/digits"] = lambda: small(train=QUICK)
    # A refused command imports what parsing needs, which another user might not be able to read.
    sys.argv = ["rifflemix", "data", "prepare", "nothing"]
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        assert rifflemix.cli.main() == 2


def _child(folder: Path, number: int, command: dict[str, Any]) -> int:
    for descriptor, name in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(folder / f"{number}.{name}", flags, 0o644), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(command["environment"])
    if command["most_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (command["most_bytes"],) * 2)
    if command["user"] is not None:
        os.setgid(command["user"])
        os.setuid(command["user"])
    if command["is_clock_mad"]:
        ticks = iter(range(10**9, 0, -86_400))
        time.time = lambda: float(next(ticks))
    sys.argv = ["rifflemix", *command["arguments"]]
    import rifflemix.cli

    try:
        code = rifflemix.cli.main()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = TRACEBACK
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    return code


def _watch(started: float, children: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, float]]:
    """Send the signals when they are due; exit codes and seconds of all."""
    due = sorted((at, pid, number) for pid, c in children for at, number in c["signals"])
    ended: dict[int, tuple[int, float]] = {}
    while len(ended) < len(children):
        now = time.monotonic() - started
        while due and due[0][0] <= now:
            _, pid, number = due.pop(0)
            if pid not in ended:
                os.kill(pid, number)
        for pid, _ in children:
            if pid in ended:
                continue
            if now > _PATIENCE:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0 if now > _PATIENCE else os.WNOHANG)
            if done:
                code = HUNG if now > _PATIENCE else os.waitstatus_to_exitcode(status)
                ended[pid] = (code, now)
        time.sleep(0.02)
    return [ended[pid] for pid, _ in children]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    serve()
