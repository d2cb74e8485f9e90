"""Small runs of the long commands, and what of their folders must be the same each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked_commands import Command, Ended, Server

from rifflemix.files import read_tensors

TINY = (
    "--task", "digits", "--task-option", "patch_size=4", "--dim", "16", "--layers", "1",
    "--heads", "2", "--batch-size", "64", "--threads", "1", "--device", "cpu",
)  # fmt: skip

COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "compare": lambda out: [
        "compare", *TINY, "--mixers", "average,tssa", "--max-steps", "12", "--out", str(out)
    ],
    "train": lambda out: [
        "train", *TINY, "--mixer", "tssa", "--max-steps", "30", "--out", str(out)
    ],
    "reproduce": lambda out: [
        "reproduce", "test/digits", "--threads", "1", "--device", "cpu", "--out", str(out)
    ],
    "sweep": lambda out: [
        "sweep", "test/digits", "--set", "num_heads=1,2", "--threads", "1", "--device", "cpu",
        "--out", str(out)
    ],
    # Into the cache folder, which `command` puts there.
    "data prepare": lambda out: ["data", "prepare", "pathfinder32", "--max-samples", "12"],
}  # fmt: skip

# What depends on the clock, the machine and the command line.
_MEASURED = {
    "command", "environment", "wall_seconds", "seconds", "steps_per_second", "tokens_per_second",
    "peak_memory_bytes", "utilisation", "timed_steps", "timed_tokens", "timed_seconds", "speed",
    "time", "sha256",
}  # fmt: skip


def command(name: str, out: Path, **happens: Any) -> Command:
    """A run of one of `COMMANDS` into a folder."""
    environment = {"RIFFLEMIX_CACHE": str(out if name == "data prepare" else out.parent / "cache")}
    return Command(COMMANDS[name](out), environment=environment, **happens)


def outcome(folder: Path, pattern: str = "**/*") -> dict[str, Any]:
    """Every file of a folder, but for what was measured and for pictures of it."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob(pattern)):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name == ".lock" or path.suffix in (".png", ".html", ".md"):
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
    """The names of files that differ; empty if none does."""
    names = sorted({*found, *expected})
    return ", ".join(name for name in names if found.get(name) != expected.get(name))


def finish(server: Server, name: str, out: Path) -> Ended:
    """The command again, without a disturbance."""
    (ended,) = server.run(command(name, out))
    return ended
