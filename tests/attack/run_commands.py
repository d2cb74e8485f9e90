"""Small runs of every command that writes, and the parts of their folders that are reproducible."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_commands import ALL_OPERATIONS, CHANGES, Command, Ended, Injection, Server

from rifflemix.files import read_tensors

TINY = (
    "--task", "digits", "--task-option", "patch_size=4", "--dim", "16", "--layers", "1",
    "--heads", "2", "--batch-size", "64", "--threads", "1", "--device", "cpu",
)  # fmt: skip

SMALL = ("--dim", "8", "--layers", "1", "--heads", "2", "--threads", "1", "--device", "cpu")
ANALYZE = ("--samples", "4", "--threads", "1")

# Commands that create inputs of other commands, in the server's folder. All commands run there.
INPUTS: dict[str, list[str]] = {
    "one": ["compare", *TINY, "--mixers", "average", "--max-steps", "4", "--out", "one"],
    "two": ["compare", *TINY, "--mixers", "tssa", "--max-steps", "4", "--out", "two"],
    "first-suite": ["compare", "--suite", "tiny", *SMALL, "--tasks", "a", "--out", "first-suite"],
    "second-suite": ["compare", "--suite", "tiny", *SMALL, "--tasks", "b", "--out", "second-suite"],
    "reproduced": ["reproduce", "test/digits", "--threads", "1", "--out", "reproduced"],
    "trained": ["train", *TINY, "--mixer", "tssa", "--max-steps", "4", "--out", "trained"],
}  # fmt: skip

TRAININGS: dict[str, Callable[[str], list[str]]] = {
    "compare": lambda out: [
        "compare", *TINY, "--mixers", "average,tssa", "--max-steps", "12", "--out", out
    ],
    "train": lambda out: [
        "train", *TINY, "--mixer", "tssa", "--max-steps", "30", "--keep-weights",
        "--out", out
    ],
    "reproduce": lambda out: [
        "reproduce", "test/digits", "--threads", "1", "--device", "cpu", "--out", out
    ],
    "sweep": lambda out: [
        "sweep", "test/digits", "--set", "num_heads=1,2", "--threads", "1", "--device", "cpu",
        "--out", out
    ],
    # Writes to the cache folder. `command` sets that folder to `out`.
    "data prepare": lambda out: ["data", "prepare", "pathfinder32", "--max-samples", "12"],
}  # fmt: skip

COMMANDS: dict[str, Callable[[str], list[str]]] = {
    **TRAININGS,
    "suite": lambda out: ["compare", "--suite", "tiny", *SMALL, "--out", out],
    "merge": lambda out: ["merge", "one", "two", "--out", out],
    "merge suites": lambda out: ["merge", "first-suite", "second-suite", "--out", out],
    "report": lambda out: ["report", "reproduced", "--out", out],
    "analyze": lambda out: ["analyze", "collapse", "trained", *ANALYZE, "--out", out],
    "analyze all": lambda out: ["analyze", "all", "trained", *ANALYZE, "--out", out],
    "bench": lambda out: ["bench", "ops", "--shape", "1,8,8,2", "--repeats", "1", "--out", out],
    "save_pretrained": lambda out: ["python", "library_writes:save_model", out],
    "save_swapped": lambda out: ["python", "library_writes:save_swapped_model", out],
}


def make_inputs(server: Server, arguments: Sequence[str]) -> None:
    """Run the commands that create inputs of a command, unless they have run already."""
    for name in INPUTS:
        if name in arguments and not (server.folder / name).exists():
            (ended,) = server.run(Command(INPUTS[name]))
            assert ended.code == 0, ended.err


# Fields that depend on the clock, the machine and the command line.
_MEASURED = {
    "command", "environment", "wall_seconds", "seconds", "steps_per_second", "tokens_per_second",
    "peak_memory_bytes", "utilisation", "timed_steps", "timed_tokens", "timed_seconds", "speed",
    "time", "sha256", "beside", "measured_apart",
}  # fmt: skip


def command(name: str, out: Path, **happens: Any) -> Command:
    """Create a run of one of `COMMANDS` into a folder."""
    environment = {"RIFFLEMIX_CACHE": str(out if name == "data prepare" else out.parent / "cache")}
    return Command(COMMANDS[name](str(out)), environment=environment, **happens)


def outcome(folder: Path, pattern: str = "**/*") -> dict[str, Any]:
    """Return the contents of all files, without measurements, pictures and rendered pages."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob(pattern)):
        name = str(path.relative_to(folder))
        if (
            path.is_dir()
            or path.name in (".lock", ".launch.json")
            or path.suffix in (".png", ".html", ".md")
        ):
            continue
        if path.name == "checkpoint.safetensors":
            tensors, progress = read_tensors(path)
            content = {key: tensor.numpy().tobytes() for key, tensor in tensors.items()}
            found[name] = (content, _without_measures(progress))
        elif path.suffix == ".json":
            found[name] = _without_measures(json.loads(path.read_text(encoding="utf-8")))
        else:
            found[name] = path.read_bytes()
    return found


def _without_measures(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_measures(v) for k, v in value.items() if k not in _MEASURED}
    if isinstance(value, list):
        return [_without_measures(inner) for inner in value]
    return value


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return the names of files that differ, or an empty string."""
    names = sorted({*found, *expected})
    return ", ".join(name for name in names if found.get(name) != expected.get(name))


def finish(server: Server, name: str, out: Path) -> Ended:
    """Run the command without a disturbance."""
    make_inputs(server, COMMANDS[name](str(out)))
    (ended,) = server.run(command(name, out))
    return ended


@dataclass(frozen=True)
class Undisturbed:
    """A run of a command without a disturbance.

    Attributes:
        files: contents of its files, see `outcome`.
        seconds: run time.
        operations: number of its file operations by kind; empty without a C compiler.
    """

    files: dict[str, Any]
    seconds: float
    operations: dict[int, int]


class Straight:
    """Results of each command without a disturbance; each command runs on first use."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.known: dict[str, Undisturbed] = {}

    def __call__(self, name: str) -> Undisturbed:
        if name not in self.known:
            folder = self.server.folder / "straight" / name.replace(" ", "-")
            out = folder / "out"
            ended = finish(self.server, name, out)
            assert ended.code == 0, ended.err
            counts = {kind: self._counted(name, folder / f"{kind}" / "out", kind)
                      for kind in (CHANGES, ALL_OPERATIONS) if self.server.injects}  # fmt: skip
            self.known[name] = Undisturbed(outcome(out), ended.seconds, counts)
        return self.known[name]

    def _counted(self, name: str, out: Path, kinds: int) -> int:
        injection = Injection((str(out.parent),), kinds=kinds)
        (ended,) = self.server.run(command(name, out, injection=injection))
        assert ended.code == 0, ended.err
        return ended.operations
