"""Run commands in forked processes, without import time, and kill them at any moment.

As a script, this file is a server: it imports the package once and forks a child for each
command. As a module, it is the client of that server.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import importlib
import json
import os
import shutil
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
TRACEBACK = 99  # exit code after an uncaught exception
HUNG = -1000  # exit code of a command that exceeded the time limit
_PATIENCE = 120.0


class Fault(enum.IntEnum):
    """The effect on a file operation, as in faults.c."""

    NONE, KILL, FAIL_ONCE, DISK_FULL = range(4)


CHANGES, ALL_OPERATIONS = 1, 3


@dataclass(frozen=True)
class Injection:
    """One file operation of a process that fails or kills the process.

    Attributes:
        folders: absolute paths; operations in other folders are not counted.
        fault: effect on the operation.
        at: number of the operation, from 1 on.
        error: errno of the failure.
        kinds: CHANGES counts operations that change a file or folder, ALL_OPERATIONS also counts
            operations that read.
    """

    folders: Sequence[str]
    fault: Fault = Fault.NONE
    at: int = 0
    error: int = 0
    kinds: int = CHANGES


@dataclass(frozen=True)
class Command:
    """A command line and its disturbances.

    Attributes:
        arguments: words after `rifflemix`, or `python MODULE:FUNCTION WORDS` to call a function of
            the tests with the words.
        injection: fault in its file operations, or None to count no operations.
        signals: pairs (seconds after the start, signal number).
        environment: additional environment variables.
        user: user ID of the process, or None for the current user.
        is_clock_mad: whether time.time() runs backwards, in leaps.
    """

    arguments: Sequence[str]
    injection: Injection | None = None
    signals: Sequence[tuple[float, int]] = ()
    environment: dict[str, str] = field(default_factory=dict)
    user: int | None = None
    is_clock_mad: bool = False


@dataclass(frozen=True)
class Ended:
    """The result of a command.

    Attributes:
        code: exit code, or the negative number of the signal that ended it.
        out, err: text on stdout and stderr.
        seconds: run time.
        operations: number of file operations, for a command with an injection that was not killed.
        struck: operation that failed or killed the command, and its path, or an empty string.
    """

    code: int
    out: str
    err: str
    seconds: float
    operations: int
    struck: str

    @property
    def is_one_sentence(self) -> bool:
        """Whether the exit code is 2 and the output is a single error line."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return self.code == 2 and len(lines) == 1 and not self.has_traceback

    @property
    def has_traceback(self) -> bool:
        return self.code == TRACEBACK or "Traceback" in self.err


class Server:
    """Start the forking process. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Server:
        preloaded = _preloaded(self.folder)
        self.injects = bool(preloaded)
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "OMP_NUM_THREADS": "1",
                **preloaded,
            },
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
        """Run commands in parallel until all have ended."""
        assert self.process.stdin is not None
        request = {"folder": str(self.folder), "commands": [asdict(c) for c in commands]}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answers = self._answer()
        return [self._ended(number, *answer) for number, answer in enumerate(answers)]

    def _ended(self, number: int, code: int, seconds: float) -> Ended:
        out, err, struck, counted = (
            (self.folder / f"{number}.{name}").read_text(encoding="utf-8", errors="replace")
            for name in _WRITTEN
        )
        return Ended(code, out, err, seconds, int(counted or 0), struck.strip())

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def _preloaded(folder: Path) -> dict[str, str]:
    """Return the variables that preload faults.c; empty without a C compiler or off Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        return {}
    source, library = Path(__file__).with_name("faults.c"), folder / "faults.so"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    subprocess.run([compiler, *flags, source, "-o", library, "-ldl"], check=True)
    return {_LIBRARY: str(library), "LD_PRELOAD": str(library)}


# Server.

_WRITTEN = ("out", "err", "struck", "counted")  # files of each child
_LIBRARY = "RIFFLEMIX_ATTACK_FAULTS"


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


# Modules that the commands also import.
_IMPORTED = (
    "accelerate", "matplotlib.backends.backend_agg", "torch._dynamo", "torch.profiler",
    "torch.distributed.checkpoint.state_dict", "rifflemix.cli.app",
    "rifflemix.lab.comparison.pages.files",
    "rifflemix.models.registry", "rifflemix.lab.tasks.registry", "rifflemix.lab.analysis",
    "rifflemix.lab.bench.ops", "rifflemix.lab.reproduction.page", "library_writes",
)  # fmt: skip


def _prepare() -> None:
    import torch

    import rifflemix.cli
    import rifflemix.lab.reproduction.run
    from rifflemix.lab.analysis import runner
    from rifflemix.lab.comparison.pages import plot
    from rifflemix.lab.comparison.suites import catalog
    from rifflemix.lab.recipes import registry
    from rifflemix.lab.reproduction import sweep_records, tables
    from rifflemix.lab.runs import environment
    from rifflemix.lab.tasks.data_io import shards
    from small_recipes import QUICK, small

    for name in _IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    # Small shards, and stubs for slow functions that write no file.
    shards._SHARD, shards._cores = 6, lambda: 1
    rifflemix.lab.reproduction.run.matmul_flops_per_second = lambda *_: 1e12
    tables.list_recipes = lambda: ["test/digits"]
    environment._git = lambda: (None, None)
    for module in (plot, runner, sweep_records):
        module.figure_png = lambda figure: b"a picture"
    registry._RECIPES["test/digits"] = lambda: small(train=QUICK)
    pieces = catalog.SuiteTask("digits", {"patch_size": 4}, {"max_steps": 2, "batch_size": 8})
    tasks = {"a": pieces, "b": pieces}
    catalog.SUITES["tiny"] = catalog.Suite("tiny", "Digits twice", tasks, ("average",), 1, (1e-3,))
    # Import the modules that parsing needs before another user, who may not read them, runs a
    # command.
    sys.argv = ["rifflemix", "data", "prepare", "nothing"]
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        assert rifflemix.cli.main() == 2


def _child(folder: Path, number: int, command: dict[str, Any]) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    opened = {n: os.open(folder / f"{number}.{n}", flags, 0o644) for n in _WRITTEN}
    os.dup2(opened["out"], 1)
    os.dup2(opened["err"], 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(command["environment"])
    if command["user"] is not None:
        os.setgid(command["user"])
        os.setuid(command["user"])
    if command["is_clock_mad"]:
        ticks = iter(range(10**9, 0, -86_400))
        time.time = lambda: float(next(ticks))
    faults = None
    if command["injection"] is not None:
        faults = ctypes.CDLL(os.environ[_LIBRARY])
        injection = Injection(**command["injection"])
        folders = os.fsencode("\n".join(injection.folders))
        rest = (injection.fault, injection.error, injection.kinds, opened["struck"])
        faults.faults_arm(folders, ctypes.c_long(injection.at), *rest)
    try:
        code = _call(command["arguments"])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = TRACEBACK
    if faults is not None:
        os.write(opened["counted"], b"%d" % faults.faults_seen())
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    return code


def _call(arguments: Sequence[str]) -> int:
    """Run a command or a test function; an InputError exits with code 2, like a command."""
    import rifflemix.cli
    from rifflemix.errors import InputError

    if arguments[0] != "python":
        sys.argv = ["rifflemix", *arguments]
        return rifflemix.cli.main()
    module, _, name = arguments[1].partition(":")
    try:
        getattr(importlib.import_module(module), name)(*arguments[2:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _watch(started: float, children: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, float]]:
    """Send the signals on time; return all exit codes and run times."""
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
